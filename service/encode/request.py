"""What is wanted of some inputs, whatever API asks: plain values, checked in form alone.

Which layers, heads and prompts a model has is not known here; resolver.py resolves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from model.config import Mode, Side, Task
from model.maps.choices import Level
from model.text.tokenizer import Cut
from service.core import Documents, Layout
from service.inputs import Attention, Floats, Gate, Sweep, Texts

Smaller = Literal["int8", "uint8", "binary", "ubinary"]


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
        documents: how texts are read that are documents, if some are.
        pooled: whether there is one vector for each input, and how it is made.
        tokens: whether there are the last layer's vectors of tokens.
        layers: hidden states: 0 is the embeddings, i the output of i layers, -1 the last.
        gates: of every input.
        tasks: what is wanted of the checkpoint's own head.
        dtype: of vectors and shares.
        encoding: of arrays in JSON.
    """

    question: ClassVar[str] = "service.encode.encoding:Encoding"

    inputs: Texts
    model: str | None = None
    truncate: Cut | None = None
    usual: Cut = "refuse"
    most: int | None = None
    counted: bool = True
    prompt_name: str | None = None
    instruction: str | None = None
    task: str | None = None
    role: Side | None = None
    documents: Documents | None = None
    pooled: bool | Pooled = True
    tokens: bool = False
    layers: Sequence[int] = ()
    attention: Attention | None = None
    gates: Sequence[Gate] = ()
    sweep: Sweep | None = None
    tasks: Sequence[Wanted] = ()
    dtype: Floats = "float32"
    encoding: Literal["json", "base64"] = "json"
    layout: Layout = Layout()

    @property
    def number_format(self) -> Floats:
        """Return the format of the answer's numbers."""
        return self.dtype

    @property
    def array_encoding(self) -> Literal["json", "base64"]:
        """Return how arrays are written in JSON."""
        return self.encoding

    def texts(self) -> Texts:
        """Return all that is asked about."""
        return self.inputs
