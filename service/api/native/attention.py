"""What an answer shows of arrays and of attention, as types for the document of the API."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from model.maps.choices import FIELDS
from service.api.types import Closed, about, one_of


class EncodedArray(Closed):
    """A whole array, where the request's encoding is base64."""

    shape: Annotated[list[int], about("Length of each axis.")]
    dtype: Annotated[Literal["float32", "float16", "int32"], about("Number format of the bytes.")]
    data: Annotated[str, about("Base64 of the little-endian bytes, row by row.")]


Vector = list[float] | EncodedArray
Rows = list[list[float]] | EncodedArray
Counts = list[int] | EncodedArray
Keys = list[list[int]] | EncodedArray
Values = list[float | None] | EncodedArray
Tokens = Annotated[Rows, about("(tokens, width)")]
# no tuples: few readers of OpenAPI know prefixItems
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
Characters = Annotated[Pair, about("[start, end)")]
Span = Annotated[Pair, about("tokens, [first, last)")]
Of = TypeVar("Of")
ByHead = dict[str, dict[str, Of]]  # keyed by layer, then head, both counted from 0
BY_HEAD = "keyed by layer, then head, both counted from 0"


class Units(Closed, total=False):
    """What rows and columns are, where they are not all tokens in order."""

    axis: Annotated[
        list[int],
        about(
            "Where special tokens are dropped: which token or word each row and column is.",
            [1, 2, 3],
        ),
    ]
    spans: Annotated[
        list[Span],
        about(
            "At word level: the tokens of each word, [first, last), counted from 0.",
            [[0, 1], [1, 3], [3, 4]],
        ),
    ]


class SweptInput(Closed, total=False):
    """What each head is worth to one input, by what scaling it alone does."""

    cosine: Annotated[
        ByHead[float],
        about(f"Of the vector with the head scaled and the untouched one, {BY_HEAD}."),
    ]
    logits: Annotated[
        ByHead[list[float]],
        about(
            f"With `classify`: how each class's logit changes, {BY_HEAD}.",
            {"1": {"2": [-0.0312, 0.0107]}},
        ),
    ]


class SweptScore(Closed):
    """What each head is worth to a similarity."""

    change: Annotated[
        ByHead[float],
        about(f"Of the score, when the head is scaled in both texts, {BY_HEAD}."),
    ]


class Form(Units):
    """What every form of attention says of itself."""

    path: Annotated[
        Literal["fused", "exact"],
        about("What computed it: the fused kernel's own normaliser, or the slower exact way."),
    ]


class AttentionFull(Form):
    """Whole maps."""

    form: Annotated[Literal["full"], about("The form.")]
    maps: Annotated[
        ByHead[Rows], about(f"Probabilities, (query, key), {BY_HEAD}; each row sums to 1.")
    ]


class AttentionRows(Form):
    """Some rows of the maps."""

    form: Annotated[Literal["rows"], about("The form.")]
    rows: Annotated[list[int], about("The queries shown, in the order of the request.")]
    maps: Annotated[ByHead[Rows], about(f"Probabilities, (rows, key), {BY_HEAD}.")]


class Edges(Closed):
    """One head's strongest keys of every row."""

    keys: Annotated[Keys, about("The keys of each row, strongest first, (query, k).")]
    values: Annotated[Rows, about("Their weights, (query, k).")]
    rest: Annotated[Vector, about("What each row holds beyond them, (query,).")]


class AttentionTop(Form):
    """The strongest keys of every row."""

    form: Annotated[Literal["top"], about("The form.")]
    edges: Annotated[ByHead[Edges], about(f"The strongest keys, {BY_HEAD}.")]


class AttentionBlocks(Form):
    """Maps pooled by blocks."""

    form: Annotated[Literal["blocks"], about("The form.")]
    maps: Annotated[
        ByHead[Rows],
        about(f"Sums over a block's keys, means over its queries, (block, block), {BY_HEAD}."),
    ]


class Statistics(Closed):
    """Numbers that sum up each head's map."""

    fields: Annotated[list[Annotated[str, one_of(FIELDS)]], about("What each number is.")]
    values: Annotated[
        ByHead[Values],
        about(f"A number for each field, {BY_HEAD}; null with nothing to average over."),
    ]


class AttentionStats(Form):
    """Statistics of maps."""

    form: Annotated[Literal["stats"], about("The form.")]
    stats: Annotated[Statistics, about("The statistics of each head.")]


class Dominated(Closed):
    """Which token or word dominates another's row."""

    token: Annotated[int, about("The one whose row it is, counted from 0.")]
    dominant: Annotated[int, about("The one that it takes most from, counted from 0.")]
    share: Annotated[float, about("That one's share of the row, 0 to 1.")]
    own: Annotated[float, about("The row's own share of itself, 0 to 1.")]


class DominatedArrays(Closed):
    """The same of all rows, as arrays."""

    token: Annotated[EncodedArray, about("The one whose row each is, counted from 0, (query,).")]
    dominant: Annotated[
        EncodedArray, about("The one that each takes most from, counted from 0, (query,).")
    ]
    share: Annotated[EncodedArray, about("That one's share of each row, 0 to 1, (query,).")]
    own: Annotated[EncodedArray, about("Each row's own share of itself, 0 to 1, (query,).")]


class AttentionDominance(Form):
    """Who dominates whom."""

    form: Annotated[Literal["dominance"], about("The form.")]
    dominance: Annotated[
        ByHead[list[Dominated] | DominatedArrays], about(f"Of every row, {BY_HEAD}.")
    ]
    wins: Annotated[
        Counts, about("How many others each token or word dominates, over all heads shown.")
    ]


class AttentionRollout(Form):
    """Attention through layers."""

    form: Annotated[Literal["rollout"], about("The form.")]
    map: Annotated[
        Rows, about("One map through all layers shown, (query, key); keyed by no layer and head.")
    ]


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
