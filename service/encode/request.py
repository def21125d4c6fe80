"""What is wanted of some inputs, whatever API asks: plain values, checked in form alone.

Which layers, heads and prompts a model has is not known here; service/encode/plan.py resolves them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from numpy.typing import NDArray

from model.config import Mode, Side, Task
from model.maps.choices import Form, Level, Specials, Weight
from model.text.tokenizer import Cut
from service.wording.words import Loc

Floats = Literal["float32", "float16"]
Smaller = Literal["int8", "uint8", "binary", "ubinary"]
Indices = Literal["all"] | Sequence[int]
HeadNames = Literal["all"] | Sequence[int] | Mapping[str, Sequence[int]]  # the latter by layer

MOST_SPANS = 2048  # of a request; each is a vector, as a sequence is


class Base64(NamedTuple):
    """An array as base64 of its little-endian bytes."""

    shape: Sequence[int]
    dtype: Floats
    data: str


class Gate(NamedTuple):
    """A factor for one head's mixed values before W_O; 0 drops the head."""

    layer: int
    head: int
    scale: float


class Patch(NamedTuple):
    """One head's mixed values before W_O, taken from the input of that number."""

    layer: int
    head: int
    source: int


class Sweep(NamedTuple):
    """Heads that are scaled one at a time."""

    layers: Indices = "all"
    heads: HeadNames = "all"
    scale: float = 0.0


class Input(NamedTuple):
    """One input: a text or pair of texts, token ids used as given, or embeddings.

    Args:
        token_type_ids: the segment of each of `token_ids`; None: 0 for all.
        embeddings: rows of one width as float32; lists where their widths differ.
        spans: parts of `text`, characters [start, end), that get a vector each.
        gates: beside the request's, and in place of those of the same heads.
        patch: heads whose values come from another input.
    """

    text: str | None = None
    pair: str | None = None
    token_ids: Sequence[int] | None = None
    token_type_ids: Sequence[int] | None = None
    embeddings: NDArray[Any] | Sequence[Sequence[float]] | Base64 | None = None
    spans: Sequence[Sequence[int]] | None = None
    gates: Sequence[Gate] = ()
    patch: Sequence[Patch] = ()

    @property
    def kind(self) -> str:
        """Return which of the three it is, as the metrics' label."""
        if self.text is not None:
            return "text"
        return "tokens" if self.token_ids is not None else "embeddings"


class Pooled(NamedTuple):
    """How one vector is made of a sequence; what is left out is the checkpoint's own.

    Args:
        precision: of a vector of length 1, if it is written in fewer bytes.
    """

    mode: Literal["model"] | Mode = "model"
    normalize: bool | None = None
    dimensions: int | None = None
    precision: Smaller | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """What to show of the attention; service/api/native/heads.py describes each field."""

    layers: Indices = "all"
    heads: HeadNames = "all"
    form: Form = "full"
    rows: Sequence[int] = ()
    k: int | None = None
    size: int | None = None
    weight: Weight | None = None
    level: Level = "token"
    specials: Specials = "keep"
    dtype: Floats = "float32"


@dataclass(frozen=True, slots=True)
class Classify:
    """The classes of each input; "default" is the checkpoint's own activation."""

    name: ClassVar[Task] = "classify"
    activation: Literal["default", "softmax", "sigmoid", "none"] = "default"


@dataclass(frozen=True, slots=True)
class Entailment:
    """The logits of each pair, by which its first text entails the second or does not."""

    name: ClassVar[Task] = "zero_shot"


@dataclass(frozen=True, slots=True)
class Rerank:
    """How well the two texts of each pair go together."""

    name: ClassVar[Task] = "rerank"


@dataclass(frozen=True, slots=True)
class LabelTokens:
    """A label for each token, or for each word: that of its first token."""

    name: ClassVar[Task] = "label_tokens"
    level: Level = "token"


@dataclass(frozen=True, slots=True)
class Sparse:
    """Weights over the vocabulary: the largest `k`, or all, above a threshold."""

    name: ClassVar[Task] = "sparse"
    k: int | None = None
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class MultiVector:
    """A vector for each token that is kept.

    Args:
        filled: whether an input without such a token is refused.
    """

    name: ClassVar[Task] = "multi_vector"
    filled: bool = False


Wanted = Classify | Entailment | Rerank | LabelTokens | Sparse | MultiVector


class First(NamedTuple):
    """How the first input is read where it is another side than the rest.

    Args:
        names: of the first input and of the others, in the request as it was sent.
        role: its side of a late interaction.
        task: as of Request.
    """

    names: tuple[str, str]
    prompt_name: str | None = None
    role: Side | None = None
    task: str | None = None


class Documents(NamedTuple):
    """How documents to rank are read, which may be empty: second texts of pairs, or lone ones.

    Args:
        most: tokens of each, the first ones; None: all.
        whole: whether of a pair that is too long the first text alone is cut.
    """

    most: int | None = None
    whole: bool = False


# Of an answer, made of arrays or of as many numbers
Part = Literal[
    "pooled", "tokens", "layers", "attention", "task", "sweep", "shares", "matches", "steps"
]
PARTS: frozenset[Part] = frozenset(get_args(Part))


