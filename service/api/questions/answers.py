"""What POST /v1/similarity and POST /v1/maxsim answer, as types for the document of the API."""

from typing import Annotated, NotRequired

from service.api.native.answers import InputTokens, Usage
from service.api.native.attention import (
    Characters,
    EncodedArray,
    Rows,
    SweptScore,
    Units,
    Vector,
)
from service.api.types import Closed, Provenance, about
from service.encode.request import Floats

Indices = list[int] | EncodedArray


class LeftText(InputTokens, Units):
    """The left text; its tokens come with shares."""

    truncated: Annotated[bool, about("Whether the input was cut.")]
    length: Annotated[int, about("Tokens before it was cut.")]


class PairColumns(Closed):
    """The strongest pairs as columns, where the request's encoding is base64."""

    left: Annotated[Indices, about("The token or word of the left text, counted from 0.")]
    right: Annotated[Indices, about("The token or word of the right text, counted from 0.")]
    shares: Annotated[Vector, about("What the pair adds to the score.")]


class Shown(Closed, total=False):
    """What makes a score; the form says what comes."""

    matrix: Annotated[
        Rows,
        about("Of the form full: what each pair adds to the score, (left, right)."),
    ]
    pairs: Annotated[
        list[tuple[int, int, float]] | PairColumns,
        about("Of the form top: the pairs of the largest shares, [left, right, share]."),
    ]
    left_share: Annotated[
        Vector, about("What each row adds to the score, over all columns, (left,).")
    ]
    right_share: Annotated[
        Vector, about("What each column adds to the score, over all rows, (right,).")
    ]
    rest: Annotated[
        float, about("The part of the score that the matrix, or the pairs listed, do not hold.")
    ]
    bias: Annotated[
        float,
        about(
            "Of a model with Dense layers: the part of `rest` that their bias adds, whatever the "
            "texts say.",
            0.0021,
        ),
    ]


class RightText(LeftText, Shown):
    """One text that the left one is compared with."""

    score: Annotated[float, about("The cosine of the two pooled vectors.")]
    sweep: NotRequired[Annotated[SweptScore, about("What scaling each head alone does.")]]


class Compared(Provenance):
    """What POST /v1/similarity answers."""

    dtype: Annotated[Floats, about("Number format of the shares.")]
    left: Annotated[LeftText, about("The left text.")]
    right: Annotated[list[RightText], about("One entry for each text on the right, in order.")]
    usage: Annotated[Usage, about("What the request took.")]


class MatchText(Closed):
    """A text of a late interaction, and its tokens, those of its marker and filling included."""

    tokens: Annotated[
        list[str | None] | None,
        about("The tokens; null of embeddings.", ["[CLS]", "[D] ", "well", "[SEP]"]),
    ]
    token_ids: Annotated[
        list[int] | None,
        about("Each token's place in the vocabulary; null of embeddings.", [101, 2, 2092, 102]),
    ]
    offsets: Annotated[
        list[Characters] | None,
        about(
            "Where each token stands in its text, [start, end); null where the input is no text.",
            [[0, 0], [0, 0], [0, 4], [0, 0]],
        ),
    ]
    words: Annotated[
        list[int | None] | None,
        about("The word of each token; null for a special token.", [None, None, 0, None]),
    ]
    special: Annotated[
        list[bool] | None,
        about("Whether each token is a special one.", [True, True, False, True]),
    ]
    truncated: Annotated[bool, about("Whether the input was cut.", False)]
    length: Annotated[int, about("Tokens before it was cut.", 4)]


class MatchColumns(Closed):
    """The matches as columns, where the request's encoding is base64."""

    query: Annotated[Indices, about("The token of the query, counted from 0.", [0, 1])]
    document: Annotated[Indices, about("The token of the document, counted from 0.", [0, 2])]
    values: Annotated[Vector, about("The product of their vectors.", [0.93, 0.71])]


class Result(MatchText):
    """One document's score, and what makes it."""

    index: Annotated[int, about("Its place among the documents, counted from 0.", 1)]
    score: Annotated[float, about("The sum of the values of its matches.", 23.4)]
    matches: Annotated[
        list[tuple[int, int, float]] | MatchColumns,
        about(
            "The document's token that is most like each token of the query, [query token, "
            "document token, value]; of equal ones the first.",
            [[0, 0, 0.93], [1, 2, 0.71]],
        ),
    ]


class Matched(Provenance):
    """What POST /v1/maxsim answers."""

    dtype: Annotated[Floats, about("Number format of the values.", "float32")]
    query: Annotated[MatchText, about("The query.")]
    results: Annotated[list[Result], about("The documents, best first.")]
    usage: Annotated[Usage, about("What the request took.")]
