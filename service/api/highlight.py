"""POST /v1/highlight: which parts of documents carry their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, LiteralString

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from model.config import Side
from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Sent, Served
from service.api.inputs import SPARSE, only_sparse
from service.api.native.call import Input, Item, as_input
from service.api.native.heads import Gates
from service.api.own import BothOr, SidePrompts, question
from service.api.ranking import Document, Documents
from service.encode import request as encode
from service.encode.answer import Each, Encoded
from service.observe.families import OF_TEXT
from service.refusals import Refused
from service.wire import Wire

MOST_DOCUMENTS, MOST_TOP = 64, 1024
UNPROMPTED = "a reranker reads the query and a document together, without a prompt"
TOGETHER = "a reranker reads the query and a document together, as texts"
ONE_ADAPTER = "a reranker reads the query and a document together, with one adapter"
UNGATED = 'a reranker reads the query and a document together: "gates" of the request are of both'
LONE: LiteralString = (
    'a query is one sequence, and no document has its length: no "pair", "spans" or "patch"'
)


class ReadTasks(Wire):
    """An adapter for each side."""

    query: str | None = None
    """The adapter that `query` is read with; left out: the one that `model` names, or none."""
    document: str | None = None
    """The adapter that each of `documents` is read with; left out: the same."""


def _lone(value: str | Item) -> str | Item:
    if isinstance(value, Item) and (value.pair, value.spans, value.patch) != (None,) * 3:
        raise PydanticCustomError("pair_in_comparison", LONE)
    return value


class HighlightRequest(Wire):
    """The body of POST /v1/highlight."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: Annotated[Input, AfterValidator(_lone)]
    """What the documents are to answer: a text, token ids or embeddings, as an input of
    POST /v1/encode; a reranker takes a text."""
    documents: Documents
    """The documents, texts or {"text"}: 1 to 64."""
    unit: Literal["sentence", "word", "token"] = "sentence"
    """What a document is divided into: sentences by a rule, words or tokens by the tokenizer."""
    method: Literal["shares", "alone"] = "shares"
    """What makes a unit strong: its share of the document's score, or the score of the unit by
    itself, which finds the sentence that answers more often and says nothing of the document's."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlighting(JSONCall):
    """A request."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        results = Each((item.facts for item in encoded.items), plain=True)
        return {**encoded.preamble, "results": results, "usage": encoded.usage}


def parse(body: bytes, sent: Sent, served: Served) -> Highlighting:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    asked = HighlightRequest.model_validate_json(body)
    texts = [one.text if isinstance(one, Document) else one for one in asked.documents]
    if not texts:
        detail = "expected one document or more, received none"
        raise Refused.at("batch_empty", "documents", detail=detail)
    if len(texts) > MOST_DOCUMENTS:
        detail = f"it holds {len(texts):,}, and the limit is {MOST_DOCUMENTS}"
        raise Refused.at("batch_too_large", "documents", detail=detail, limit=MOST_DOCUMENTS)
    names = asked.prompt_name
    own, others = (
        (names.query, names.document) if isinstance(names, SidePrompts) else (names, names)
    )
    task = asked.task
    query_task, documents_task = (
        (task.query, task.document) if isinstance(task, ReadTasks) else (task, task)
    )
    how = encode.Highlight(asked.unit, asked.top, asked.prune, asked.control, method=asked.method)
    base = encode.Request(
        inputs=(),
        model=asked.model,
        truncate=asked.truncate,
        prompt_name=others,
        task=documents_task,
        gates=[gate.plain() for gate in asked.gates],
    )
    query = as_input(asked.query)
    return Highlighting(request=_scored(base, how, query, texts, served, own, query_task))


def _scored(
    base: encode.Request,
    how: encode.Highlight,
    query: encode.Input,
    texts: Sequence[str],
    served: Served,
    prompt_name: str | None,
    task: str | None,
) -> encode.Request:
    """Return a request for evidence in the way that the model scores.

    Args:
        base: what it has besides.
        prompt_name, task: of the query.

    Raises:
        Refused: the model takes no such query, prompt or task, or scores no texts.
    """
    if "rerank" in served.tasks:
        if (prompt_name, base.prompt_name) != (None, None):
            raise Refused.at("prompt_not_found", "prompt_name", detail=UNPROMPTED, prompts=[])
        if task != base.task:
            raise Refused.at("out_of_range", "task", detail=ONE_ADAPTER)
        return replace(
            base,
            inputs=_pairs(query, texts, served.most_json),
            pooled=False,
            tasks=(encode.Rerank(),),
            ending=how._replace(way="rerank"),
        )
    if only_sparse(served.tasks):
        raise Refused("task_not_found", detail=SPARSE, tasks=list(served.tasks))
    many = "multi_vector" in served.tasks
    role: Side | None = "query" if many else None
    return replace(
        base,
        inputs=[query, *map(encode.Input, texts)],
        role="document" if many else None,
        first=encode.First(("query", "documents"), prompt_name, role, task),
        pooled=not many,
        tasks=(encode.MultiVector(filled=True),) if many else (),
        ending=how._replace(way="maxsim" if many else "pooled"),
    )


def _pairs(query: encode.Input, texts: Sequence[str], most: int) -> list[encode.Input]:
    """Return each text with the query.

    Args:
        most: characters of all pairs' queries, which are tokenized with each text.

    Raises:
        Refused: the query is no text, has gates of its own, or is too long for so many texts.
    """
    if query.text is None:
        raise Refused.at("invalid_type", "query", detail=TOGETHER)
    if query.gates:
        raise Refused.at("unknown_field", "query", "gates", detail=UNGATED)
    if (length := len(query.text)) * len(texts) > most:
        raise Refused.at("text_too_long", "query", length=length, limit=most // len(texts))
    return [encode.Input(query.text, text) for text in texts]


ROUTES = (
    question(
        "/v1/highlight",
        "Which sentences or words of a document carry its score, and what is left without them",
        HighlightRequest,
        parse,
        answer="Highlighted | Priced",
        inputs=(*OF_TEXT, "mixed"),  # documents are texts
        more="Scores documents as a query's answers, and shows the units that carry each score "
        "with a control: the score without\nthem, and without as many random ones. A reranker "
        "scores pairs, a model of many vectors by late interaction, any\nother by the cosine "
        "of its vectors.",
    ),
)
