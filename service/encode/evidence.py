"""What carries the scores of documents: the units of each, and the texts that lack some of them.

    shares     exact where the score is a sum over tokens: of a linear pooling, of late interaction
    occlusion  elsewhere: the score less that of the text without the unit
    alone      where a request asks for it: the score of each unit by itself
    without    the text without the strongest units, which are known once the shares are
    controls   the texts without as many others, drawn at random

A text that lacks units is read and scored as if a client had sent it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch

from model.maps.units import Units, divide
from model.pooling import Pooling
from model.similarity import Linear, NotLinear
from model.task_heads import Vectors, match
from service.encode.interventions import CheckTokens, Outcome, Submit
from service.encode.passage import Passage, draws, passage
from service.encode.request import Highlight, Input, Request
from service.encode.shown import numbers
from service.encode.worker import Steps, Worker
from service.engine.work import Result, Work, cosine
from service.memory import NoRoom
from service.observe.record import Record
from service.refusals import Refused

MOST_CHARACTERS = 1 << 20  # of all texts that documents are scored by, together
COPY_BYTES, TOKEN_BYTES, CHARACTER_BYTES = 1800, 70, 4  # of such a text, as admission counts

TAKES = "with its controls, and units left out or read one at a time, it takes the work of"
MANY = "with its controls, and units left out or read one at a time, it takes at least "
MANY += "{count:,} {what}, and the limit is {limit:,}"

SUMS = ("sum", "maxsim")  # methods whose shares are parts of the score
Method = Literal["sum", "maxsim", "occlusion", "alone"]
Read = Callable[[Sequence[Input], Sequence[int]], Awaitable[list[Work]]]


def method_of(asked: Highlight, linear: Linear | None) -> Method:
    """Return what tells shares.

    Args:
        linear: the pooling as a sum over tokens; None where it is none.
    """
    if asked.method == "alone":
        return "alone"
    if asked.way == "maxsim":
        return "maxsim"
    return "sum" if asked.way == "pooled" and linear is not None else "occlusion"


def linear_of(pooling: Pooling) -> Linear | None:
    """Return a pooling as a sum over tokens; None where it is none."""
    try:
        return Linear(pooling)
    except NotLinear:
        return None


class Score(NamedTuple):
    """How well a text answers, and what orders texts where an activation makes them equal."""

    value: float
    order: float


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a document.

    Args:
        shares: of each unit, in order.
        order: the units, strongest first; of equal ones the first.
        strongest: those that are shown.
        rest: what other units and tokens add; None where shares are no parts of the score.
    """

    score: float
    shares: Sequence[float]
    order: Sequence[int]
    strongest: Sequence[int]
    rest: float | None


