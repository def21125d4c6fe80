"""What an answer shows of arrays and of attention, as types for the document of the API."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from model.maps.choices import FIELDS
from service.api.types import Closed, one_of


class EncodedArray(Closed):
    """A whole array, where the request's encoding is base64."""

    shape: list[int]
    dtype: Literal["float32", "float16", "int32"]
    data: Annotated[str, Field(description="base64 of the little-endian bytes")]


Vector = list[float] | EncodedArray
Rows = list[list[float]] | EncodedArray
Counts = list[int] | EncodedArray
Keys = list[list[int]] | EncodedArray
Values = list[float | None] | EncodedArray
Tokens = Annotated[Rows, Field(description="(tokens, width)")]
# no tuples: few readers of OpenAPI know prefixItems
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
Characters = Annotated[Pair, Field(description="[start, end)")]
Span = Annotated[Pair, Field(description="tokens, [first, last)")]
Of = TypeVar("Of")
ByHead = Annotated[
    dict[str, dict[str, Of]], Field(description="by layer, then head, both counted from 0")
]


class Units(Closed, total=False):
    """What rows and columns are, where they are not all tokens in order."""

    axis: Annotated[list[int], Field(description="the units shown, where some are left out")]
    spans: Annotated[list[Span], Field(description="of every unit, where some are of several")]


class Form(Units):
    """What every form of attention says of itself."""

    path: Literal["fused", "exact"]


class AttentionFull(Form):
    """Whole maps."""

    form: Literal["full"]
    maps: ByHead[Annotated[Rows, Field(description="(query, key) probabilities")]]


class AttentionRows(Form):
    """Some rows of the maps."""

    form: Literal["rows"]
    rows: list[int]
    maps: ByHead[Annotated[Rows, Field(description="(rows, key) probabilities")]]


class Edges(Closed):
    """One head's strongest keys of every row."""

    keys: Annotated[Keys, Field(description="(units, k) the strongest, strongest first")]
    values: Annotated[Rows, Field(description="(units, k) their weights")]
    rest: Annotated[Vector, Field(description="(units,) what a row holds beyond them")]


class AttentionTop(Form):
    """The strongest keys of every row."""

    form: Literal["top"]
    edges: ByHead[Edges]


class AttentionBlocks(Form):
    """Maps pooled by blocks."""

    form: Literal["blocks"]
    maps: ByHead[Annotated[Rows, Field(description="(block, block) key sums, query means")]]


class Statistics(Closed):
    """Numbers that sum up each head's map."""

    fields: list[Annotated[str, one_of(FIELDS)]]
    values: ByHead[Annotated[Values, Field(description="as many as fields; null where none")]]


class AttentionStats(Form):
    """Statistics of maps."""

    form: Literal["stats"]
    stats: Statistics


class Dominated(Closed):
    """Which unit dominates one unit's row."""

    token: int
    dominant: int
    share: float
    own: float


class DominatedArrays(Closed):
    """The same of all units, as arrays."""

    token: EncodedArray
    dominant: EncodedArray
    share: EncodedArray
    own: EncodedArray


class AttentionDominance(Form):
    """Who dominates whom."""

    form: Literal["dominance"]
    dominance: ByHead[list[Dominated] | DominatedArrays]
    wins: Annotated[Counts, Field(description="(units,) others each dominates, over all heads")]


class AttentionRollout(Form):
    """Attention through layers."""

    form: Literal["rollout"]
    map: Annotated[Rows, Field(description="(query, key) through all layers asked")]


AttentionAnswer = Annotated[
    AttentionFull
    | AttentionRows
    | AttentionTop
    | AttentionBlocks
    | AttentionStats
    | AttentionDominance
    | AttentionRollout,
    Field(discriminator="form"),
]
