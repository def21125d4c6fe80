"""The Python client: numpy in and out, without torch or Ray.

Read call.py first; docs/client.md shows how it is used.
"""

from headlight_client.answers import (
    Attention,
    Compared,
    Dominance,
    Edges,
    Encoded,
    Item,
    Pairs,
    Score,
    Scored,
    Similar,
    Span,
    Usage,
    Vectors,
)
from headlight_client.call import AsyncClient, Client
from headlight_client.errors import HeadlightError, ModelChanged, NoAnswer, RequestRefused
from headlight_client.inputs import ComparisonOptions, Input, Options, ScoreOptions
from headlight_client.spaces import Checked, Space

__all__ = [
    "AsyncClient",
    "Attention",
    "Checked",
    "Client",
    "Compared",
    "ComparisonOptions",
    "Dominance",
    "Edges",
    "Encoded",
    "HeadlightError",
    "Input",
    "Item",
    "ModelChanged",
    "NoAnswer",
    "Options",
    "Pairs",
    "RequestRefused",
    "Score",
    "ScoreOptions",
    "Scored",
    "Similar",
    "Space",
    "Span",
    "Usage",
    "Vectors",
]
