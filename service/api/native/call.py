"""POST /v1/encode: our own wire, strict."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, Literal, LiteralString

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.config import Mode, Side
from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Reply, Sent, Served, answer_type
from service.api.native.heads import Attention, Gates, Patches, SweepField, swept
from service.encode import answer
from service.encode import request as encode
from service.encode.answer import JSON, SAFETENSORS, Encoded
from service.encode.request import MOST_SPANS, Floats, Layout, Smaller
from service.wire import Integers, Wire

# Lists that fail at their first error: a million errors would cost more than the request
Numbers = TypeAliasType("Numbers", Annotated[list[float], FailFast()])
Rows = TypeAliasType("Rows", Annotated[list[Numbers], FailFast()])


class Base64Array(Wire):
    """An array as base64 of its little-endian bytes."""

    shape: Integers
    """Length of each axis, tokens first: [tokens, embedding_width]."""
    dtype: Floats
    """Number format of the bytes."""
    data: str
    """Base64 of the little-endian bytes, row by row."""


def _as_array(rows: list[list[float]]) -> list[list[float]] | NDArray[np.float32]:
    """Return rows of one width as an array, an eighth the size of lists; others unchanged."""
    widths = {len(row) for row in rows} or {0}
    if len(widths) > 1:
        return rows
    with np.errstate(over="ignore"):  # what overflows float32 becomes inf, and is refused
        return np.array(rows, dtype=np.float32).reshape(len(rows), *widths)


def _embeddings_tag(value: object) -> str:
    return "<numbers>" if isinstance(value, list) else "<base64>"


Embeddings = TypeAliasType(
    "Embeddings",
    Annotated[
        Annotated[Rows, AfterValidator(_as_array), Tag("<numbers>")]
        | Annotated[Base64Array, Tag("<base64>")],
        Discriminator(_embeddings_tag),
    ],
)


CUT: LiteralString = (
    "expected spans in characters, such as [[0, 120], [120, 260]]; the service cuts no text itself"
)
ENDS: LiteralString = "expected [start, end] of each span, from 0 on, the start before the end"
MANY: LiteralString = "it holds {count} spans, and the limit is {most}"
EMPTY: LiteralString = "a span ends where it starts"
ORDER: LiteralString = "expected spans in the order of their starts; they may overlap"


def _few(value: Any) -> Any:
    """Refuse words, and more spans than are worth checking."""
    if isinstance(value, str):
        raise PydanticCustomError("spans_by_name", CUT)
    if isinstance(value, list) and len(value) > MOST_SPANS:
        size = {"count": f"{len(value):,}", "most": f"{MOST_SPANS:,}"}
        raise PydanticCustomError("span_count", MANY, size)
    return value


def _in_order(spans: list[list[int]]) -> list[list[int]]:
    if not all(len(span) == 2 and 0 <= span[0] <= span[1] for span in spans):
        raise PydanticCustomError("span_ends", ENDS)
    if any(start == end for start, end in spans):
        raise PydanticCustomError("span_empty", EMPTY)
    if [*spans] != sorted(spans, key=lambda span: span[0]):
        raise PydanticCustomError("span_ends", ORDER)
    return spans


Ends = TypeAliasType("Ends", Annotated[list[int], FailFast()])
Spans = TypeAliasType(
    "Spans",
    Annotated[
        list[Ends],
        FailFast(),
        AfterValidator(_in_order),
        BeforeValidator(_few, json_schema_input_type=list[list[int]]),
    ],
)


class Item(Wire):
    """One input: a text or pair of texts, token ids used as given, or embeddings."""

    text: str | None = None
    """The text, at most `max_text_characters` characters."""
    pair: str | None = None
    """A second text, which the tokenizer joins to `text` as its second segment."""
    token_ids: Integers | None = None
    """Token ids, used as given: the service adds no special tokens."""
    token_type_ids: Integers | None = None
    """The segment of each of `token_ids`, counted from 0; 0 for all where left out."""
    embeddings: Embeddings | None = None
    """A vector for each token, which replaces the look-up in the table of words, (tokens,
    embedding_width); the model adds positions and the rest."""
    spans: Spans | None = None
    """Parts of `text`, each [start, end) in characters, in the order of their starts, that get a
    vector each: pooled as the whole is, over their own tokens, none of which is special."""
    gates: Gates | None = None
    """Heads to scale or drop in this input, besides the request's and in place of those of the same
    heads."""
    patch: Patches | None = None
    """Heads whose output is taken from another input of the request, in place of the request's
    gates of the same heads."""

    @model_validator(mode="after")
    def _exactly_one(self) -> "Item":
        kinds = [self.text, self.token_ids, self.embeddings]
        lone_pair = self.pair is not None and self.text is None
        lone_types = self.token_type_ids is not None and self.token_ids is None
        lone_spans = self.spans is not None and (self.text is None or self.pair is not None)
        wrong = lone_pair or lone_types or lone_spans
        if sum(value is not None for value in kinds) != 1 or wrong:
            raise PydanticCustomError("exactly_one_input", self._kinds())
        return self

    def _kinds(self) -> LiteralString:
        """Say which rule on combining fields is broken."""
        if self.text is None and self.pair is not None:
            return 'a "pair" goes with a "text"'
        if self.token_ids is None and self.token_type_ids is not None:
            return '"token_type_ids" go with "token_ids"'
        if self.text is not None and self.pair is not None and self.spans is not None:
            return '"spans" go with a "text" without a "pair"'
        if self.text is None and self.spans is not None:
            return '"spans" go with a "text"'
        return 'expected exactly one of "text", "token_ids" and "embeddings"'

    def plain(self) -> encode.Input:
        """Return it as encode/ knows it."""
        vectors = self.embeddings
        return encode.Input(
            self.text,
            self.pair,
            self.token_ids,
            self.token_type_ids,
            encode.Base64(**dict(vectors)) if isinstance(vectors, Base64Array) else vectors,
            self.spans,
            [gate.plain() for gate in self.gates or ()],
            [patch.plain() for patch in self.patch or ()],
        )


def as_input(value: str | Item) -> encode.Input:
    """Return an input as encode/ knows it."""
    return encode.Input(value) if isinstance(value, str) else value.plain()


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Item, Tag("<item>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<item>"),
]
Inputs = TypeAliasType("Inputs", Annotated[list[Input], FailFast()])

LENGTH_1: LiteralString = '"int8" and "uint8" are steps of vectors of length 1, "normalize": true'


class Pooled(Wire):
    """How one vector is made of a sequence; what is left out is the checkpoint's own."""

    mode: Literal["model"] | Mode = "model"
    """How token vectors become one; "model" is the checkpoint's own way, `pooling` of GET /info."""
    normalize: bool | None = None
    """Whether the vector is scaled to length 1; left out or null: as the checkpoint does,
    `normalize` of GET /info, whatever the mode."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """How many numbers to keep, the first ones, at most `width`; the vector is cut, then scaled
    where `normalize` says so. Left out or null: the `truncate_dim` that the checkpoint stores, else
    all."""
    precision: Literal["float", Smaller] = "float"
    """How vectors are written, those of spans too: in `dtype`, or in fewer bytes as int8 or uint8,
    one for each number ("int8", "uint8") or for eight of them ("binary", "ubinary"). They are made
    of vectors of length 1, where `normalize` is left out."""

    @model_validator(mode="after")
    def _of_length_1(self) -> "Pooled":
        if self.precision in ("int8", "uint8") and self.normalize is False:
            raise PydanticCustomError("steps_of_length_1", LENGTH_1)
        return self

    def plain(self) -> encode.Pooled:
        """Return it as encode/ knows it."""
        if self.precision == "float":
            return encode.Pooled(self.mode, self.normalize, self.dimensions)
        normalize = True if self.normalize is None else self.normalize
        return encode.Pooled(self.mode, normalize, self.dimensions, self.precision)


class Classify(Wire):
    """How classes are scored."""

    activation: Literal["default", "softmax", "sigmoid", "none"] = "default"
    """What makes scores of logits; "default" is the checkpoint's own."""


