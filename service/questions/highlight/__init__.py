"""POST /v1/highlight: its request, and how its answer is written."""

from typing import Annotated, Any, ClassVar, Literal, LiteralString

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from model.text.tokenizer import Truncate
from service.questions.compared import BothOr, SidePrompts
from service.shapes.answer import Answer, Each
from service.shapes.ask import Ask
from service.shapes.inputs import Document, Documents, Gates, Input, InputItem, Texts
from service.tables.wording.wire import Wire

Method = Literal["alone", "occlusion", "sum", "maxsim"]  # what makes a unit strong

MOST_TOP = 1024  # most units that a request may show of a document
LONE_QUERY: LiteralString = (  # message of a validation error
    'a query is one sequence, and no document has its length: no "pair", "spans" or "patch"'
)


class ReadTasks(Wire):
    """An adapter for each side."""

    query: str | None = None
    """The adapter that `query` is read with; left out: the one that `model` names, or none."""
    document: str | None = None
    """The adapter that each of `documents` is read with; left out: the same."""


def _check_lone(value: str | InputItem) -> str | InputItem:
    """Return a query; refuse a pair, spans and a patch."""
    if isinstance(value, InputItem) and (value.pair, value.spans, value.patch) != (None,) * 3:
        raise PydanticCustomError("pair_in_comparison", LONE_QUERY)
    return value


class HighlightRequest(Ask):
    """The body of POST /v1/highlight."""

    question: ClassVar = "service.questions.highlight.question:Highlight"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: Annotated[Input, AfterValidator(_check_lone)]
    """What the documents are to answer: a text, token ids or embeddings, as an input of
    POST /v1/encode; a reranker takes a text."""
    documents: Documents
    """The documents, texts or {"text"}: 1 to 64."""
    unit: Literal["sentence", "word", "token"] = "sentence"
    """What a document is divided into: sentences by a rule, words or tokens by the tokenizer."""
    method: Method | None = None
    """What makes a unit strong: "alone", the score of its own text; "occlusion", what the score
    loses without it; "sum" (models pooled by a mean) and "maxsim" (models of many vectors), its
    exact part of the score. Left out or null: "alone" where the model pools a text, which finds the
    sentence that answers most often; else "maxsim" or, of a reranker, "occlusion"."""
    top: Annotated[int, Field(ge=1, le=MOST_TOP)] = 3
    """How many units to show, the strongest."""
    prune: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """The share of a document's characters that `pruned` has at most: the strongest units that
    fit, one at least, in the document's order. Left out or null: there is no such text."""
    control: bool = True
    """Whether each document is scored too without its highlights, and without as many random
    other units, 8 times; it is not where nothing would be left, or the others are too few."""
    prompt_name: BothOr[SidePrompts] | None = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each;
    left out: the task's instruction or, without one, `default_prompt_name` of GET /info. A
    reranker takes none."""
    task: BothOr[ReadTasks] | None = None
    """The adapter that texts are read with, as in POST /v1/encode: one for both sides, or one for
    each, as "retrieval.query" and "retrieval.passage"; a reranker reads both with one."""
    truncate: Truncate | None = None
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, in the query and in every text of a document;
    an item may have its own."""

    @property
    def document_texts(self) -> list[str]:
        """Return the documents as texts."""
        return [entry.text if isinstance(entry, Document) else entry for entry in self.documents]

    def texts(self) -> Texts:
        """Return the query, then the documents."""
        return [self.query, *self.document_texts]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer as JSON: for each document its score and highlights, best first."""
        results = Each(item.facts for item in encoded.items)
        return {**encoded.preamble, "results": results, "usage": encoded.usage}
