"""POST /v1/encode: our own wire, strict."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, LiteralString

from pydantic import (
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from model.config import Mode, Side
from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.api.dialect import Sent, Served
from service.api.own import FILE, FileCall, accepted, layout, question
from service.core import Layout
from service.encode import answer
from service.encode import request as encode
from service.encode.answer import Encoded
from service.encode.request import Smaller
from service.inputs import Attention, Floats, Gates, Inputs, SweepField, sweep_of
from service.wire import Integers, Wire

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

    def plain(self, layout: Layout) -> encode.Request:
        """Return it as encode/ knows it."""
        pooled = self.pooled
        return encode.Request(
            inputs=self.inputs,
            model=self.model,
            truncate=self.truncate,
            prompt_name=self.prompt_name,
            task=self.task,
            role=self._role(),
            pooled=pooled if isinstance(pooled, bool) else pooled.plain(),
            tokens=self.tokens,
            layers=self.layers,
            attention=self.attention,
            gates=self.gates,
            sweep=sweep_of(self.sweep),
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


class Encode(FileCall):
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


ROUTES = [
    question(
        "/v1/encode",
        "Encode texts, token ids or embeddings, with the attention asked for",
        EncodeRequest,
        parse,
        kind="Answer | Priced",
        answer_media=FILE,
    )
]
