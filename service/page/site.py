"""The web pages, as files: the attention page and its parts, and the API's page."""

import base64
import re
from hashlib import sha256
from importlib.resources import files

HTML = "text/html; charset=utf-8"
MEDIA = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
INLINE = re.compile(rb"<(?:style|script)>(.*?)</(?:style|script)>", re.DOTALL)

# The attention page may run its own files and call this service. Pictures are its own.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PLACE = b'="page/'  # where the attention page names its files, relative to the service

_ROOT = files("service").joinpath("page")
_ATTENTION = _ROOT.joinpath("attention")
# By path below /page/
PARTS = {
    f"{folder}{file.name}": file
    for folder, rest in (("", _ATTENTION), ("views/", _ATTENTION.joinpath("views")))
    for file in rest.iterdir()
    if file.name.rpartition(".")[2] in MEDIA
}


def attention(root: str) -> bytes:
    """Return the attention page of a service that a cluster mounts under a path."""
    page = _ATTENTION.joinpath("index.html").read_bytes()
    return page.replace(PLACE, b'="%b/page/' % root.encode()).replace(
        b'href="docs"', b'href="%b/docs"' % root.encode()
    )


def part(name: str) -> tuple[bytes, str]:
    """Return a file of the attention page, and its media type."""
    return PARTS[name].read_bytes(), MEDIA[name.rpartition(".")[2]]


def docs() -> tuple[bytes, str]:
    """Return the API's page, and what it may do: run its own script and style."""
    page = _ROOT.joinpath("docs.html").read_bytes()
    hashes = [base64.b64encode(sha256(part).digest()).decode() for part in INLINE.findall(page)]
    style, script = (f"'sha256-{digest}'" for digest in hashes)
    return page, (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
