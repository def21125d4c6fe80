"""What carries the scores of documents: the shares of their units, and copies without some of them.

    alone      the score of each unit by itself
    occlusion  the score less that of the text without the unit
    sum        the unit's exact share of the score, where the pooling is a sum over tokens
    maxsim     the same of late interaction, which is a sum over matches
    without    the score of the text without its strongest units
    controls   the scores of the text without as many other units, drawn at random

A copy without units is tokenized and scored as if a client had sent it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch

from model.maps.units import Units, divide_into_units
from model.similarity import LinearPooling, NotLinear
from model.task_heads import TaskHead, VectorHead, match_vectors
from service.pipeline.cost import SINGLE
from service.pipeline.worker import Steps
from service.pipeline.write.task_answers import short_numbers
from service.questions.highlight import HighlightRequest, Method
from service.questions.highlight.passage import Passage, count_draws, make_passage
from service.shapes.inputs import Text, Texts, text_and_pair
from service.shapes.work import Result, Work, cosine
from service.tables.refusals import Refused
from service.tables.wording.words import quote_names

MOST_CHARACTERS = 1 << 20  # of all copies of a request's documents, together
# Bytes of memory of a copy, and of each of its tokens and characters, as admission counts them
COPY_BYTES, TOKEN_BYTES, CHARACTER_BYTES = 1800, 70, 4

# Details of refusals
EVIDENCE_TAKES = "with its units and controls it takes the work of"
TOO_MUCH_EVIDENCE = "with its units and controls it takes at least {count:,} {what}, and the limit "
TOO_MUCH_EVIDENCE += "is {limit:,}"

SUM_METHODS: Sequence[Method] = ("sum", "maxsim")  # shares and rest add up to the score
Way = Literal["pooled", "maxsim", "rerank"]  # how a document is scored
METHODS: dict[Way, Sequence[Method]] = {  # methods that each way has; the default comes first
    "pooled": ("alone", "occlusion", "sum"),
    "maxsim": ("maxsim", "alone", "occlusion"),
    "rerank": ("occlusion", "alone"),
}


def choose_method(ask: HighlightRequest, way: Way, linear: LinearPooling | NotLinear) -> Method:
    """Return the method by which units get their shares.

    Raises:
        Refused: the request asks for one that the model does not have.
    """
    methods = METHODS[way]
    if isinstance(linear, NotLinear):
        methods = [method for method in methods if method != "sum"]
    method = ask.method or methods[0]
    if method not in methods:
        detail = f'expected {quote_names(methods)} for this model, received "{method}"'
        raise Refused.at("out_of_range", "method", detail=detail)
    return method


class Score(NamedTuple):
    """How well a text answers."""

    value: float
    order: float  # a reranker's logit, as an activation may make scores equal; else the value


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document's score, and its units' shares of it.

    Args:
        shares: of each unit, in order.
        order: the units' indices, strongest first; equal ones keep their order.
        strongest: the first of `order`, which are shown.
        rest: what all other units and tokens add to the score; None where shares do not add up.
    """

    score: float
    shares: Sequence[float]
    order: Sequence[int]
    strongest: Sequence[int]
    rest: float | None


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores documents and their units from the results of their works.

    Args:
        way: how a document is scored.
        method: how units get their shares.
        linear: the pooling as a sum over tokens, or why it is none.
        heads: task heads, one of which makes vectors for a late interaction.
    """

    ask: HighlightRequest
    way: Way
    method: Method
    linear: LinearPooling | NotLinear
    heads: Sequence[TaskHead]

    def rate(
        self, query: Work, works: Sequence[Work], counts: Sequence[int]
    ) -> Steps[list[list[float]]]:
        """Return the scores of each document's control texts, one document per step.

        Args:
            works: of all control texts.
            counts: how many of them each document has.
        """
        scores, results = list[list[float]](), (work.result for work in works)
        for count in counts:
            own = islice(results, count)
            scores.append([self._score(query.result, result).value for result in own])
            yield
        return scores

    @property
    def mean(self) -> bool:
        """Tell whether a late interaction is a mean, not a sum."""
        return any(isinstance(head, VectorHead) and head.mean for head in self.heads)

    def find(
        self,
        query: Work,
        documents: Sequence[Work],
        passages: Sequence[Passage],
        copies: Sequence[Work],
    ) -> Steps[list[Evidence]]:
        """Return the evidence of each document, one document per step.

        Args:
            passages: the documents in units.
            copies: of each document in turn: without each unit, or each unit by itself.
        """
        torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
        found, copy_results = list[Evidence](), (copy.result for copy in copies)
        for passage, document in zip(passages, documents, strict=True):
            found.append(self._find_one(passage, query.result, document.result, copy_results))
            yield
        return found

    def _find_one(
        self, passage: Passage, query: Result, document: Result, copies: Iterator[Result]
    ) -> Evidence:
        """Return the evidence of one document.

        Args:
            copies: results of copies; the next ones are this document's.
        """
        size, score, rest = len(passage.spans), self._score(query, document), None
        if self.method in SUM_METHODS:
            shares, rest = self._share_score(query, document, passage)
            strengths = shares
        elif self.method == "alone":
            units = [self._score(query, next(copies)) for _ in range(size)]
            shares, strengths = [unit.value for unit in units], [unit.order for unit in units]
        elif size > 1:
            lacking = [self._score(query, next(copies)) for _ in range(size)]
            shares = [score.value - other.value for other in lacking]
            strengths = [score.order - other.order for other in lacking]
        else:
            shares = strengths = [score.value] * size
        order = sorted(range(size), key=lambda unit: (-strengths[unit], unit))
        strongest, others = order[: self.ask.top], order[self.ask.top :]
        if rest is not None:
            rest += sum(shares[unit] for unit in sorted(others))
        return Evidence(score.value, shares, order, strongest, rest)

    def _score(self, query: Result, document: Result) -> Score:
        """Return how well a document answers, as POST /rerank, /v1/maxsim or /v1/similarity do."""
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
        """Match the tokens of a query and a document by late interaction; see match_vectors."""
        rows, columns = (torch.from_numpy(side.task["vectors"]) for side in (query, document))
        return match_vectors(rows, columns, self.mean)

    def _share_score(
        self, query: Result, document: Result, passage: Passage
    ) -> tuple[list[float], float]:
        """Return the share of each unit in the score, and that of all other tokens together."""
        owners, rest, linear = torch.tensor(passage.owners, dtype=torch.int64), 0.0, self.linear
        if self.way == "maxsim":
            if not len(document.task["vectors"]):
                return [0.0] * len(passage.spans), 0.0
            matches = self._match(query, document)
            values = matches.values / (len(matches.values) if self.mean else 1)
            owners = owners[torch.from_numpy(document.task["kept"]).long()[matches.places]]
        elif (
            isinstance(linear, LinearPooling)
            and query.tokens is not None
            and document.tokens is not None
        ):
            tokens = len(document.tokens)
            whole = Units(((0, len(query.tokens)),), (0,))
            left = linear.weigh_text(torch.from_numpy(query.tokens), whole)
            right = linear.weigh_text(torch.from_numpy(document.tokens), divide_into_units(tokens))
            shared = linear.share_cosine(left, right)
            values, rest = torch.cat(list(shared.blocks()))[0], shared.dropped + shared.bias
        else:
            raise RuntimeError("token vectors that were asked for are missing: this is a bug")
        size = len(passage.spans)
        owners = torch.where(owners < 0, size, owners)
        *shares, others = values.new_zeros(size + 1).index_add(0, owners, values).tolist()
        return shares, others + rest


def divide_documents(
    ask: HighlightRequest,
    inputs: Texts,
    documents: Sequence[Work],
    method: Method,
    sequences: int,
    most: int,
) -> Steps[tuple[list[Passage], int, int, int]]:
    """Divide documents into units, one document per step.

    Args:
        inputs: of the documents; each with the query where it is a pair.
        sequences: of the request without copies: the documents, and the query unless in pairs.
        most: most sequences of a request, copies included.

    Returns:
        The passages; then how many copies they need, and the copies' tokens and characters.

    Raises:
        Refused: the copies are too many or too long.
    """
    passages, copies, tokens, characters = list[Passage](), 0, 0, 0
    whole = method == "alone" and ask.unit == "sentence"
    for entry, work in zip(inputs, documents, strict=True):
        text, pair = text_and_pair(entry)
        text, query = (text, "") if sequences > len(documents) else (pair, text)
        passage = make_passage(text or "", work, ask.unit, most=most + 1, whole=whole)
        counts = _count_copies(ask, passage, work, method, len(query or ""))
        passages.append(passage)
        copies, tokens, characters = copies + counts[0], tokens + counts[1], characters + counts[2]
        _check_size(sequences + copies, most, "sequences")
        yield None
    _check_size(characters, MOST_CHARACTERS, "characters")
    return passages, copies, tokens, characters


def _check_size(size: int, limit: int, what: str) -> None:
    """Refuse a request for which `size` of `what`, such as "sequences", exceeds the limit."""
    if size > limit:
        detail = TOO_MUCH_EVIDENCE.format(count=size, what=what, limit=limit)
        raise Refused("batch_too_large", detail=detail, limit=limit)


def count_held(works: Sequence[Work], copies: int, tokens: int, characters: int, width: int) -> int:
    """Return the bytes kept until the answer: of copies, task outputs and pooled vectors.

    Args:
        works: of all texts, copies and controls.
        copies, tokens, characters: the number of copies, and their tokens and characters.
        width: numbers in a token's vector.
    """
    held = COPY_BYTES * copies + TOKEN_BYTES * tokens + CHARACTER_BYTES * characters
    held += sum(head.count_bytes(len(work)) for work in works for head in work.outputs.task_heads)
    pooling = works[0].outputs.pooling
    return held + (SINGLE * pooling.uncut_size(width) * len(works) if pooling else 0)


def count_controls(ask: HighlightRequest, passage: Passage) -> int:
    """Count a document's control texts: without its strongest units, and without random others."""
    others = len(passage.spans) - ask.top
    return 1 + count_draws(others, ask.top) if ask.control and others > 0 else 0


