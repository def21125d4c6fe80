"""The parts of a request that ask a checkpoint's head."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from model.maps.choices import Level
from model.task_heads import Side
from service.wire import Wire


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
    """Which side of a search: the text gets that side's prompt, and where the checkpoint looks
    queries up in a table, a query is no pass of the encoder. Left out: the checkpoint's default."""


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
