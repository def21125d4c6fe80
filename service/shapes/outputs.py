"""What is wanted of each input, as clients write it: its vectors, and what task heads make."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, LiteralString

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from model.config import PoolingMode, Side, Task
from model.maps.choices import Level
from service.tables.wording.wire import Wire

SmallPrecision = Literal["int8", "uint8", "binary", "ubinary"]  # formats of a byte or a bit

NEEDS_LENGTH_1: LiteralString = (  # message of a validation error
    '"int8" and "uint8" are steps of vectors of length 1, "normalize": true'
)


class Pooled(Wire):
    """How one vector is made of a sequence; what is left out is the checkpoint's own."""

    mode: Literal["model"] | PoolingMode = "model"
    """How token vectors become one; "model" is the checkpoint's own way, `pooling` of GET /info."""
    normalize: bool | None = None
    """Whether the vector is scaled to length 1; left out or null: as the checkpoint does,
    `normalize` of GET /info, whatever the mode."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """How many numbers to keep, the first ones, at most `width`; the vector is cut, then scaled
    where `normalize` says so. Left out or null: the `truncate_dim` that the checkpoint stores, else
    all."""
    precision: Literal["float", SmallPrecision] = "float"
    """How vectors are written, those of spans too: in `dtype`, or in fewer bytes as int8 or uint8,
    one for each number ("int8", "uint8") or for eight of them ("binary", "ubinary"). They are made
    of vectors of length 1, where `normalize` is left out."""

    @model_validator(mode="after")
    def _check_normalized(self) -> "Pooled":
        """Refuse steps of vectors that are not scaled to length 1."""
        if self.precision in ("int8", "uint8") and self.normalize is False:
            raise PydanticCustomError("steps_of_length_1", NEEDS_LENGTH_1)
        return self

    @property
    def normalized(self) -> bool | None:
        """Return whether the vector is scaled to length 1; None: as the checkpoint does."""
        return True if self.normalize is None and self.precision != "float" else self.normalize


DEFAULT_POOLED = Pooled()  # as the checkpoint does


class Classify(Wire):
    """How classes are scored."""

    name: ClassVar[Task] = "classify"

    activation: Literal["default", "softmax", "sigmoid", "none"] = "default"
    """What makes scores of logits; "default" is the checkpoint's own."""


class LabelTokens(Wire):
    """What labels stand for."""

    name: ClassVar[Task] = "label_tokens"

    level: Level = "token"
    """Whether each token has a label, or each word: that of its first token."""


class Sparse(Wire):
    """Which weights of a sparse vector are answered."""

    name: ClassVar[Task] = "sparse"

    k: Annotated[int, Field(ge=1)] | None = None
    """The largest so many; left out or null: all."""
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weights above it alone."""
    role: Side | None = None
    """Which side of a search: the text gets that side's prompt. Left out: the checkpoint's default
    prompt."""


class MultiVector(Wire):
    """How inputs are read that get many vectors."""

    name: ClassVar[Task] = "multi_vector"

    role: Side = "document"
    """Which side of a late interaction: texts get its marker and its longest length; queries are
    filled up, and documents have no vector for the tokens of the checkpoint's skiplist."""


class ScoreReason(Wire):
    """How to tell which input tokens or words a score rests on."""

    method: Literal["input"] = "input"
    """Exact shares of what enters the model, with attention, the divisors of norms and activations
    kept as they were: with `rest` they sum to the score."""
    level: Level = "word"
    """Whether each token has a share, or each word: the sum of its tokens' shares."""


@dataclass(frozen=True, slots=True)
class Entailment:
    """The logits of each pair, by which its first text entails the second or does not."""

    name: ClassVar[Task] = "zero_shot"


@dataclass(frozen=True, slots=True)
class Rerank:
    """How well the two texts of each pair go together."""

    name: ClassVar[Task] = "rerank"


# What a request may want of the checkpoint's task heads
Wanted = Classify | Entailment | Rerank | LabelTokens | Sparse | MultiVector