def _count_copies(
    ask: HighlightRequest, passage: Passage, work: Work, method: Method, query: int
) -> tuple[int, int, int]:
    """Return how many copies a document needs, and about how many tokens and characters they have.

    Args:
        query: characters of the query that each is paired with; 0 if none.
    """
    size = len(passage.spans)
    copies = lacking = count_controls(ask, passage) + (
        size if method == "occlusion" and size > 1 else 0
    )
    tokens, characters = lacking * len(work), lacking * (passage.stop - passage.start)
    if method == "alone":
        copies += size
        # a unit is cut where the document was; -1: a token of no unit, in each copy
        tokens += min(work.length, size * len(work)) + size * passage.owners.count(-1)
        characters += passage.stop - passage.start
    return copies, tokens, characters + copies * query


def share_texts(passage: Passage, method: Method) -> Iterator[str]:
    """Yield the texts of the copies of a document that are scored for its units' shares."""
    size = len(passage.spans)
    if method == "alone":
        yield from (passage.text[start:end] for start, end in passage.spans)
    elif method == "occlusion" and size > 1:
        yield from (passage.without([unit]) for unit in range(size))


def replace_document(document: Text, text: str) -> Text:
    """Return an input with a document's text replaced; of a pair, that is the second text."""
    return (document[0], text) if isinstance(document, tuple) else text