class Layout(NamedTuple):
    """How an answer's arrays are written, which its price depends on.

    Args:
        numbers: the parts that are JSON numbers; the others come as bytes.
        padded: whether sequences are padded to the longest.
        times: what is written of arrays, as times of each written so once.
        beside: bytes that are written in addition.
    """

    numbers: Collection[Part] = PARTS
    padded: bool = False
    times: float = 1.0
    beside: int = 0


class Encoding(NamedTuple):
    """The ending of most requests: what is wanted of each input, as the model makes it."""


class Likeness(NamedTuple):
    """The first input's similarity with each other one, and what makes it.

    Args:
        form: the matrix of all pairs of tokens, the strongest pairs, the score alone, or what each
            token is worth: the score less that of the text without it.
        k: pairs to show of the form top; None: MOST_PAIRS.
        pair: a row and a column of the matrix, whose share is swept too.
    """

    form: Literal["full", "top", "score", "occlusion"] = "full"
    k: int | None = None
    pair: tuple[int, int] | None = None


class Maxsim(NamedTuple):
    """How well each other input answers the first one, token by token."""


class ZeroShot(NamedTuple):
    """How well each label fits each text. The inputs are pairs of text and label, text by text.

    Args:
        labels: of every text.
        multi_label: whether each is scored by itself.
    """

    labels: Sequence[str]
    multi_label: bool

    def place(self, loc: Loc) -> Loc:
        """Return where in the request as it was sent stands what has this place among the pairs."""
        text, label = divmod(int(loc[1]), len(self.labels))
        return ("labels", label) if loc[2:] == ("pair",) else ("inputs", text)


class Highlight(NamedTuple):
    """What carries each document's score; the query comes first, or each document is a pair.

    Args:
        unit: what documents are divided into.
        top: units to show, the strongest.
        prune: the share of a document's characters that is kept of it; None: no such text.
        control: whether documents are scored without these units, and without random ones.
        way: how a document is scored: the cosine of pooled vectors, late interaction, or pairs.
        method: what a unit is worth: its share of the score, or the score of it alone.
    """

    unit: Literal["sentence", "word", "token"] = "sentence"
    top: int = 3
    prune: float | None = None
    control: bool = True
    way: Literal["pooled", "maxsim", "rerank"] = "pooled"
    method: Literal["shares", "alone"] = "shares"

    def place(self, loc: Loc) -> Loc:
        """Return where in the request as it was sent stands what has this place here."""
        number, field, pairs = int(loc[1]), loc[2:], self.way == "rerank"
        document = field != ("text",) if pairs else number > 0
        place = ("documents", number if pairs else number - 1) if document else ("query",)
        return place if field in (("text",), ("pair",)) else (*place, *field)


class Axes(NamedTuple):
    """What the rows and columns of a table of tokens are."""

    level: Level = "token"
    specials: Specials = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Inputs, what is wanted of them, and what is changed on the way.

    Args:
        model: its name as the client expects it; None: any.
        truncate: what happens to a sequence that is too long; None: as the service is set.
        usual: the same where the service is not set either, by the custom of the API.
        most: tokens of a sequence, special ones included, where that is fewer than the model takes.
        counted: whether the answer says how long texts are that are cut.
        prompt_name: of what goes before each text; None: the task's instruction or, without one,
            the checkpoint's default.
        instruction: in place of a prompt, of a model whose template has a place for it.
        task: the name of the adapter that inputs are read with; None: that of `model`, if any.
        role: the side of a late interaction or of a search that inputs are read for.
        first: how the first input is read, where that is another side.
        documents: how texts are read that are documents, if some are; not the first input where it
            is another side.
        pooled: whether there is one vector for each input, and how it is made.
        tokens: whether there are the last layer's vectors of tokens.
        layers: hidden states: 0 is the embeddings, i the output of i layers, -1 the last.
        axes: what tokens are gathered to, where token vectors make a table.
        gates: of every input.
        tasks: what is wanted of the checkpoint's own head.
        ending: what is made of it all.
        dtype: of vectors and shares.
        encoding: of arrays in JSON.
    """

    inputs: Sequence[Input]
    model: str | None = None
    truncate: Cut | None = None
    usual: Cut = "refuse"
    most: int | None = None
    counted: bool = True
    prompt_name: str | None = None
    instruction: str | None = None
    task: str | None = None
    role: Side | None = None
    first: First | None = None
    documents: Documents | None = None
    pooled: bool | Pooled = True
    tokens: bool = False
    layers: Sequence[int] = ()
    attention: Attention | None = None
    axes: Axes | None = None
    gates: Sequence[Gate] = ()
    sweep: Sweep | None = None
    tasks: Sequence[Wanted] = ()
    ending: Encoding | Likeness | Maxsim | ZeroShot | Highlight = Encoding()
    dtype: Floats = "float32"
    encoding: Literal["json", "base64"] = "json"
    layout: Layout = Layout()

    def place(self, loc: Loc) -> Loc:
        """Return where in the request as it was sent stands what has this place here."""
        if len(loc) < 2 or loc[0] != "inputs":
            return loc
        if isinstance(self.ending, ZeroShot | Highlight):
            return self.ending.place(loc)
        if self.first is None:
            return loc
        (first, others), index = self.first.names, int(loc[1])
        return (others, index - 1, *loc[2:]) if index else (first, *loc[2:])
