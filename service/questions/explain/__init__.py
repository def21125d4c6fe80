"""The wire of POST /v1/attend and POST /v1/explain: request models, strict."""

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, FiniteFloat, Tag, TypeAdapter
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.shapes.answer import Answer
from service.shapes.ask import Ask
from service.shapes.inputs import Texts
from service.tables.wording.wire import Wire, request_adapter

# Lists that fail at their first error, as in schema.py; finite: a softmax spreads one NaN to all
Finite = TypeAliasType("Finite", Annotated[list[FiniteFloat], FailFast()])
FiniteRows = TypeAliasType("FiniteRows", Annotated[list[Finite], FailFast()])
RowsByHead = TypeAliasType("RowsByHead", Annotated[list[FiniteRows], FailFast()])
Switches = TypeAliasType("Switches", Annotated[list[bool], FailFast()])
Mask = TypeAliasType("Mask", Annotated[list[Switches], FailFast()])
MaskByHead = TypeAliasType("MaskByHead", Annotated[list[Mask], FailFast()])
Count = Annotated[int, Field(ge=1)]


def _tag_depth(value: object) -> str:
    """Return the tag of numbers by query and key: "<once>" for all heads, or "<by head>"."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return "<by head>" if depth == 3 else "<once>"


# (query, key) for all heads alike, or (heads, query, key)
PerPair = Annotated[
    Annotated[FiniteRows, Tag("<once>")] | Annotated[RowsByHead, Tag("<by head>")],
    Discriminator(_tag_depth),
]
MaskPerPair = Annotated[
    Annotated[Mask, Tag("<once>")] | Annotated[MaskByHead, Tag("<by head>")],
    Discriminator(_tag_depth),
]


class AttendRequest(Wire):
    """Queries, keys and values: softmax(Q_i K_i^T / sqrt(d / heads) + bias) V_i for each head i."""

    query: FiniteRows
    """One row for each query, (query, d)."""
    key: FiniteRows
    """One row for each key, (key, d)."""
    value: FiniteRows
    """One row for each key, (key, d of the values)."""
    heads: Count = 1
    """How many heads share d, which it divides evenly."""
    mask: MaskPerPair | None = None
    """Where a query may look: true = may attend. (query, key) for all heads or (heads, query,
    key); left out: everywhere."""
    bias: PerPair | None = None
    """What is added to the scores, (query, key) for all heads or (heads, query, key)."""


class MixRequest(Wire):
    """Scores, or what a softmax has made of them, and values."""

    scores: PerPair
    """Each query's score of each key, (query, key) for all heads or (heads, query, key)."""
    value: FiniteRows
    """One row for each key, (key, d of the values)."""
    probabilities: bool = False
    """Whether the scores are probabilities already: no softmax, and every row must sum to 1."""
    heads: Count | None = None
    """How many heads share d; left out: as many as the scores have, or 1."""


class ExplainRequest(Ask):
    """The body of POST /v1/explain: a text, and the layer it is followed through."""

    question: ClassVar = "service.questions.explain.question:Explain"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    task: str | None = None
    """The adapter that is added to the model, as in POST /v1/encode."""
    text: str
    """The text, at most `max_text_characters` characters."""
    pair: str | None = None
    """A second text, which the tokenizer joins to `text` as its second segment."""
    layer: int
    """The layer, counted from 0."""
    weights: bool = False
    """Whether to answer `parameters` too: the weights that make q, k, v, the attention's output
    and the norms. Refused where they are more than an answer may hold, as those of large models
    are."""
    truncate: Truncate | None = None
    """What happens to a text of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""

    def texts(self) -> Texts:
        return [self.text if self.pair is None else (self.text, self.pair)]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        (item,) = encoded.items
        return {**encoded.preamble, **item.facts, **item.maps}


AnyAttendRequest = AttendRequest | MixRequest


# the body of POST /v1/attend
AttendBody = Annotated[
    Annotated[AttendRequest, Tag("<attend>")] | Annotated[MixRequest, Tag("<mix>")],
    Discriminator(
        lambda body: "<mix>" if isinstance(body, dict) and "scores" in body else "<attend>"
    ),
]
ATTEND_ADAPTER: TypeAdapter[AnyAttendRequest] = request_adapter(AttendBody)
