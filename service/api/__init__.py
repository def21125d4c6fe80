"""The HTTP APIs of the service, a file or folder each, and the one table of their routes."""

from service.api import (
    cohere,
    nim,
    open_inference,
    openai,
    operating,
    pages,
    questions,
    rerank,
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
    open_inference,
    pages,
)
ROUTES: tuple[Route, ...] = tuple(route for dialect in DIALECTS for route in dialect.ROUTES)
