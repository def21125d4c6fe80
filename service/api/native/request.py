"""The native wire: request models, strict."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, LiteralString, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    InstanceOf,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.config import Mode
from model.maps.choices import Form, Level, Specials, Weight
from model.task_heads import Side as Role
from model.task_heads import Task
from model.text.tokenizer import Truncate
from service.api.native.heads import (
    Gates,
    Heads,
    Indices,
    Integers,
    Patches,
    SweepField,
)
from service.api.native.tasks import (
    ClassifyField,
    LabelTokensField,
    MultiVectorField,
    SparseField,
)
from service.encode.questions.spans import Spans
from service.wire import Wire
from service.wording.fault import Loc

Floats = Literal["float32", "float16"]
MOST_WORD = 100  # characters of a row's word; BERT's tokenizer reads no longer one
# Lists that stop at their first error: a million errors would cost more than the request
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
    """Rows of one width as an array, an eighth of what lists take; others as they are."""
    widths = {len(row) for row in rows} or {0}
    if len(widths) > 1:
        return rows
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused
        return np.array(rows, dtype=np.float32).reshape(len(rows), *widths)


def _embeddings_tag(value: object) -> str:
    if isinstance(value, np.ndarray):
        return "<array>"
    return "<numbers>" if isinstance(value, list) else "<base64>"


# No JSON can hold the array: it is how a binary wire hands over what it read
Embeddings = TypeAliasType(
    "Embeddings",
    Annotated[
        Annotated[Rows, AfterValidator(_as_array), Tag("<numbers>")]
        | Annotated[Base64Array, Tag("<base64>")]
        | Annotated[SkipJsonSchema[InstanceOf[NDArray[Any]]], Tag("<array>")],
        Discriminator(_embeddings_tag),
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
    """Heads to scale or drop in this input: beside the request's, and in place of those of the
    same heads."""
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
        """What goes with what, where it does not."""
        if self.text is None and self.pair is not None:
            return 'a "pair" goes with a "text"'
        if self.token_ids is None and self.token_type_ids is not None:
            return '"token_type_ids" go with "token_ids"'
        if self.text is not None and self.pair is not None and self.spans is not None:
            return '"spans" go with a "text" without a "pair"'
        if self.text is None and self.spans is not None:
            return '"spans" go with a "text"'
        return 'expected exactly one of "text", "token_ids" and "embeddings"'

    @property
    def kind(self) -> str:
        """Which of the three it is: text, tokens or embeddings."""
        if self.text is not None:
            return "text"
        return "tokens" if self.token_ids is not None else "embeddings"


class Text(NamedTuple):
    """A text sent as a string, read as an Item is; to make one of those takes ten times as long."""

    text: str
    pair: None = None
    token_ids: None = None
    token_type_ids: None = None
    embeddings: None = None
    spans: None = None
    gates: None = None
    patch: None = None


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Item, Tag("<item>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<item>"),
]
Inputs = TypeAliasType("Inputs", Annotated[list[Input], FailFast()])


class Pooled(Wire):
    """How one vector is made of a sequence; what is left out is the checkpoint's own."""

    mode: Literal["model"] | Mode = "model"
    """How token vectors become one; "model" is the checkpoint's own way, `pooling` of GET /info."""
    normalize: bool | None = None
    """Whether the vector is scaled to length 1; left out or null: as the checkpoint does,
    `normalize` of GET /info, whatever the mode."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """How many numbers to keep, the first ones, at most `width`; the vector is cut, then scaled
    where `normalize` says so."""


def _of_a_text(word: str) -> str:
    if not 0 < len(word) <= MOST_WORD:
        size = {"most": MOST_WORD}
        raise PydanticCustomError("index_out_of_range", "a word has 1 to {most} characters", size)
    return word


Word = Annotated[str, AfterValidator(_of_a_text), Field(json_schema_extra={"maxLength": MOST_WORD})]
Row = Annotated[
    Annotated[int, Tag("<number>")] | Annotated[Word, Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
]
RowNames = TypeAliasType("RowNames", Annotated[list[Row], FailFast()])


FORM_ROWS: LiteralString = '"rows" goes with "form": "rows"'
ROWS: LiteralString = '"form": "rows" needs "rows", a list such as [0, 2]'
NUMBER_AND_FORM: dict[str, LiteralString] = {
    "k": '"k" goes with "form": "top"',
    "size": '"size" goes with "form": "blocks"',
}
WEIGHT_AND_FORM: LiteralString = '"weight": "value_norm" goes with "form": "top" or "dominance"'


class Attention(Wire):
    """What to show of the attention."""

    layers: Indices = "all"
    """The layers to show, counted from 0, or from the last by negative numbers."""
    heads: Heads = "all"
    """The heads to show, counted from 0: of every layer the same, or by layer, {"5": [11]}, or by
    name, "L5H11" or a list of such; the latter two choose the layers too."""
    form: Form = "full"
    """What to make of the maps: whole maps, some rows, the strongest keys of every row, blocks,
    statistics, who dominates whom, or one map through all layers."""
    rows: RowNames = []
    """Of the form rows, which needs it: the queries to show, tokens or words counted from 0, or
    words of the text, "it", each of which must stand there once; a word of several tokens is the
    rows of all of them."""
    k: Annotated[int, Field(ge=1)] | None = None
    """Of the form top: how many keys to show of each row; 8 where left out."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Of the form blocks: the most blocks along a side; 32 where left out."""
    weight: Weight | None = None
    """Of the forms top and dominance: what a key's weight is, its probability or the length of
    what its value adds. Left out: probability for top, value_norm for dominance."""
    level: Level = "token"
    """What a row and a column are. A word sums over its keys and averages over its queries."""
    specials: Specials = "keep"
    """What happens to special tokens. "drop" removes their rows and columns, so that rows sum to
    less than 1; "renormalize" scales what is left to 1 again."""
    dtype: Floats = "float32"
    """Number format of the maps, and what their bytes are counted in."""

    @model_validator(mode="after")
    def _of_its_form(self) -> "Attention":
        """What a form does not read is refused: whoever sends it expects it to do something."""
        if (self.form == "rows") != bool(self.rows):
            raise PydanticCustomError("rows_and_form", FORM_ROWS if self.rows else ROWS)
        for name, form in (("k", "top"), ("size", "blocks")):
            if getattr(self, name) is not None and self.form != form:
                raise PydanticCustomError("number_and_form", NUMBER_AND_FORM[name])
        if self.weight == "value_norm" and self.form not in ("top", "dominance"):
            raise PydanticCustomError("weight_and_form", WEIGHT_AND_FORM)
        return self

    @field_validator("rows")
    @classmethod
    def _once(cls, rows: list[int | str]) -> list[int | str]:
        if len(set(rows)) != len(rows):
            raise PydanticCustomError(
                "index_out_of_range", "a row is named twice; each counts once"
            )
        return rows


