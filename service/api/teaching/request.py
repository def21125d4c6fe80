"""The wire of POST /v1/attend and POST /v1/explain: request models, strict."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, FiniteFloat, Tag, TypeAdapter
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.encode.request import Item
from service.wire import Wire, body

# Lists that stop at their first error, as in schema.py; finite: a softmax spreads one NaN to all
Finite = TypeAliasType("Finite", Annotated[list[FiniteFloat], FailFast()])
FiniteRows = TypeAliasType("FiniteRows", Annotated[list[Finite], FailFast()])
RowsByHead = TypeAliasType("RowsByHead", Annotated[list[FiniteRows], FailFast()])
Switches = TypeAliasType("Switches", Annotated[list[bool], FailFast()])
Mask = TypeAliasType("Mask", Annotated[list[Switches], FailFast()])
MaskByHead = TypeAliasType("MaskByHead", Annotated[list[Mask], FailFast()])
Count = Annotated[int, Field(ge=1)]


def _depth(value: object) -> str:
    """Whether numbers by query and key stand once for all heads, or once for each."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return "<by head>" if depth == 3 else "<once>"


# (query, key) for every head alike, or (heads, query, key)
PerPair = Annotated[
    Annotated[FiniteRows, Tag("<once>")] | Annotated[RowsByHead, Tag("<by head>")],
    Discriminator(_depth),
]
MaskPerPair = Annotated[
    Annotated[Mask, Tag("<once>")] | Annotated[MaskByHead, Tag("<by head>")],
    Discriminator(_depth),
]


class AttendRequest(Wire):
    """Queries, keys and values: softmax(Q_i K_i^T / sqrt(d / heads) + bias) V_i for each head i.

    Args:
        query: (query, d).
        key: (key, d).
        value: (key, d of the values).
        heads: d is split evenly among them.
        mask: true = may attend.
        bias: added to the scores.
    """

    query: FiniteRows
    key: FiniteRows
    value: FiniteRows
    heads: Count = 1
    mask: MaskPerPair | None = None
    bias: PerPair | None = None


class MixRequest(Wire):
    """Scores, or what a softmax has made of them, and values.

    Args:
        scores: every query's of every key.
        probabilities: the scores are shares already: no softmax, every row sums to 1.
        heads: default as many as the scores have, or 1.
    """

    scores: PerPair
    value: FiniteRows
    probabilities: bool = False
    heads: Count | None = None


class ExplainRequest(Wire):
    """The body of POST /v1/explain: a text, and the layer it is followed through."""

    model: str | None = None
    text: str
    pair: str | None = None
    layer: int
    truncate: Truncate = "refuse"

    def item(self) -> Item:
        """The text as an input of /v1/encode."""
        return Item.model_construct(text=self.text, pair=self.pair)


Attend = AttendRequest | MixRequest


def _form(value: Any) -> str:
    return "<mix>" if isinstance(value, dict) and "scores" in value else "<attend>"


# the body of POST /v1/attend
AttendBody = Annotated[
    Annotated[AttendRequest, Tag("<attend>")] | Annotated[MixRequest, Tag("<mix>")],
    Discriminator(_form),
]
ATTEND: TypeAdapter[Attend] = body(AttendBody)
