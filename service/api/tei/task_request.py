"""What TEI's clients send to models with a head; sources as in request.py."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.inputs import Strings, Text, Texts
from service.api.tei.request import Side
from service.wire import Wire

Pairs = TypeAliasType("Pairs", Annotated[list[Strings], FailFast()])


def _tag(value: object) -> str:
    if not isinstance(value, list):
        return "<text>"
    return "<pairs>" if value and isinstance(value[0], list) else "<texts>"


class CutPair(Wire):
    """How too long a pair is cut."""

    truncate: bool | None = None
    """Whether a text or pair of more than `max_tokens` tokens is cut, of a pair the longer text
    first; false: it is refused. null is true."""
    truncation_direction: Side | None = None
    """The side that is cut; left out or null: the one that tokenizer_config.json names, else the
    right."""


class PredictParameters(Wire):
    """What Hugging Face's own client adds."""

    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    """What makes scores of logits; it wins over `raw_scores`."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """How many classes to answer, the best ones; left out or null: all."""


class PredictRequest(CutPair):
    """The body of TEI's POST /predict."""

    inputs: Annotated[Text | Texts | Annotated[Pairs, Tag("<pairs>")], Discriminator(_tag)]
    """A text, a list of one text or of the two of a pair, or a list of such lists."""
    raw_scores: bool = False
    """Whether scores are the logits themselves."""
    parameters: PredictParameters | None = None
    """Hugging Face's own client sends them; TEI ignores them."""


class RankRequest(CutPair):
    """The body of TEI's POST /rerank."""

    query: str
    """What the texts are to answer."""
    texts: Strings
    """The texts to rank: 1 to `max_sequences`."""
    raw_scores: bool = False
    """Whether scores are the logits themselves."""
    return_text: bool = False
    """Whether each rank comes with its text."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """How many to answer, the best ones; left out or null, or more than there are: all. LiteLLM
    sends it; TEI ignores it."""
