"""The pages for people, and the document itself: GET /, /docs and /openapi.json."""

import asyncio
from functools import partial

from service.api.dialect import Here, Reply, Sent, to_json
from service.api.own import NATIVE
from service.page import site

PART = "/page/"  # prefix of the attention page's files


async def docs(sent: Sent, here: Here) -> Reply:
    """Answer GET /docs: the API for people."""
    return Reply(site.docs(), 200, {"content-security-policy": site.POLICY}, site.HTML)


async def openapi(sent: Sent, here: Here) -> Reply:
    """Answer GET /openapi.json: the API for programs."""
    servers = [{"url": sent.root_path or "/"}]
    return to_json(await asyncio.to_thread(here.document) | {"servers": servers})


async def page(sent: Sent, here: Here) -> Reply:
    """Answer GET /: what every head attends to, for people."""
    text = site.attention(sent.root_path)
    return Reply(text, 200, {"content-security-policy": site.POLICY}, site.HTML)


async def part(sent: Sent, here: Here) -> Reply:
    """Answer GET /page/...: a file of that page."""
    body, kind = site.part(sent.path.removeprefix(PART))
    return Reply(body, 200, {"cache-control": "no-cache"}, kind)


_get = partial(NATIVE.get, public="always", metric="/docs")
ROUTES = [
    _get("/docs", answers=docs),
    NATIVE.get("/openapi.json", answers=openapi),
    _get("/", answers=page),
    *(_get(PART + name, answers=part) for name in site.PARTS),
]
