"""The Python client: numpy in and out, without torch or Ray.

Read call.py first; docs/client.md shows how it is used.
"""

from service.client.answers import Attention, Dominance, Edges, Encoded, Item, Usage
from service.client.call import AsyncClient
from service.client.errors import HeadlightError, ModelChanged, NoAnswer, RequestRefused
from service.client.inputs import Input, Options
from service.client.waiting import Client

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
    "Usage",
]
