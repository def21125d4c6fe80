"""What POST /v1/attend and POST /v1/explain answer, as types for the document of the API."""

from typing import Annotated, NotRequired

from service.api.native.attention import Characters
from service.api.types import Closed, Provenance, about

ROWS, MAPS, BY_HEAD = "(tokens, width)", "(heads, query, key)", "(heads, tokens, head)"
Rows = list[list[float]]
Maps = list[list[list[float]]]
Scores = list[list[list[float | None]]]


class Attended(Closed):
    """What POST /v1/attend answers."""

    probabilities: Annotated[
        Maps, about(f"Each query's share for each key, {MAPS}; rows sum to 1.")
    ]
    heads: Annotated[
        Maps, about("What each head mixes, Z_0 .. Z_(h-1), (heads, query, d / heads).")
    ]
    concat: Annotated[Rows, about("The heads side by side, (query, d).")]


class ByHead(Closed):
    """A linear's weights, cut by head."""

    weight: Annotated[Maps, about("One matrix for each head, W_i, (heads, width, head).")]
    bias: NotRequired[
        Annotated[Rows, about("One vector for each head, b_i, (heads, head); where there is one.")]
    ]


class Linear(Closed):
    """A linear's weights."""

    weight: Annotated[Rows, about("The matrix, (inputs, outputs).")]
    bias: NotRequired[Annotated[list[float], about("The vector, (outputs,); where there is one.")]]


class Norm(Closed):
    """What LayerNorm multiplies by and adds."""

    weight: Annotated[list[float], about("What each number is multiplied by, (width,).")]
    bias: NotRequired[
        Annotated[list[float], about("What is added to each, (width,); where there is such.")]
    ]


class Parameters(Closed):
    """The weights of a layer but for its feed-forward block's, by the step that they make."""

    eps: Annotated[float, about("What LayerNorm adds to a variance.")]
    q: Annotated[ByHead, about("q[i] = x @ weight[i] + bias[i]; before any rotation.")]
    k: Annotated[ByHead, about("k[i] = x @ weight[i] + bias[i]; before any rotation.")]
    v: Annotated[ByHead, about("v[i] = x @ weight[i] + bias[i].")]
    projected: Annotated[Linear, about("projected = concat @ weight + bias.")]
    entered: NotRequired[Annotated[Norm, about("entered = LayerNorm(x); of pre-norm families.")]]
    normed: Annotated[Norm, about("normed = LayerNorm(x + projected).")]
    output: NotRequired[
        Annotated[
            Norm, about("output = LayerNorm(normed + feed_forward), or of the sum in its place.")
        ]
    ]


class Explained(Provenance):
    """What POST /v1/explain answers: a text's tokens, then every step of the layer."""

    dtype: Annotated[str, about("Number format of the steps.")]
    layer: Annotated[int, about("The layer, counted from 0.")]
    tokens: Annotated[list[str], about("The tokens, special ones included.")]
    token_ids: Annotated[list[int], about("Each token's place in the vocabulary.")]
    offsets: Annotated[
        list[Characters],
        about(
            "Where each token stands in its text, in characters: [start, end); [0, 0] if special."
        ),
    ]
    words: Annotated[
        list[int | None], about("The word of each token, counted from 0; null for a special token.")
    ]
    segments: NotRequired[
        Annotated[list[int], about("Of a pair: which text each token is of, 0 or 1.")]
    ]
    special: Annotated[list[bool], about("Whether the tokenizer added each token.")]
    truncated: Annotated[bool, about("Whether the text was cut.")]
    length: Annotated[int, about("Tokens before it was cut.")]
    shapes: Annotated[dict[str, list[int]], about("Every step's shape by its name.")]
    x: Annotated[Rows, about(f"What enters the layer, {ROWS}.")]
    entered: NotRequired[
        Annotated[Rows, about(f"LayerNorm(x), {ROWS}; of pre-norm families alone.", [[0.31, -1.2]])]
    ]
    q: Annotated[Maps, about(f"Queries, {BY_HEAD}.")]
    k: Annotated[Maps, about(f"Keys, {BY_HEAD}.")]
    v: Annotated[Maps, about(f"Values, {BY_HEAD}.")]
    scores: Annotated[
        Scores, about(f"q k^T / sqrt(head), with a bias of distance, {MAPS}; null beyond a window.")
    ]
    probabilities: Annotated[Maps, about(f"softmax(scores), {MAPS}; rows sum to 1.")]
    z: Annotated[Maps, about(f"probabilities v, Z_0 .. Z_(h-1), {BY_HEAD}.")]
    concat: Annotated[Rows, about(f"The heads side by side, {ROWS}.")]
    projected: Annotated[Rows, about(f"concat W_O, {ROWS}.")]
    normed: Annotated[Rows, about(f"LayerNorm(x + projected), {ROWS}.")]
    feed_forward: Annotated[Rows, about(f"The feed-forward block's output, {ROWS}.")]
    output: Annotated[Rows, about(f"What the next layer reads, {ROWS}.")]
    parameters: NotRequired[Annotated[Parameters, about("The weights, where the request says so.")]]
