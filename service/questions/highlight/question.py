"""What carries each document's score: the strongest units, and controls.

The query comes first, or each document is a pair with it. Copies of documents that shares are
computed from run with them; the controls follow, since they lack the strongest units.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from model.task_heads import VectorHead
from service.encode.names import SPARSE_ONLY, only_sparse
from service.encode.price import DOUBLE, SINGLE
from service.encode.resolver import Resolver
from service.encode.worker import Workers
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
from service.refusals import Refused
from service.shapes.answer import AnswerItem
from service.shapes.ask import Custom, Documents
from service.shapes.inputs import InputItem, Texts, text_and_pair
from service.shapes.outputs import MultiVector, Rerank, Wanted
from service.shapes.price import Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import ReadSide, Step
from service.shapes.work import Work
from service.wording.words import Loc

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
        self._ask, self._custom, self._resolver = ask, custom, resolver
        self._worker, tasks = workers.texts, resolver.model.tasks
        self._way: Way = "maxsim" if "multi_vector" in tasks else "pooled"
        if "rerank" in tasks:
            self._way = "rerank"
        self._method = choose_method(ask, self._way, resolver.linear)
        self._documents_start = 0 if self._way == "rerank" else 1  # in works, after the query
        self._inputs: Texts = ()
        self._works: Sequence[Work] = ()
        self._passages: Sequence[Passage] = ()
        self._found: Sequence[Evidence] = ()  # of each document
        self._control_scores: Sequence[Sequence[float]] = ()  # of each document's control texts

    def sides(self) -> Sequence[Side]:
        """Return the query and the documents; of a reranker, the pairs of both alone."""
        ask, resolve, way = self._ask, self._resolver, self._way
        prompts = by_side(ask.prompt_name, "query", "document")
        tasks = by_side(ask.task, "query", "document")
        texts = self._check_documents(prompts, tasks)
        wanted: Sequence[Wanted] = ()
        if way != "pooled":
            wanted = (Rerank(),) if way == "rerank" else (MultiVector(),)
        adapter, heads = resolve.adapter(ask.model, tasks[1]), resolve.tasks(wanted)
        outputs = resolve.outputs(way == "pooled")
        if heads:
            outputs = replace(outputs, task_heads=tuple([task.head for task in heads]))
        self._inputs = self._pair_with_query(texts) if way == "rerank" else texts
        self._documents = Side(
            self._inputs,
            outputs,
            self._pair_place if way == "rerank" else self._document_place,
            cut=resolve.cut(ask.truncate),
            facts=True,
            filled=True,
            prompt_name=prompts[1],
            adapter=adapter,
            role=resolve.role(wanted, "document" if way == "maxsim" else None),
            tasks=heads,
            vectors=way == "pooled",
        )
        if way == "rerank":
            return (self._documents,)
        query = self._documents._replace(
            inputs=[ask.query],
            at=lambda number, *field: ("query", *(() if field == ("text",) else field)),
            prompt_name=prompts[0],
            adapter=resolve.adapter(ask.model, tasks[0]),
            role=resolve.role(wanted, "query" if way == "maxsim" else None),
        )
        return query, self._documents

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

    def _document_place(self, number: int, *field: str | int) -> Loc:
        """Return the place in the request of the `number`-th document, or of a field of it."""
        return ("documents", number, *(() if field == ("text",) else field))

    def _pair_place(self, number: int, *field: str | int) -> Loc:
        """Return the place in the request of a text of the `number`-th pair, or of its field."""
        if field == ("text",):
            return ("query",)
        return ("documents", number, *(() if field == ("pair",) else field))

    async def plan(
        self, works: list[Work], read: ReadSide, deadline: float, record: Record
    ) -> Step:
        """Return the step of the documents and their copies, which the controls' step follows.

        Raises:
            Refused: it takes more than a request may, or than there is memory for.
        """
        self._works, documents, ask = works, works[self._documents_start :], self._ask
        most = self._resolver.most_sequences
        steps = divide_documents(ask, self._inputs, documents, self._method, len(works), most)
        dividing = self._worker.run(steps, deadline, self._characters, record)
        self._passages, copy_count, tokens, characters = await dividing
        self._resolver.check_tokens(sum(map(len, works)) + tokens, EVIDENCE_TAKES)
        copies = list[Work]()
        texts = [list(share_texts(passage, self._method)) for passage in self._passages]
        if any(texts):
            # reserved before they wait to be read; admission then counts their works instead
            more = COPY_BYTES * copy_count + CHARACTER_BYTES * characters
            record.reserve(bodies=record.hold.bytes["bodies"] + more)
            copies = await read(self._copies_side(texts))
        counts = [count_controls(ask, passage) for passage in self._passages]
        controls = [work for work, n in zip(documents, counts, strict=True) for _ in range(n)]
        width = self._resolver.model.config.width
        held = count_held([*works, *copies, *controls], copy_count, tokens, characters, width)
        if self._method == "sum":
            # token vectors in float32, and in float64 three times those of the longest text
            held += width * (SINGLE * sum(map(len, works)) + 3 * DOUBLE * max(map(len, works)))
            for work in works:
                work.outputs = replace(work.outputs, tokens=True)

        async def follow() -> Step | None:
            """Compute the evidence, and return the step of the control texts, if any."""
            size = self._characters
            query, scorer = works[0], self._scorer()
            find = scorer.find(query, documents, self._passages, copies)
            self._found = await self._worker.run(find, deadline, size, record)
            self._control_scores = [()] * len(self._passages)
            if not controls:
                return None
            texts = [list(self._control_texts(index)) for index in range(len(self._passages))]
            control_works = await read(self._copies_side(texts))

            async def rate() -> None:
                """Score the control texts."""
                rest = iter(control_works)
                by_document = [[next(rest) for _ in of_document] for of_document in texts]
                rating = scorer.rate(query, by_document)
                self._control_scores = await self._worker.run(rating, deadline, size, record)

            return Step(control_works, rate)

        likes = [(work, n) for work, n in zip(documents, counts, strict=True) if n]
        return Step([*works, *copies], follow, likes, held)

    def price(self, step: Step) -> Price:
        """Return the bytes of memory of the answer, estimated from the documents' lengths."""
        size = 0
        for passage in self._passages:
            shown = min(self._ask.top, len(passage.spans))
            size += DOCUMENT_BYTES + UNIT_BYTES * shown + COPIES * len(passage.text.encode())
        return Price({"shares": size}, self._custom.layout, step.held)

    async def make_items(self, deadline: float) -> Iterable[AnswerItem]:
        """Return an item for each document, best first; equal scores keep their order."""
        works = self._works[self._documents_start :]
        results = zip(works, self._passages, self._found, self._control_scores, strict=True)
        items = [
            AnswerItem(
                len(work),
                {
                    "index": index,
                    "score": found.score,
                    "method": self._method,
                    **_document_facts(self._ask, passage, found, control_scores),
                    "truncated": work.truncated,
                    "length": work.length,
                },
            )
            for index, (work, passage, found, control_scores) in enumerate(results)
        ]
        return sorted(items, key=lambda item: -item.facts["score"])

    def _scorer(self) -> Scorer:
        """Return the Scorer for the request, with the model's way to score."""
        heads = self._works[0].outputs.task_heads
        mean = any(isinstance(head, VectorHead) and head.mean for head in heads)
        return Scorer(self._ask, self._way, self._method, self._resolver.linear, mean)

    @property
    def _characters(self) -> int:
        """Count the characters of the query and the documents."""
        return sum(len(text or "") for entry in self._inputs for text in text_and_pair(entry))

    def _copies_side(self, texts: Sequence[Sequence[str]]) -> Side:
        """Return the side of each document's copies, which a refusal places at the document."""
        copies = [(index, text) for index, of_document in enumerate(texts) for text in of_document]
        at = self._documents.at
        return self._documents._replace(
            inputs=[replace_document(self._inputs[index], text) for index, text in copies],
            at=lambda number, *field: at(copies[number][0], *field),
            counted=False,
            facts=False,
            documents=Documents(),
        )

    def _control_texts(self, index: int) -> Iterator[str]:
        """Yield the `index`-th document without its strongest units, then without random others."""
        passage, strongest = self._passages[index], self._found[index].strongest
        if count_controls(self._ask, passage):
            yield passage.without(strongest)
            yield from map(passage.without, passage.draw_others(strongest))


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
