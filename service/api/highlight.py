"""POST /v1/highlight: which parts of documents carry their scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Sent, Served
from service.api.inputs import SPARSE, only_sparse
from service.api.questions import SidePrompts
from service.api.rerank import Document, Documents
from service.encode import request as encode
from service.encode.answer import Each, Encoded
from service.refusals import Refused
from service.wire import Wire

MOST_DOCUMENTS, MOST_TOP = 64, 1024
UNPROMPTED = "a reranker reads the query and a document together, without a prompt"
TOGETHER = "a reranker reads the query and a document together, with one adapter"


class ReadTasks(Wire):
    """An adapter for each side."""

    query: str | None = None
    """The adapter that `query` is read with; left out: the one that `model` names, or none."""
    document: str | None = None
    """The adapter that each of `documents` is read with; left out: the same."""


class HighlightRequest(Wire):
    """The body of POST /v1/highlight."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: str
    """What the documents are to answer."""
    documents: Documents
    """The documents, texts or {"text"}: 1 to 64."""
    unit: Literal["sentence", "word", "token"] = "sentence"
    """What a document is divided into: sentences by a rule, words or tokens by the tokenizer."""
    top: Annotated[int, Field(ge=1, le=MOST_TOP)] = 3
    """How many units to show, the strongest."""
    prune: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """The share of a document's characters that `pruned` has at most: the strongest units that
    fit, one at least, in the document's order. Left out or null: there is no such text."""
    control: bool = True
    """Whether each document is scored too without its highlights, and without as many random
    units, 8 times; with `top` units or fewer, nothing would be left, and it is not."""
    prompt_name: (
        Annotated[
            Annotated[str, Tag("<both>")] | Annotated[SidePrompts, Tag("<each>")],
            Discriminator(
                lambda value: "<each>" if isinstance(value, dict | SidePrompts) else "<both>"
            ),
        ]
        | None
    ) = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each;
    left out: the task's instruction or, without one, `default_prompt_name` of GET /info. A
    reranker takes none."""
    task: (
        Annotated[
            Annotated[str, Tag("<both>")] | Annotated[ReadTasks, Tag("<each>")],
            Discriminator(
                lambda value: "<each>" if isinstance(value, dict | ReadTasks) else "<both>"
            ),
        ]
        | None
    ) = None
    """The adapter that texts are read with, as in POST /v1/encode: one for both sides, or one for
    each, as "retrieval.query" and "retrieval.passage"; a reranker reads both with one."""
    truncate: Truncate | None = None
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""


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
    return Highlighting(request=_request(asked, texts, served))


def _request(asked: HighlightRequest, texts: Sequence[str], served: Served) -> encode.Request:
    """Return the request in the way that the model scores."""
    how = asked.unit, asked.top, asked.prune, asked.control
    if "rerank" in served.tasks:
        if asked.prompt_name is not None:
            raise Refused.at("prompt_not_found", "prompt_name", detail=UNPROMPTED, prompts=[])
        if isinstance(asked.task, ReadTasks):
            raise Refused.at("out_of_range", "task", detail=TOGETHER)
        return encode.Request(
            model=asked.model,
            task=asked.task,
            inputs=[encode.Input(asked.query, text) for text in texts],
            truncate=asked.truncate,
            pooled=False,
            tasks=(encode.Rerank(),),
            ending=encode.Highlight(*how, "rerank"),
        )
    if only_sparse(served.tasks):
        raise Refused("task_not_found", detail=SPARSE, tasks=list(served.tasks))
    names, many = asked.prompt_name, "multi_vector" in served.tasks
    query, document = (
        (names.query, names.document) if isinstance(names, SidePrompts) else (names, names)
    )
    task = asked.task
    own, other = (task.query, task.document) if isinstance(task, ReadTasks) else (task, task)
    return encode.Request(
        model=asked.model,
        inputs=[encode.Input(asked.query), *map(encode.Input, texts)],
        truncate=asked.truncate,
        prompt_name=document,
        task=other,
        role="document" if many else None,
        first=encode.First(("query", "documents"), query, "query" if many else None, own),
        pooled=not many,
        tasks=(encode.MultiVector(filled=True),) if many else (),
        ending=encode.Highlight(*how, "maxsim" if many else "pooled"),
    )