class Documents(NamedTuple):
    """How the second texts of pairs are read that are documents to rank; they may be empty.

    Args:
        most: tokens of each, the first ones; None: all.
    """

    most: int | None = None


class Side(NamedTuple):
    """Inputs of a request that one prompt goes before.

    Args:
        first: where among all inputs they begin.
        role: the side of a late interaction that they are read for.
        documents: how second texts are read, where they are documents.
    """

    items: Sequence[Item | Text]
    prompt_name: str | None
    first: int = 0
    role: Role | None = None
    documents: Documents | None = None

    def place(self, loc: Loc) -> Loc:
        """The place of a fault among all inputs, of its place among these."""
        match loc:
            case ("inputs", int(index), *rest):
                return ("inputs", self.first + index, *rest)
            case _:
                return loc


class EncodeRequest(Wire):
    """The body of POST /v1/encode."""

    counted: ClassVar[bool] = True  # whether the answer says how long texts are that are cut

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Inputs
    """What to encode: 1 to `max_sequences` texts, pairs, token ids and embeddings, mixed."""
    truncate: Truncate = "refuse"
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side."""
    pooled: Annotated[
        Annotated[bool, Tag("<switch>")] | Annotated[Pooled, Tag("<how>")],
        Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<how>"),
    ] = True
    """Whether to answer one vector for each input, and how it is made; true: the checkpoint's own
    way."""
    tokens: bool = False
    """Whether to answer the last layer's vector of each token, special tokens included."""
    layers: Integers = []
    """Hidden states to answer: 0 is the embeddings, i the output of i layers, -1 the last."""
    attention: Attention | None = None
    """What to show of the attention; left out or null: nothing, and nothing is computed for it."""
    gates: Gates = []
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
    """The checkpoint's prompt that goes before each text; left out: `default_prompt_name` of
    GET /info."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""
    dtype: Floats = "float32"
    """Number format of vectors; `attention` has its own."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it asks of the checkpoint's head."""
        switches: dict[Task, object] = {
            "classify": self.classify,
            "label_tokens": self.label_tokens,
            "sparse": self.sparse,
            "multi_vector": self.multi_vector,
        }
        return tuple(task for task, how in switches.items() if how is not False)

    @cached_property
    def items(self) -> list[Item | Text]:
        """Every input in its long form."""
        return [Text(value) if isinstance(value, str) else value for value in self.inputs]

    @property
    def sides(self) -> tuple[Side, ...]:
        """The inputs, by the prompt that goes before them."""
        role: Role | None = "document" if self.multi_vector is True else None
        for how in (self.sparse, self.multi_vector):
            role = role if isinstance(how, bool) else how.role
        return (Side(self.items, self.prompt_name, role=role),)

    def place(self, loc: Loc) -> Loc:
        """Where in the body stands what has this place here."""
        return loc
