"""The Python client: numpy in and out, without torch or Ray.

Read call.py first; docs/client.md shows how it is used.
"""

from headlight_client.answers import (
    Attention,
    Dominance,
    Edges,
    Encoded,
    Item,
    Span,
    Usage,
    Vectors,
)
from headlight_client.call import AsyncClient
from headlight_client.errors import HeadlightError, ModelChanged, NoAnswer, RequestRefused
from headlight_client.inputs import Input, Options, ScoreOptions
from headlight_client.scores import Score, Scored
from headlight_client.waiting import Client

__all__ = [
    "AsyncClient",
    "Attention",
    "Client",
    "Dominance",
    "Edges",
    "Encoded",
    "HeadlightError",
    "Input",
    "Item",
    "ModelChanged",
    "NoAnswer",
    "Options",
    "RequestRefused",
    "Score",
    "ScoreOptions",
    "Scored",
    "Span",
    "Usage",
    "Vectors",
]
