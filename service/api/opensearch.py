"""POST /predictions/semantic_highlighter: a remote model of OpenSearch's semantic highlighter.

    {"question", "context"}                     {"highlights": [{"start", "end"}]}
    {"inputs": [{"question", "context"}, ..]}   {"highlights": [[{"start", "end"}], ..]}, in order

OpenSearch marks what it is told, one sentence of each context here: the one that answers best by
itself; of an empty context none. Ends count UTF-16's units, as Java's strings do. A connector of
the blueprint sends the fields that it does not use as well, empty.

Sources: opensearch-py-ml's docs/source/examples/semantic_highlighting/api_types.py, of which
OpenSearch reads `highlights` alone; ml-commons' blueprint for the semantic highlighter, under
docs/remote_inference_blueprints/standard_blueprints; for the path, neural-search's TorchServe tests
(RemoteModelTestUtils.java), and for the units, its HighlightTagApplier.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, LiteralString

from pydantic import model_validator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.api import jina
from service.api.dialect import JSONCall, Sent, Served
from service.api.highlight import scored
from service.encode import request as encode
from service.encode.answer import Encoded
from service.wire import Wire

MISSING: LiteralString = 'expected "inputs", or "question" and "context"'
TWICE: LiteralString = '"inputs" have questions and contexts of their own: no others'
SIDES = "retrieval.query", "retrieval.passage"  # as Jina names the adapters and prompts of both
SINGLE: encode.Names = (("question",), ("context",))
BATCH: encode.Names = (("inputs", None, "question"), ("inputs", None, "context"))


class QuestionInContext(Wire):
    """A question, and the text to find it answered in."""

    question: str
    """What is asked."""
    context: str
    """The text whose best sentence is highlighted; it may be empty."""


Pairs = TypeAliasType("Pairs", Annotated[list[QuestionInContext], FailFast()])


class SemanticRequest(Wire):
    """The body of POST /predictions/semantic_highlighter."""

    question: str = ""
    """What is asked, if it is of one context."""
    context: str | None = None
    """The text whose best sentence is highlighted."""
    inputs: Pairs = []
    """In place of both: questions with their contexts, with their sentences at most
    `max_sequences`."""

    @model_validator(mode="after")
    def _one_form(self) -> "SemanticRequest":
        if self.inputs and (self.question or self.context):
            raise PydanticCustomError("question_twice", TWICE)
        if not self.inputs and (not self.question or self.context is None):
            raise PydanticCustomError("question_missing", MISSING)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking(JSONCall):
    """A request.

    Args:
        contexts: the texts that are highlighted.
        single: whether the answer is of one alone.
    """

    contexts: Sequence[str]
    single: bool

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        spans: list[list[dict[str, int]]] = [[] for _ in self.contexts]
        for item in encoded.items:
            place = item.facts["index"]
            for found in item.facts["highlights"]:
                start, end = (_units(self.contexts[place][:at]) for at in found["characters"])
                spans[place].append({"start": start, "end": end})
        return {"highlights": spans[0] if self.single else spans}


def parse(body: bytes, sent: Sent, served: Served) -> Marking:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    asked = SemanticRequest.model_validate_json(body)
    pairs = asked.inputs or [
        QuestionInContext(question=asked.question, context=asked.context or "")
    ]
    contexts = [one.context for one in pairs]
    names = BATCH if asked.inputs else SINGLE
    how = encode.Highlight(top=1, control=False, method="alone", names=names)
    (task, prompt), (other, others) = (_side(one, served) for one in SIDES)
    base = encode.Request(
        inputs=(), usual="own", documents=encode.Documents(), task=other, prompt_name=others
    )
    queries = [encode.Input(one.question) for one in pairs]
    request = scored(base, how, queries, contexts, served, prompt, task)
    return Marking(request=request, contexts=contexts, single=not asked.inputs)


def _side(task: str, served: Served) -> tuple[str | None, str | None]:
    """Return the adapter and the prompt that a checkpoint has for one side, if any."""
    if {"rerank", "multi_vector"} & set(served.tasks):  # which read each side in a way of their own
        return None, None
    return jina.chosen(task, served) or (None, None)


def _units(text: str) -> int:
    """Count the units of a text in UTF-16."""
    return len(text.encode("utf-16-le")) // 2
