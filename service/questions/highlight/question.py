"""What carries each document's score: the strongest units, and controls.

The query comes first, or each document is a pair with it. Copies of documents that shares are
computed from run with them; the controls follow, since they lack the strongest units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

from service.pipeline.cost import DOUBLE, SINGLE
from service.pipeline.find.names import SPARSE_ONLY, only_sparse
from service.pipeline.find.resolver import Resolver
from service.pipeline.worker import Workers
from service.questions.compared import by_side
from service.questions.highlight import HighlightRequest
from service.questions.highlight.evidence import (
    CHARACTER_BYTES,
    COPY_BYTES,
    EVIDENCE_TAKES,
    Evidence,
    Scorer,
    Way,
    choose_method,
    count_controls,
    count_held,
    divide_documents,
    replace_document,
    share_texts,
)
from service.questions.highlight.passage import Passage
from service.shapes.answer import AnswerItem
from service.shapes.ask import Custom, Documents
from service.shapes.inputs import InputItem, text_and_pair
from service.shapes.outputs import MultiVector, Rerank, Wanted
from service.shapes.price import Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Plan, Read, Step
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc

MOST_DOCUMENTS = 64  # in a request
# Details of refusals
UNPROMPTED = "a reranker reads the query and a document together, without a prompt"
READ_TOGETHER = "a reranker reads the query and a document together, as texts"
ONE_ADAPTER = "a reranker reads the query and a document together, with one adapter"
UNGATED = 'a reranker reads the query and a document together: "gates" of the request are of both'

DOCUMENT_BYTES, UNIT_BYTES = 200, 100  # bytes of JSON for a document and a unit, without text
COPIES = 2  # most times that an answer holds a document's text: in highlights, and in `pruned`


class Highlight:
    """A request for the evidence of each document."""

    def __init__(
        self, ask: HighlightRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._layout, self._resolver = ask, custom.layout, resolver
        self._worker, tasks = workers.texts, resolver.model.tasks
        way: Way = "maxsim" if "multi_vector" in tasks else "pooled"
        self._way = way = "rerank" if "rerank" in tasks else way
        self._method = choose_method(ask, way, resolver.linear)
        prompts = by_side(ask.prompt_name, "query", "document")
        adapters = by_side(ask.task, "query", "document")
        texts = self._check_documents(prompts, adapters)
        wanted: Sequence[Wanted] = ()
        if way != "pooled":
            wanted = (Rerank(),) if way == "rerank" else (MultiVector(),)
        adapter, heads = resolver.adapter(ask.model, adapters[1]), resolver.tasks(wanted)
        outputs = resolver.outputs(way == "pooled")
        if heads:
            outputs = replace(outputs, task_heads=tuple([task.head for task in heads]))
        self._documents = Side(
            self._pair_with_query(texts) if way == "rerank" else texts,
            outputs,
            self._place,
            cut=resolver.cut(ask.truncate),
            facts=True,
            filled=True,
            prompt_name=prompts[1],
            adapter=adapter,
            role=resolver.role(wanted, "document" if way == "maxsim" else None),
            tasks=heads,
            vectors=way == "pooled",
        )
        self.sides: Sequence[Side] = (self._documents,)
        if way != "rerank":
            query = self._documents._replace(
                inputs=[ask.query],
                at=lambda number, *field: ("query", *(() if field == ("text",) else field)),
                prompt_name=prompts[0],
                adapter=resolver.adapter(ask.model, adapters[0]),
                role=resolver.role(wanted, "query" if way == "maxsim" else None),
            )
            self.sides = (query, self._documents)

    def _check_documents(
        self,
        prompts: tuple[str | None, str | None],
        tasks: tuple[str | None, str | None],
    ) -> list[str]:
        """Return the documents; refuse none, too many, and options that the model does not take.

        Args:
            prompts, tasks: names of the query's and the documents'.
        """
        texts = self._ask.document_texts
        if not texts:
            detail = "expected one document or more, received none"
            raise Refused.at("batch_empty", "documents", detail=detail)
        if len(texts) > MOST_DOCUMENTS:
            detail = f"expected at most {MOST_DOCUMENTS}, received {len(texts):,}"
            raise Refused.at("batch_too_large", "documents", detail=detail, limit=MOST_DOCUMENTS)
        if self._way == "rerank":
            if prompts != (None, None):
                raise Refused.at("prompt_not_found", "prompt_name", detail=UNPROMPTED, prompts=[])
            if tasks[0] != tasks[1]:
                raise Refused.at("out_of_range", "task", detail=ONE_ADAPTER)
        elif only_sparse(self._resolver.model.tasks):
            raise Refused(
                "task_not_found", detail=SPARSE_ONLY, tasks=list(self._resolver.model.tasks)
            )
        return texts

    def _pair_with_query(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pair of the query with each text.

        Raises:
            Refused: the query is no text, has gates of its own, or is too long for so many texts.
        """
        query = self._ask.query
        text = query if isinstance(query, str) else query.text
        if text is None:
            raise Refused.at("invalid_type", "query", detail=READ_TOGETHER)
        if isinstance(query, InputItem) and query.gates:
            raise Refused.at("unknown_field", "query", "gates", detail=UNGATED)
        most = self._resolver.most_json // len(texts)
        if len(text) > most:
            raise Refused.at("text_too_long", "query", length=len(text), limit=most)
        return [(text, document) for document in texts]

    def _place(self, number: int, *field: str | int) -> Loc:
        """Return the place in the request of the `number`-th document or pair, or of its field."""
        if self._way == "rerank" and field == ("text",):
            return ("query",)
        whole = ("pair",) if self._way == "rerank" else ("text",)
        return ("documents", number, *(() if field == whole else field))

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the step of the documents and their copies, which the controls' step follows.

        Raises:
            Refused: it takes more than a request may, or than there is memory for.
        """
        ask, method, resolver = self._ask, self._method, self._resolver
        query, documents, inputs = works[0], works[len(self.sides) - 1 :], self._documents.inputs
        size = sum(len(text or "") for entry in inputs for text in text_and_pair(entry))
        run = partial(self._worker.run, deadline=deadline, size=size, record=record)
        most = resolver.most_sequences
        dividing = run(divide_documents(ask, inputs, documents, method, len(works), most))
        passages, copy_count, tokens, characters = await dividing
        resolver.check_tokens(sum(map(len, works)) + tokens, EVIDENCE_TAKES)
        copies = list[Work]()
        texts = [list(share_texts(passage, method)) for passage in passages]
        if any(texts):
            # reserved before they wait to be read; admission then counts their works instead
            more = COPY_BYTES * copy_count + CHARACTER_BYTES * characters
            record.hold.take(bodies=record.hold.bytes["bodies"] + more)
            copies = await read(self._copies_side(texts))
        counts = [count_controls(ask, passage) for passage in passages]
        controls = [work for work, n in zip(documents, counts, strict=True) for _ in range(n)]
        width = resolver.model.config.width
        held = count_held([*works, *copies, *controls], copy_count, tokens, characters, width)
        if method == "sum":
            # token vectors in float32, and in float64 three times those of the longest text
            held += width * (SINGLE * sum(map(len, works)) + 3 * DOUBLE * max(map(len, works)))
            for work in works:
                work.outputs = replace(work.outputs, tokens=True)
        scorer = Scorer(ask, self._way, method, resolver.linear, query.outputs.task_heads)
        found, control_scores = list[Evidence](), list[Sequence[float]]([()] * len(passages))

        async def follow() -> Step | None:
            """Compute the evidence, and return the step of the control texts, if any."""
            found.extend(await run(scorer.find(query, documents, passages, copies)))
            if not controls:
                return None
            texts = [
                passage.controls(evidence.strongest) if count else []
                for passage, evidence, count in zip(passages, found, counts, strict=True)
            ]
            control_works = await read(self._copies_side(texts))

            async def rate() -> None:
                """Score the control texts."""
                control_scores[:] = await run(scorer.rate(query, control_works, counts))

            return Step(control_works, rate)

        async def make_items() -> Iterable[AnswerItem]:
            """Return an item for each document, best first; equal scores keep their order."""
            results = zip(documents, passages, found, control_scores, strict=True)
            items = [self._make_item(index, *each) for index, each in enumerate(results)]
            return sorted(items, key=lambda item: -item.facts["score"])

        likes = [(work, n) for work, n in zip(documents, counts, strict=True) if n]
        price = Price({"shares": _weigh_answer(ask, passages)}, self._layout)
        return Plan(Step([*works, *copies], follow, likes, held), price, make_items)

    def _make_item(
        self, index: int, work: Work, passage: Passage, found: Evidence, scores: Sequence[float]
    ) -> AnswerItem:
        """Return the item of one document; its arguments but the first are as in `plan`."""
        facts = {"index": index, "score": found.score, "method": self._method}
        told = _document_facts(self._ask, passage, found, scores)
        cut = {"truncated": work.truncated, "length": work.length}
        return AnswerItem(len(work), {**facts, **told, **cut})

    def _copies_side(self, texts: Sequence[Sequence[str]]) -> Side:
        """Return the side of each document's copies, which a refusal places at the document."""
        copies = [(index, text) for index, of_document in enumerate(texts) for text in of_document]
        inputs = self._documents.inputs
        return self._documents._replace(
            inputs=[replace_document(inputs[index], text) for index, text in copies],
            at=lambda number, *field: self._place(copies[number][0], *field),
            counted=False,
            facts=False,
            documents=Documents(),
        )


