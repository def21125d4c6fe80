"""The web pages, and the API document: GET /, /docs and /openapi.json."""

from functools import partial

from service.api.dialect import RouteContext
from service.api.own import NATIVE
from service.page import site
from service.shapes.answer import JSON
from service.shapes.call import Reply, RequestHead

PAGE_PREFIX = "/page/"  # prefix of the attention page's files


async def answer_docs(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /docs: the API's documentation as a page."""
    policy = {"content-security-policy": site.CONTENT_POLICY}
    return Reply(site.DOCS_PAGE, 200, policy, site.HTML)


async def answer_openapi(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /openapi.json: the OpenAPI document."""
    return Reply(await context.document(head.root_path), media_type=JSON)


async def answer_page(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /: the page that shows what every head attends to."""
    text = site.read_attention_page(head.root_path)
    return Reply(text, 200, {"content-security-policy": site.CONTENT_POLICY}, site.HTML)


async def answer_page_file(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /page/...: a script or style of the attention page."""
    body, media_type = site.PAGE_FILES[head.path.removeprefix(PAGE_PREFIX)]
    return Reply(body, 200, {"cache-control": "no-cache"}, media_type)


_get = partial(NATIVE.get, public="always", metric="/docs")
ROUTES = [
    _get("/docs", answers=answer_docs),
    NATIVE.get("/openapi.json", answers=answer_openapi),
    _get("/", answers=answer_page),
    *(_get(PAGE_PREFIX + name, answers=answer_page_file) for name in site.PAGE_FILES),
]
