"""What carries the scores of documents: the units of each, and the texts that lack some of them.

    shares     exact where the score is a sum over tokens: of a linear pooling, of late interaction
    occlusion  elsewhere: the score less that of the text without the unit
    alone      where a request asks for it: the score of each unit by itself
    without    the text without the strongest units, which are known once the shares are
    controls   the texts without as many others, drawn at random

A text that lacks units is read and scored as if a client had sent it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from model.maps.units import Units, divide_into_units
from model.similarity import LinearPooling, NotLinear
from model.task_heads import match_vectors
from service.encode.shown import short_numbers
from service.encode.worker import Steps
from service.engine.work import Result, Work, cosine
from service.inputs import Text, Texts, text_and_pair
from service.questions.highlight import HighlightRequest
from service.questions.highlight.passage import Passage, draws, make_passage
from service.refusals import Refused

MOST_CHARACTERS = 1 << 20  # of all texts that documents are scored by, together
COPY_BYTES, TOKEN_BYTES, CHARACTER_BYTES = 1800, 70, 4  # of such a text, as admission counts

EVIDENCE_TAKES = "with its controls, and units left out or read one at a time, it takes the work of"
TOO_MUCH_EVIDENCE = (
    "with its controls, and units left out or read one at a time, it takes at least "
)
TOO_MUCH_EVIDENCE += "{count:,} {what}, and the limit is {limit:,}"

SUM_METHODS = ("sum", "maxsim")  # methods whose shares are parts of the score
Way = Literal["pooled", "maxsim", "rerank"]  # how a document is scored
Method = Literal["sum", "maxsim", "occlusion", "alone"]


def choose_method(asked: HighlightRequest, way: Way, linear: LinearPooling | NotLinear) -> Method:
    """Return what tells shares.

    Args:
        linear: the pooling as a sum over tokens, if it is one.
    """
    if asked.method == "alone":
        return "alone"
    if way == "maxsim":
        return "maxsim"
    return "sum" if way == "pooled" and isinstance(linear, LinearPooling) else "occlusion"


class Score(NamedTuple):
    """How well a text answers, and what orders texts where an activation makes them equal."""

    value: float
    order: float


@dataclass(frozen=True, slots=True)
class Evidence:
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


@dataclass(frozen=True, slots=True)
class Scorer:
    """Finds what carries the scores of documents in what the model made of them.

    Args:
        linear: the pooling as a sum over tokens, if it is one.
        mean: whether a late interaction is a mean.
    """

    asked: HighlightRequest
    way: Way
    method: Method
    linear: LinearPooling | NotLinear
    mean: bool

    def rate(self, query: Work, texts: Sequence[Sequence[Work]]) -> Steps[list[list[float]]]:
        """Score texts of each document, one document a step."""
        rated = list[list[float]]()
        for own in texts:
            rated.append([self._score(query.result, work.result).value for work in own])
            yield
        return rated

    def find(
        self,
        query: Work,
        documents: Sequence[Work],
        passages: Sequence[Passage],
        copies: Sequence[Work],
    ) -> Steps[list[Evidence]]:
        """Find what carries each document, one a step.

        Args:
            copies: of each document in turn: without each unit, or each unit by itself.
        """
        torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
        found, rest = list[Evidence](), (copy.result for copy in copies)
        for one, document in zip(passages, documents, strict=True):
            found.append(self._find_one(one, query.result, document.result, rest))
            yield
        return found

    def _find_one(
        self, one: Passage, query: Result, document: Result, rest: Iterator[Result]
    ) -> Evidence:
        """Find what carries one document.

        Args:
            rest: of the other texts, its own first.
        """
        size, score, total = len(one.spans), self._score(query, document), None
        if self.method in SUM_METHODS:
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
        return Evidence(score.value, shares, order, strongest, total)

    def _score(self, query: Result, document: Result) -> Score:
        """Return how well a document answers, as the routes for scores alone do."""
        match self.way:
            case "rerank":
                task = document.task
                return Score(short_numbers(task["scores"][:1])[0], float(task["logits"][0]))
            case "maxsim":
                vectors = document.task["vectors"]
                score = self._match(query, document).score if len(vectors) else 0.0
                return Score(score, score)
            case "pooled":
                score = cosine(query.vector, document.vector)
                return Score(score, score)

    def _match(self, query: Result, document: Result) -> Any:
        """Match the tokens of a query and a document."""
        rows, columns = (torch.from_numpy(one.task["vectors"]) for one in (query, document))
        return match_vectors(rows, columns, self.mean)

    def _shares(self, query: Result, document: Result, one: Passage) -> tuple[list[float], float]:
        """Return the share of each unit, and that of all else."""
        owners, rest, linear = torch.tensor(one.owners, dtype=torch.int64), 0.0, self.linear
        if self.way == "maxsim":
            if not len(document.task["vectors"]):
                return [0.0] * len(one.spans), 0.0
            found = self._match(query, document)
            values = found.values / (len(found.values) if self.mean else 1)
            owners = owners[torch.from_numpy(document.task["kept"]).long()[found.places]]
        elif (
            isinstance(linear, LinearPooling)
            and query.tokens is not None
            and document.tokens is not None
        ):
            tokens = len(document.tokens)
            whole = Units(((0, len(query.tokens)),), (0,))
            left = linear.weigh_text(torch.from_numpy(query.tokens), whole)
            right = linear.weigh_text(torch.from_numpy(document.tokens), divide_into_units(tokens))
            made = linear.share_cosine(left, right)
            values, rest = torch.cat(list(made.blocks()))[0], made.dropped + made.bias
        else:
            raise RuntimeError("token vectors that were asked for are missing: this is a bug")
        size = len(one.spans)
        owners = torch.where(owners < 0, size, owners)
        *shares, others = values.new_zeros(size + 1).index_add(0, owners, values).tolist()
        return shares, others + rest


def divide_documents(
    asked: HighlightRequest,
    inputs: Texts,
    documents: Sequence[Work],
    method: Method,
    own: int,
    most: int,
) -> Steps[tuple[list[Passage], int, int, int]]:
    """Divide documents, one a step, and count what `_count_more` counts of each.

    Args:
        own: sequences that the request has already; more than documents: the query apart.
        most: sequences of a request.

    Raises:
        Refused: they take more.
    """
    passages, texts, tokens, characters = list[Passage](), 0, 0, 0
    whole = method == "alone" and asked.unit == "sentence"
    for one, work in zip(inputs, documents, strict=True):
        text, pair = text_and_pair(one)
        text, query = (text, "") if own > len(documents) else (pair, text)
        made = make_passage(text or "", work, asked.unit, most=most + 1, whole=whole)
        more = _count_more(asked, made, work, method, len(query or ""))
        passages.append(made)
        texts, tokens, characters = texts + more[0], tokens + more[1], characters + more[2]
        _check_size(own + texts, most, "sequences")
        yield None
    _check_size(characters, MOST_CHARACTERS, "characters")
    return passages, texts, tokens, characters


def _check_size(size: int, limit: int, what: str) -> None:
    """Refuse more of something than a request may take."""
    if size > limit:
        detail = TOO_MUCH_EVIDENCE.format(count=size, what=what, limit=limit)
        raise Refused("batch_too_large", detail=detail, limit=limit)


def count_held(works: Sequence[Work], copies: int, tokens: int, characters: int, width: int) -> int:
    """Count the bytes that are kept of all works.

    Args:
        copies, tokens, characters: of texts other than documents.
        width: of a token's vector.
    """
    held = COPY_BYTES * copies + TOKEN_BYTES * tokens + CHARACTER_BYTES * characters
    held += sum(head.count_bytes(len(work)) for work in works for head in work.outputs.task_heads)
    pooling = works[0].outputs.pooling
    return held + (4 * pooling.uncut_size(width) * len(works) if pooling else 0)


def count_controls(asked: HighlightRequest, one: Passage) -> int:
    """Count a document's texts without its strongest units, and without random others."""
    others = len(one.spans) - asked.top
    return 1 + draws(others, asked.top) if asked.control and others > 0 else 0


def _count_more(
    asked: HighlightRequest, one: Passage, work: Work, method: Method, query: int
) -> tuple[int, int, int]:
    """Count the other texts of a document, and about how many tokens and characters they have.

    Args:
        query: characters that each is read with.
    """
    size = len(one.spans)
    texts = lacking = count_controls(asked, one) + (
        size if method == "occlusion" and size > 1 else 0
    )
    tokens, characters = lacking * len(work), lacking * (one.stop - one.start)
    if method == "alone":
        texts += size
        # a unit is cut where the document was
        tokens += min(work.length, size * len(work)) + size * one.owners.count(-1)
        characters += one.stop - one.start
    return texts, tokens, characters + texts * query


def texts_of(one: Passage, method: Method) -> Iterator[str]:
    """Yield the texts of a document that the first step scores beside it."""
    size = len(one.spans)
    if method == "alone":
        yield from (one.text[start:end] for start, end in one.spans)
    elif method == "occlusion" and size > 1:
        yield from (one.without([unit]) for unit in range(size))


def replace_document(document: Text, text: str) -> Text:
    """Return a text in the place of a document, or of that of a pair."""
    return (document[0], text) if isinstance(document, tuple) else text
