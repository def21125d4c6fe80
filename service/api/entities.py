"""POST /v1/entities: spans of texts that labels of the request's own fit."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Sent, Served
from service.api.inputs import Strings
from service.api.native.heads import Attention, Gates
from service.api.zero_shot import Labels
from service.encode import answer
from service.encode import request as encode
from service.encode.answer import Encoded
from service.wire import Wire


class EntitiesRequest(Wire):
    """The body of POST /v1/entities."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Strings
    """The texts to search: 1 to `max_sequences`."""
    labels: Labels
    """What to look for: 1 or more, each once. They are read with each text and count as its
    tokens."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Scores above it count."""
    multi_label: bool = False
    """Whether one span may have several labels; false: the one that fits it best."""
    truncate: Truncate | None = None
    """What happens to a text that has more than `max_tokens` tokens with the labels, or more words
    than the model takes: it is refused, or loses whole words on this side. Labels are never cut.
    Left out or null: `truncate` of GET /info."""
    attention: Attention | None = None
    """What to show of the attention, between the tokens of labels and text; left out or null:
    nothing."""
    gates: Gates = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Heads to scale or drop, in this request alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(JSONCall):
    """A request."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        return answer.tree(encoded)


def parse(body: bytes, sent: Sent, served: Served) -> Search:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    asked = EntitiesRequest.model_validate_json(body)
    request = encode.Request(
        inputs=[encode.Input(text) for text in asked.inputs],
        model=asked.model,
        truncate=asked.truncate,
        pooled=False,
        attention=asked.attention.plain() if asked.attention else None,
        gates=[gate.plain() for gate in asked.gates],
        tasks=(encode.Entities(asked.labels, asked.threshold, asked.multi_label),),
    )
    return Search(request=request)