@dataclass(slots=True)
class Evidence:
    """The works of a request for evidence; those of its last step follow from the first.

    Args:
        works: the query and each document, or each pair of them.
        passages: the documents.
        copies: works of other texts: of each document without each unit, or of each unit, where
            that is what tells its share; then the documents, each in place of what `lacking` scores
            of it, which is no longer.
        held: bytes that are kept, without the answer.
        inputs: the documents.
        found: of each document, once it ran.
        lacking: scores of each document without its strongest units, then without random others;
            empty without controls.
    """

    works: Sequence[Work]
    passages: Sequence[Passage]
    copies: Sequence[Work]
    held: int
    asked: Highlight
    method: Method
    inputs: Sequence[Input]
    linear: Linear | None
    read: Read
    worker: Worker
    deadline: float
    record: Record
    found: Sequence[Found] = ()
    lacking: Sequence[Sequence[float]] = ()

    @property
    def every(self) -> list[Work]:
        """Return all works, in the order in which the steps take them."""
        return [*self.works, *self.copies]

    async def run(self, submit: Submit) -> Outcome:
        """Run all in two steps."""
        last = sum(_controls(self.asked, one) for one in self.passages)
        results = await submit(self.every[: len(self.works) + len(self.copies) - last])
        size = sum(len(one.text) for one in self.passages)
        self.found = await self.worker.run(self._find(results), self.deadline, size, self.record)
        self.lacking = [()] * len(self.passages)
        if last:
            before = len(self.works) - len(self.passages)
            made = [(at, text) for at in range(len(self.passages)) for text in self._controls(at)]
            inputs = [_input(self.asked, self.inputs[at], text) for at, text in made]
            sources = [at + before for at, _ in made]
            scored = await submit(await self.read(inputs, sources))
            rate = self._rate(results[0], scored)
            self.lacking = await self.worker.run(rate, self.deadline, size, self.record)
        return Outcome(list(results[: len(self.works)]), [])

    def _controls(self, at: int) -> Iterator[str]:
        """Yield a document without its strongest units, then without random others."""
        one, strongest = self.passages[at], self.found[at].strongest
        if _controls(self.asked, one):
            yield one.without(strongest)
            yield from map(one.without, one.draws(strongest))

    def _rate(self, query: Result, scored: Sequence[Result]) -> Steps[list[list[float]]]:
        """Score what `_controls` made of the documents, one document a step."""
        rest, rated = iter(scored), list[list[float]]()
        for one in self.passages:
            own = islice(rest, _controls(self.asked, one))
            rated.append([self._score(query, result).value for result in own])
            yield
        return rated

    def _find(self, results: Sequence[Result]) -> Steps[list[Found]]:
        """Find what carries each document, one a step."""
        torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
        before, found = len(self.works) - len(self.passages), list[Found]()
        rest = iter(results[len(self.works) :])
        for at, one in enumerate(self.passages):
            found.append(self._found(one, results[0], results[before + at], rest))
            yield
        return found

    def _found(
        self, one: Passage, query: Result, document: Result, rest: Iterator[Result]
    ) -> Found:
        """Find what carries one document.

        Args:
            rest: of the other texts, its own first.
        """
        size, score, total = len(one.spans), self._score(query, document), None
        if self.method in SUMS:
            shares, total = self._shares(query, document, one)
            strengths = shares
        elif self.method == "alone":
            units = [self._score(query, next(rest)) for _ in range(size)]
            shares, strengths = [unit.value for unit in units], [unit.order for unit in units]
        elif size > 1:
            lacking = [self._score(query, next(rest)) for _ in range(size)]
            shares = [score.value - other.value for other in lacking]
            strengths = [score.order - other.order for other in lacking]
        else:
            shares = strengths = [score.value] * size
        order = sorted(range(size), key=lambda unit: (-strengths[unit], unit))
        strongest, others = order[: self.asked.top], order[self.asked.top :]
        if total is not None:
            total += sum(shares[unit] for unit in sorted(others))
        return Found(score.value, shares, order, strongest, total)

    def _score(self, query: Result, document: Result) -> Score:
        """Return how well a document answers, as the routes for scores alone do."""
        match self.asked.way:
            case "rerank":
                task = document.task
                return Score(numbers(task["scores"][:1])[0], float(task["logits"][0]))
            case "maxsim":
                vectors = document.task["vectors"]
                score = self._match(query, document).score if len(vectors) else 0.0
                return Score(score, score)
            case "pooled":
                score = cosine(query.vector, document.vector)
                return Score(score, score)

    def _match(self, query: Result, document: Result) -> Any:
        rows, columns = (torch.from_numpy(one.task["vectors"]) for one in (query, document))
        return match(rows, columns, self._mean)

    @property
    def _mean(self) -> bool:
        heads = self.works[0].outputs.task_heads
        return any(isinstance(head, Vectors) and head.mean for head in heads)

    def _shares(self, query: Result, document: Result, one: Passage) -> tuple[list[float], float]:
        """Return the share of each unit, and that of all else."""
        owners, rest = torch.tensor(one.owners, dtype=torch.int64), 0.0
        if self.asked.way == "maxsim":
            if not len(document.task["vectors"]):
                return [0.0] * len(one.spans), 0.0
            found = self._match(query, document)
            values = found.values / (len(found.values) if self._mean else 1)
            owners = owners[torch.from_numpy(document.task["kept"]).long()[found.places]]
        elif self.linear is not None and query.tokens is not None and document.tokens is not None:
            tokens = len(document.tokens)
            whole = Units(((0, len(query.tokens)),), (0,))
            left = self.linear.side(torch.from_numpy(query.tokens), whole)
            right = self.linear.side(torch.from_numpy(document.tokens), divide(tokens))
            made = self.linear.shares(left, right)
            values, rest = torch.cat(list(made.blocks()))[0], made.dropped + made.bias
        else:
            raise RuntimeError("token vectors that were asked for are missing: this is a bug")
        size = len(one.spans)
        owners = torch.where(owners < 0, size, owners)
        *shares, others = values.new_zeros(size + 1).index_add(0, owners, values).tolist()
        return shares, others + rest