class LabelTokens(Wire):
    """What labels stand for."""

    level: Level = "token"
    """Whether each token has a label, or each word: that of its first token."""


class Sparse(Wire):
    """Which weights of a sparse vector are answered."""

    k: Annotated[int, Field(ge=1)] | None = None
    """The largest so many; left out or null: all."""
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weights above it alone."""
    role: Side | None = None
    """Which side of a search: the text gets that side's prompt. Left out: the checkpoint's default
    prompt."""


class MultiVector(Wire):
    """How inputs are read that get many vectors."""

    role: Side = "document"
    """Which side of a late interaction: texts get its marker and its longest length; queries are
    filled up, and documents have no vector for the tokens of the checkpoint's skiplist."""


BY_KIND = Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<how>")
Switch = Annotated[bool, Tag("<switch>")]
ClassifyField = Annotated[Switch | Annotated[Classify, Tag("<how>")], BY_KIND]
LabelTokensField = Annotated[Switch | Annotated[LabelTokens, Tag("<how>")], BY_KIND]
SparseField = Annotated[Switch | Annotated[Sparse, Tag("<how>")], BY_KIND]
MultiVectorField = Annotated[Switch | Annotated[MultiVector, Tag("<how>")], BY_KIND]


class EncodeRequest(Wire):
    """The body of POST /v1/encode."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Inputs
    """What to encode: 1 to `max_sequences` texts, pairs, token ids and embeddings, mixed."""
    truncate: Truncate | None = None
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""
    pooled: Annotated[
        Annotated[bool, Tag("<switch>")] | Annotated[Pooled, Tag("<how>")],
        Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<how>"),
    ] = True
    """Whether to answer one vector for each input, and how it is made; true: the checkpoint's own
    way."""
    tokens: bool = False
    """Whether to answer the last layer's vector of each token, special tokens included."""
    layers: Integers = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Hidden states to answer: 0 is the embeddings, i the output of i layers, -1 the last."""
    attention: Attention | None = None
    """What to show of the attention; left out or null: nothing, and nothing is computed for it."""
    gates: Gates = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Heads to scale or drop, in this request alone."""
    sweep: SweepField | None = None
    """Heads to scale one at a time, "heads" for all of them: how far each moves the vector, and
    with `classify` the logits."""
    classify: ClassifyField = False
    """Whether to answer the classes of each input, pairs included, of a checkpoint that has
    them: "classify" stands in `tasks` of GET /info."""
    label_tokens: LabelTokensField = False
    """Whether to answer a label for each token or word; "label_tokens" in `tasks`."""
    sparse: SparseField = False
    """Whether to answer weights over the vocabulary; "sparse" in `tasks`."""
    multi_vector: MultiVectorField = False
    """Whether to answer a vector for each token that is kept, of inputs read as documents or as
    queries; "multi_vector" in `tasks`."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: the task's instruction or,
    without one, `default_prompt_name` of GET /info."""
    task: str | None = None
    """The adapter that is added to the model, by its name alone: a task of the checkpoint's own,
    such as "retrieval.query", or one of `--adapter`. Left out: the one that `model` names, or
    none."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""
    dtype: Floats = "float32"
    """Number format of vectors; `attention` has its own."""

    def plain(self, layout: encode.Layout) -> encode.Request:
        """Return it as encode/ knows it."""
        pooled = self.pooled
        return encode.Request(
            inputs=[as_input(value) for value in self.inputs],
            model=self.model,
            truncate=self.truncate,
            prompt_name=self.prompt_name,
            task=self.task,
            role=self._role(),
            pooled=pooled if isinstance(pooled, bool) else pooled.plain(),
            tokens=self.tokens,
            layers=self.layers,
            attention=self.attention.plain() if self.attention else None,
            gates=[gate.plain() for gate in self.gates],
            sweep=swept(self.sweep) if self.sweep else None,
            tasks=self._tasks(),
            dtype=self.dtype,
            encoding=self.encoding,
            layout=layout,
        )

    def _role(self) -> Side | None:
        """Return the side that the inputs are encoded for."""
        role: Side | None = "document" if self.multi_vector is True else None
        for how in (self.sparse, self.multi_vector):
            role = role if isinstance(how, bool) else how.role
        return role

    def _tasks(self) -> list[encode.Wanted]:
        """Return the tasks that it asks for."""
        tasks: list[encode.Wanted] = []
        if how := self.classify:
            tasks.append(encode.Classify() if how is True else encode.Classify(how.activation))
        if labels := self.label_tokens:
            tasks.append(
                encode.LabelTokens() if labels is True else encode.LabelTokens(labels.level)
            )
        if sparse := self.sparse:
            own = () if sparse is True else (sparse.k, sparse.threshold)
            tasks.append(encode.Sparse(*own))
        return [*tasks, encode.MultiVector()] if self.multi_vector else tasks


class NativeCall(JSONCall):
    """A request of one of our own routes, answered in JSON or as a safetensors file."""

    @abstractmethod
    def file(self, encoded: Encoded) -> Iterator[bytes]:
        """Return the answer as a file, in pieces."""

    def at_once(self, encoded: Encoded) -> Reply | None:
        return None if self.media_type == SAFETENSORS else super().at_once(encoded)

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        return (self.file if self.media_type == SAFETENSORS else super().pieces)(encoded)


class Encode(NativeCall):
    """A request of POST /v1/encode."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        return answer.tree(encoded)

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        return answer.as_safetensors(encoded)


def parse(body: bytes, sent: Sent, served: Served) -> Encode:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept = accepted(sent)
    request = EncodeRequest.model_validate_json(body)
    written = layout(request.encoding, accept)
    return Encode(request=request.plain(written), media_type=accept)


def accepted(sent: Sent) -> str:
    """Return the media type to answer in.

    Raises:
        Refused: the client accepts neither.
    """
    return answer_type(sent.headers.get("accept", "*/*"))


def layout(encoding: str, accept: str) -> Layout:
    """Return how the arrays of an answer are written."""
    return Layout() if accept == JSON and encoding == "json" else Layout(numbers=())
