"""Every API of the service, a file or folder each, and the one table of their routes."""

from service.api import (
    cohere,
    encode,
    highlight,
    open_inference,
    openai,
    operating,
    pages,
    questions,
    rerank,
    teaching,
    tei,
    zero_shot,
)
from service.api.dialect import Route

DIALECTS = (
    encode,
    questions,
    zero_shot,
    highlight,
    teaching,
    operating,
    openai,
    tei,
    rerank,
    cohere,
    open_inference,
    pages,
)
ROUTES: tuple[Route, ...] = tuple(route for dialect in DIALECTS for route in dialect.ROUTES)