async def evidence(
    asked: Highlight,
    request: Request,
    works: Sequence[Work],
    linear: Linear | None,
    width: int,
    read: Read,
    worker: Worker,
    deadline: float,
    record: Record,
    most: int,
    check_tokens: CheckTokens,
) -> Evidence:
    """Return the course of a request for evidence.

    Args:
        asked: how it ends.
        linear: the pooling as a sum over tokens; None where it is none.
        width: of a token's vector.
        read: makes works of inputs, told which of the request's inputs they come from.
        most: sequences of a request.
        check_tokens: refuses too many tokens of a request; told what holds them.

    Raises:
        Refused: it takes more than a request may, or than there is memory for.
    """
    before = 1 if request.first else 0
    inputs, documents, method = request.inputs[before:], works[before:], method_of(asked, linear)
    size = sum(len(one.text or "") + len(one.pair or "") for one in inputs)
    steps = _divided(asked, inputs, documents, method, len(works), most)
    passages, texts, tokens, characters = await worker.run(steps, deadline, size, record)
    check_tokens(sum(map(len, works)) + tokens, TAKES)
    made = [(at, text) for at, one in enumerate(passages) for text in _texts(one, method)]
    copies = list[Work]()
    if made:
        try:  # before they wait; then what is made of them takes its place
            record.hold.take(bodies=COPY_BYTES * texts + CHARACTER_BYTES * characters)
        except NoRoom:
            record.shed = "memory"
            raise Refused("overloaded", retry_after=1) from None
        others = [_input(asked, inputs[at], text) for at, text in made]
        copies = await read(others, [at + before for at, _ in made])
    pairs = zip(documents, passages, strict=True)
    last = [work for work, one in pairs for _ in range(_controls(asked, one))]
    held = _held([*works, *copies, *last], texts, tokens, characters, width)
    if method == "sum":
        held += 4 * width * (sum(map(len, works)) + 6 * max(map(len, works)))
        for work in works:
            work.outputs = replace(work.outputs, tokens=True)
    every = [*copies, *last]
    return Evidence(
        works, passages, every, held, asked, method, inputs, linear, read, worker, deadline, record
    )


def _divided(
    asked: Highlight,
    inputs: Sequence[Input],
    documents: Sequence[Work],
    method: Method,
    own: int,
    most: int,
) -> Steps[tuple[list[Passage], int, int, int]]:
    """Divide documents, one a step, and count what `_more` counts of each.

    Args:
        own: sequences that the request has already; more than documents: the query apart.
        most: sequences of a request.

    Raises:
        Refused: they take more.
    """
    passages, texts, tokens, characters = list[Passage](), 0, 0, 0
    whole = method == "alone" and asked.unit == "sentence"
    for one, work in zip(inputs, documents, strict=True):
        text, query = (one.text, "") if own > len(documents) else (one.pair, one.text)
        made = passage(text or "", work, asked.unit, most=most + 1, whole=whole)
        more = _more(asked, made, work, method, len(query or ""))
        passages.append(made)
        texts, tokens, characters = texts + more[0], tokens + more[1], characters + more[2]
        _check(own + texts, most, "sequences")
        yield None
    _check(characters, MOST_CHARACTERS, "characters")
    return passages, texts, tokens, characters


def _check(size: int, limit: int, what: str) -> None:
    """Refuse more of something than a request may take."""
    if size > limit:
        detail = MANY.format(count=size, what=what, limit=limit)
        raise Refused("batch_too_large", detail=detail, limit=limit)


def _held(works: Sequence[Work], copies: int, tokens: int, characters: int, width: int) -> int:
    """Count the bytes that are kept of all works.

    Args:
        copies, tokens, characters: of texts other than documents.
        width: of a token's vector.
    """
    held = COPY_BYTES * copies + TOKEN_BYTES * tokens + CHARACTER_BYTES * characters
    held += sum(head.bytes(len(work)) for work in works for head in work.outputs.task_heads)
    pooling = works[0].outputs.pooling
    return held + (4 * pooling.size(width) * len(works) if pooling else 0)


def _controls(asked: Highlight, one: Passage) -> int:
    """Count a document's texts without its strongest units, and without random others."""
    others = len(one.spans) - asked.top
    return 1 + draws(others, asked.top) if asked.control and others > 0 else 0


def _more(
    asked: Highlight, one: Passage, work: Work, method: Method, query: int
) -> tuple[int, int, int]:
    """Count the other texts of a document, and about how many tokens and characters they have.

    Args:
        query: characters that each is read with.
    """
    size = len(one.spans)
    texts = lacking = _controls(asked, one) + (size if method == "occlusion" and size > 1 else 0)
    tokens, characters = lacking * len(work), lacking * (one.stop - one.start)
    if method == "alone":
        texts += size
        # a unit is cut where the document was
        tokens += min(work.length, size * len(work)) + size * one.owners.count(-1)
        characters += one.stop - one.start
    return texts, tokens, characters + texts * query


def _texts(one: Passage, method: Method) -> Iterator[str]:
    """Yield the texts of a document that the first step scores beside it."""
    size = len(one.spans)
    if method == "alone":
        yield from (one.text[start:end] for start, end in one.spans)
    elif method == "occlusion" and size > 1:
        yield from (one.without([unit]) for unit in range(size))


def _input(asked: Highlight, document: Input, text: str) -> Input:
    """Return the input of a text in the place of a document."""
    return Input(document.text, text) if asked.way == "rerank" else Input(text)