def _weigh_answer(ask: HighlightRequest, passages: Sequence[Passage]) -> int:
    """Return the bytes of memory of the answer, estimated from the documents' lengths."""
    units = sum(min(ask.top, len(passage.spans)) for passage in passages)
    text = sum(len(passage.text.encode()) for passage in passages)
    return DOCUMENT_BYTES * len(passages) + UNIT_BYTES * units + COPIES * text


def _document_facts(
    ask: HighlightRequest, passage: Passage, found: Evidence, control_scores: Sequence[float]
) -> dict[str, Any]:
    """Return the fields of an answer about one document's units and controls.

    Args:
        control_scores: without the strongest units, then without random others; empty: none.
    """
    fields: dict[str, Any] = {
        "highlights": [
            {
                "characters": passage.spans[unit],
                "text": passage.text[slice(*passage.spans[unit])],
                "share": found.shares[unit],
                "units": passage.numbers[unit],
            }
            for unit in found.strongest
        ],
        "rest": found.rest,
        "without": control_scores[0] if control_scores else None,
        "control": None,
    }
    if random := control_scores[1:]:
        fields["control"] = {"without_random": fmean(random), "deviation": stdev(random)}
    if ask.prune is not None:
        fields["pruned"] = prune(passage, found.order, ask.prune)
    return fields


def prune(passage: Passage, order: Iterable[int], share: float) -> str:
    """Return a document's text with its strongest units alone, in the document's order.

    Args:
        order: all units, strongest first; they are kept until one does not fit, and one at least.
        share: of the characters that were read, which the kept units may have.
    """
    room, kept, spans = share * (passage.stop - passage.start), set[int](), passage.spans
    for unit in order:
        end = spans[unit + 1][0] if unit + 1 < len(spans) else passage.stop
        room -= end - spans[unit][0]
        if kept and room < 0:
            break
        kept.add(unit)
    return passage.without({*range(len(spans))} - kept).strip()
