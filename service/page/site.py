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
# Files of the pages, by path below /page/
PAGE_FILES = {
    file.name: file for file in _ROOT.iterdir() if file.name.rpartition(".")[2] in MEDIA_TYPES
}


@cache
def read_attention_page(root: str) -> bytes:
    """Return the attention page, its links below `root`, where a cluster mounts the service."""
    page = _ROOT.joinpath("index.html").read_bytes()
    for name in (b"page/", b'docs"'):  # relative to the service
        page = page.replace(b'="' + name, b'="%b/%b' % (root.encode(), name))
    return page


@cache
def read_docs_page() -> bytes:
    """Return the page of the API's documentation."""
    return _ROOT.joinpath("docs.html").read_bytes()


@cache
def read_part(name: str) -> tuple[bytes, str]:
    """Return the content of one of PAGE_FILES, and its media type."""
    return PAGE_FILES[name].read_bytes(), MEDIA_TYPES[name.rpartition(".")[2]]
