"""What carries each document's score: the strongest units, and controls.

The query comes first, or each document is a pair. What is scored beside the documents is read
before anything runs, but for the controls, which follow: they lack the strongest units.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from model.task_heads import VectorHead
from service.core import Custom, Documents, ReadSide, Side, Step
from service.encode import answer
from service.encode.names import SPARSE_ONLY, only_sparse
from service.encode.price import Price
from service.encode.resolver import Resolver
from service.encode.worker import Workers
from service.engine.work import Work
from service.inputs import Item, Texts, text_and_pair
from service.observe.record import Record
from service.outputs import MultiVector, Rerank, Wanted
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
    texts_of,
)
from service.questions.highlight.passage import Passage
from service.refusals import Refused
from service.wording.words import Loc

MOST_DOCUMENTS = 64
UNPROMPTED = "a reranker reads the query and a document together, without a prompt"
READ_TOGETHER = "a reranker reads the query and a document together, as texts"
ONE_ADAPTER = "a reranker reads the query and a document together, with one adapter"
UNGATED = 'a reranker reads the query and a document together: "gates" of the request are of both'

DOCUMENT_BYTES, UNIT_BYTES = 200, 100  # of what is said of each, without its text
COPIES = 2  # of a document's text: what is shown of it, and what is left of it


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
        self._before = 0 if self._way == "rerank" else 1  # sequences before the documents'
        self._inputs: Texts = ()
        self._works: Sequence[Work] = ()
        self._passages: Sequence[Passage] = ()
        self._found: Sequence[Evidence] = ()
        self._lacking: Sequence[Sequence[float]] = ()  # scores without units; empty: no controls

    def sides(self) -> Sequence[Side]:
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
        """Return the documents; refuse too many, and what the model does not score by.

        Args:
            prompts, tasks: of the query and of the documents.
        """
        texts = self._ask.document_texts
        if not texts:
            detail = "expected one document or more, received none"
            raise Refused.at("batch_empty", "documents", detail=detail)
        if len(texts) > MOST_DOCUMENTS:
            detail = f"it holds {len(texts):,}, and the limit is {MOST_DOCUMENTS}"
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
        """Return each text with the query, which is tokenized with each.

        Raises:
            Refused: the query is no text, has gates of its own, or is too long for so many texts.
        """
        query = self._ask.query
        text = query if isinstance(query, str) else query.text
        if text is None:
            raise Refused.at("invalid_type", "query", detail=READ_TOGETHER)
        if isinstance(query, Item) and query.gates:
            raise Refused.at("unknown_field", "query", "gates", detail=UNGATED)
        most = self._resolver.most_json // len(texts)
        if len(text) > most:
            raise Refused.at("text_too_long", "query", length=len(text), limit=most)
        return [(text, other) for other in texts]

    def _document_place(self, number: int, *field: str | int) -> Loc:
        """Return where a document stands in the request."""
        return ("documents", number, *(() if field == ("text",) else field))

    def _pair_place(self, number: int, *field: str | int) -> Loc:
        """Return where a text of a pair stands in the request."""
        if field == ("text",):
            return ("query",)
        return ("documents", number, *(() if field == ("pair",) else field))

    async def plan(
        self, works: list[Work], read: ReadSide, deadline: float, record: Record
    ) -> Step:
        """Return what runs first, and the controls that follow.

        Raises:
            Refused: it takes more than a request may, or than there is memory for.
        """
        self._works, documents, asked = works, works[self._before :], self._ask
        most = self._resolver.most_sequences
        steps = divide_documents(asked, self._inputs, documents, self._method, len(works), most)
        divides = self._worker.run(steps, deadline, self._characters, record)
        self._passages, texts, tokens, characters = await divides
        self._resolver.check_tokens(sum(map(len, works)) + tokens, EVIDENCE_TAKES)
        copies = list[Work]()
        made = [list(texts_of(one, self._method)) for one in self._passages]
        if any(made):
            # before they wait; then what is made of them takes its place
            more = COPY_BYTES * texts + CHARACTER_BYTES * characters
            record.reserve(bodies=record.hold.bytes["bodies"] + more)
            copies = await read(self._reduced_side(made))
        counts = [count_controls(asked, one) for one in self._passages]
        last = [work for work, n in zip(documents, counts, strict=True) for _ in range(n)]
        width = self._resolver.model.config.width
        keeps = count_held([*works, *copies, *last], texts, tokens, characters, width)
        if self._method == "sum":
            keeps += 4 * width * (sum(map(len, works)) + 6 * max(map(len, works)))
            for work in works:
                work.outputs = replace(work.outputs, tokens=True)

        async def follow() -> Step | None:
            size = self._characters
            query, scorer = works[0], self._scorer()
            find = scorer.find(query, documents, self._passages, copies)
            self._found = await self._worker.run(find, deadline, size, record)
            self._lacking = [()] * len(self._passages)
            if not last:
                return None
            made = [list(self._control_texts(at)) for at in range(len(self._passages))]
            scored = await read(self._reduced_side(made))

            async def rate() -> None:
                rest = iter(scored)
                texts = [[next(rest) for _ in own] for own in made]
                rating = scorer.rate(query, texts)
                self._lacking = await self._worker.run(rating, deadline, size, record)

            return Step(scored, rate)

        likes = [(work, n) for work, n in zip(documents, counts, strict=True) if n]
        return Step([*works, *copies], follow, likes, keeps)

    def price(self, step: Step) -> Price:
        size = 0
        for one in self._passages:
            shown = min(self._ask.top, len(one.spans))
            size += DOCUMENT_BYTES + UNIT_BYTES * shown + COPIES * len(one.text.encode())
        return Price({"shares": size}, self._custom.layout, step.held)

    async def make_items(self, deadline: float) -> Iterable[answer.Item]:
        """Return what is answered of each document, best first; of equal ones the first."""
        works = self._works[self._before :]
        known = zip(works, self._passages, self._found, self._lacking, strict=True)
        items = [
            answer.Item(
                len(work),
                {
                    "index": index,
                    "score": found.score,
                    "method": self._method,
                    **_document_facts(self._ask, one, found, lacking),
                    "truncated": work.truncated,
                    "length": work.length,
                },
            )
            for index, (work, one, found, lacking) in enumerate(known)
        ]
        return sorted(items, key=lambda item: -item.facts["score"])

    def _scorer(self) -> Scorer:
        """Return what scores the documents, by the way that the model has."""
        heads = self._works[0].outputs.task_heads
        mean = any(isinstance(head, VectorHead) and head.mean for head in heads)
        return Scorer(self._ask, self._way, self._method, self._resolver.linear, mean)

    @property
    def _characters(self) -> int:
        """Count the characters of the query and the documents."""
        return sum(len(text or "") for one in self._inputs for text in text_and_pair(one))

    def _reduced_side(self, texts: Sequence[Sequence[str]]) -> Side:
        """Return the side of texts in the places of documents."""
        made = [(at, text) for at, own in enumerate(texts) for text in own]
        at = self._documents.at
        return self._documents._replace(
            inputs=[replace_document(self._inputs[number], text) for number, text in made],
            at=lambda number, *field: at(made[number][0], *field),
            counted=False,
            facts=False,
            documents=Documents(),
        )

    def _control_texts(self, at: int) -> Iterator[str]:
        """Yield a document without its strongest units, then without random others."""
        one, strongest = self._passages[at], self._found[at].strongest
        if count_controls(self._ask, one):
            yield one.without(strongest)
            yield from map(one.without, one.draws(strongest))


def _document_facts(
    asked: HighlightRequest, one: Passage, found: Evidence, lacking: Sequence[float]
) -> dict[str, Any]:
    """Return what is answered of one document.

    Args:
        lacking: its score without the strongest units, then without random others.
    """
    told: dict[str, Any] = {
        "highlights": [
            {
                "characters": one.spans[unit],
                "text": one.text[slice(*one.spans[unit])],
                "share": found.shares[unit],
                "units": one.numbers[unit],
            }
            for unit in found.strongest
        ],
        "rest": found.rest,
        "without": lacking[0] if lacking else None,
        "control": None,
    }
    if random := lacking[1:]:
        told["control"] = {"without_random": fmean(random), "deviation": stdev(random)}
    if asked.prune is not None:
        told["pruned"] = prune(one, found.order, asked.prune)
    return told


def prune(one: Passage, order: Iterable[int], share: float) -> str:
    """Return the strongest units of a document in its own order, and all else left out.

    Args:
        order: all units, strongest first; they are taken until one does not fit, and one at least.
        share: of the characters that were read.
    """
    room, kept, spans = share * (one.stop - one.start), set[int](), one.spans
    for unit in order:
        end = spans[unit + 1][0] if unit + 1 < len(spans) else one.stop
        room -= end - spans[unit][0]
        if kept and room < 0:
            break
        kept.add(unit)
    return one.without({*range(len(spans))} - kept).strip()
