"""What POST /v1/attend and POST /v1/explain answer, as types for the document of the API."""

from typing import Annotated, NotRequired

from pydantic import Field

from service.api.native.attention import Characters
from service.api.types import Closed, Provenance

ROWS, MAPS, BY_HEAD = "(tokens, width)", "(heads, query, key)", "(heads, tokens, head)"
Rows = list[list[float]]
Maps = list[list[list[float]]]
Scores = list[list[list[float | None]]]
Step = Annotated[Rows, Field(description=ROWS)]
Entered = Annotated[Rows, Field(description=f"{ROWS}, of pre-norm families: LayerNorm(x)")]
StepByHead = Annotated[Maps, Field(description=BY_HEAD)]


class Attended(Closed):
    """What POST /v1/attend answers."""

    probabilities: Annotated[Maps, Field(description=MAPS)]
    heads: Annotated[Maps, Field(description="(heads, query, d / heads): Z_1 .. Z_h")]
    concat: Annotated[Rows, Field(description="(query, d)")]


class Explained(Provenance):
    """What POST /v1/explain answers: a text's tokens, then every step of the layer."""

    dtype: str
    layer: int
    tokens: list[str]
    token_ids: list[int]
    offsets: list[Characters]
    words: list[int | None]
    segments: NotRequired[list[int]]
    special: list[bool]
    truncated: bool
    length: Annotated[int, Field(description="tokens before truncation")]
    shapes: Annotated[dict[str, list[int]], Field(description="every step's shape by its name")]
    x: Annotated[Rows, Field(description=f"{ROWS}: what enters the layer")]
    entered: NotRequired[Entered]
    q: StepByHead
    k: StepByHead
    v: StepByHead
    scores: Annotated[Scores, Field(description=f"{MAPS}; null beyond a window")]
    probabilities: Annotated[Maps, Field(description=MAPS)]
    z: Annotated[Maps, Field(description=f"{BY_HEAD}: Z_1 .. Z_h")]
    concat: Step
    projected: Annotated[Rows, Field(description=f"{ROWS}: after W_O")]
    normed: Annotated[Rows, Field(description=f"{ROWS}: LayerNorm(x + projected)")]
    feed_forward: Step
    output: Annotated[Rows, Field(description=f"{ROWS}: what the next layer reads")]
