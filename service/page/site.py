"""The web pages, as files: the attention page, the API's page, and the parts of both."""

from functools import cache
from importlib.resources import files

HTML = "text/html; charset=utf-8"  # the media type of both pages
MEDIA_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}

# A page may run the service's own files and call it. Pictures are its own.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_ROOT = files("service").joinpath("page")  # this folder
DOCS_PAGE = _ROOT.joinpath("docs.html").read_bytes()  # the page of the API's documentation
# Files of the pages and their media types, by path below /page/
PAGE_FILES = {
    file.name: (file.read_bytes(), MEDIA_TYPES[kind])
    for file in _ROOT.iterdir()
    if (kind := file.name.rpartition(".")[2]) in MEDIA_TYPES
}


@cache
def read_attention_page(root: str) -> bytes:
    """Return the attention page, its links below `root`, where a cluster mounts the service."""
    page = _ROOT.joinpath("index.html").read_bytes()
    for name in (b"page/", b'docs"'):  # relative to the service
        page = page.replace(b'="' + name, b'="%b/%b' % (root.encode(), name))
    return page
