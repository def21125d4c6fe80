"""The HTTP APIs of the service, a file or folder each, and the one table of their routes."""

from service.api import (
    cohere,
    decisions,
    nim,
    open_inference,
    openai,
    operating,
    pages,
    questions,
    rerank,
    systemone,
    teaching,
    tei,
)
from service.shapes.call import Route

DIALECTS = (
    questions,
    teaching,
    operating,
    openai,
    tei,
    rerank,
    cohere,
    nim,
    systemone,
    decisions,
    open_inference,
    pages,
)
ROUTES: tuple[Route, ...] = tuple(route for dialect in DIALECTS for route in dialect.ROUTES)
