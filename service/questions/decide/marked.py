"""Questions that a decision model answers: each in a sequence, whose options are marked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from model import packing
from model.decider import Decider
from model.text.question import OPTION_TOKENS, Fit, fit_question
from service.pipeline.find.resolver import Resolver
from service.questions.contrast import Contrast, Segment
from service.questions.decide import DecideRequest, DecisionQuestion
from service.questions.decide.asked import (
    AskedQuestion,
    Order,
    by_options,
    count_orders,
    draw_orders,
    own_order,
)
from service.shapes.answer import Array
from service.shapes.ask import Documents
from service.shapes.side import Side
from service.shapes.step import Read
from service.shapes.work import Outputs, Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc

# What "false" and "true" say where the question does not
DEFAULT_STATEMENTS = ("no, the statement does not hold", "yes, the statement holds")
QUESTIONS_TAKE = "its questions, each with the state, take"
# Details of refusals
NEEDS_INSTRUCTIONS = "this model needs instructions, a text of one character or more"
SAME_OPTIONS = (
    "options {first} and {second} have the same tokens{cut}: the model cannot tell them apart"
)
NO_MARKERS = (
    "{count} options leave no room for their marks in {limit:,} tokens, the maximum of a sequence"
)


class QuestionParts(NamedTuple):
    """The parts of a question's sequence, tokenized, and how much of each is kept."""

    instructions: Work
    options: Sequence[Work]
    state: Work
    fit: Fit


class Marked:
    """Questions of one state, answered by the checkpoint's own head."""

    def __init__(self, ask: DecideRequest, resolver: Resolver) -> None:
        heads = resolver.model.task_heads
        self._head = next(head for head in heads if isinstance(head, Decider))
        self._ask, self._resolver, self._window = ask, resolver, resolver.window(self._head)
        self._cut = resolver.cut(ask.truncate)
        self._from_end = ask.turns or self._cut == "left"
        for question in ask.questions:
            if not (question.instructions or "").strip():
                loc = ("questions", question.name, "instructions")
                raise Refused.at("out_of_range", *loc, detail=NEEDS_INSTRUCTIONS)
        self._bare = Side(
            [self._without_mask(ask.state)],
            Outputs(),
            lambda number, *field: ("state",),
            cut="left" if self._cut != "refuse" and self._from_end else self._cut,
            most=resolver.most_tokens,
            facts=bool(ask.reason or ask.attention),
            prompt="",
            adapter=resolver.adapter(ask.model),
            documents=Documents(),
            bare=True,
        )
        self.sides: Sequence[Side] = (self._bare,)

    def _without_mask(self, text: str) -> str:
        """Return a text without the mask token, which would read as an option's place."""
        return text.replace(self._head.marks.mask_text, " ")

    async def ask(self, works: Sequence[Work], read: Read) -> list[AskedQuestion]:
        """Return each question with its sequence, and those of other orders; see `Way.ask`."""
        (state,), fitted, total = works, list[QuestionParts](), 0
        tokenized = await self._read_texts(read)
        async for question, _ in by_options(self._ask.questions, repeat(None)):
            instructions, *options = (tokenized[text] for text in self._texts(question))
            lengths = [len(option) for option in options]
            fit = fit_question(self._window, len(instructions), lengths, len(state))
            parts = QuestionParts(instructions, options, state, fit)
            self._check_fit(question, parts)
            fitted.append(parts)
            total += fit.total * (1 + count_orders(question, self._ask.orders))
        self._resolver.check_tokens(total, QUESTIONS_TAKE)
        asked = list[AskedQuestion]()
        async for question, parts in by_options(self._ask.questions, fitted):
            asked.append(self._make_asked(question, parts))
            if asked[-1].cut:  # the state's work tells the answer's header
                state.length = max(state.length, len(state) + 1)
        return asked

    def _texts(self, question: DecisionQuestion) -> Iterator[str]:
        """Yield the texts of a question, its instructions first, as they are tokenized."""
        yield self._without_mask(f"{question.type} question: {question.instructions}")
        names = question.labels if question.labels else [one.name for one in question.options]
        for place, (name, option) in enumerate(zip(names, question.options, strict=True)):
            text = option.description
            if question.type == "noul":
                text = f"{name}: {text or DEFAULT_STATEMENTS[place]}"
            elif question.type == "score":
                text = f"level {place}: {name if text is None else text}"
            else:
                text = f"{name}: {text}" if text else name
            yield self._without_mask(f" {text}")

    async def _read_texts(self, read: Read) -> dict[str, Work]:
        """Tokenize the texts of all questions, each text once."""
        places = dict[str, Loc]()
        async for question, _ in by_options(self._ask.questions, repeat(None)):
            for text in self._texts(question):
                places.setdefault(text, ("questions", question.name))
        locs = list(places.values())
        side = self._bare._replace(inputs=list(places), at=lambda number, *field: locs[number])
        return dict(zip(places, await read(side), strict=True))

    def _check_fit(self, question: DecisionQuestion, parts: QuestionParts) -> None:
        """Refuse a question that does not fit, unless it may be cut, and options that are equal.

        Raises:
            Refused: names the part, its tokens and the room.
        """
        place, fit = partial(_locate, question.name), parts.fit
        if fit.last_marker >= self._window.sequence:
            detail = NO_MARKERS.format(count=len(parts.options), limit=self._window.sequence)
            raise Refused.at(
                "out_of_range", *place("options"), detail=detail, limit=self._window.sequence
            )
        if self._cut == "refuse":
            for number, (option, kept) in enumerate(zip(parts.options, fit.options, strict=True)):
                _refuse_cut(len(option), kept, place("options", number))
            _refuse_cut(len(parts.instructions), fit.instructions, place("instructions"))
            _refuse_cut(len(parts.state), fit.state, ("state",))
        seen = dict[tuple[int, ...], int]()
        for number, (option, kept) in enumerate(zip(parts.options, fit.options, strict=True)):
            first_token = self._first_token(option)
            ids = tuple((option.sequence.token_ids or ())[first_token : first_token + kept])
            if (first := seen.setdefault(ids, number)) != number:
                cut = " once they are cut" if kept < len(option) else ""
                detail = SAME_OPTIONS.format(first=first, second=number, cut=cut)
                raise Refused.at("out_of_range", *place("options", number), detail=detail)

    def _first_token(self, option: Work) -> int:
        """Return the first token of an option that is kept: the library's tokenizer cuts it."""
        return max(0, len(option) - OPTION_TOKENS) if self._head.marks.side == "left" else 0

    def _make_asked(self, question: DecisionQuestion, parts: QuestionParts) -> AskedQuestion:
        """Return a question with its works."""
        order = own_order(question)
        orders = [
            (other, [self._make_work(question, parts, other)])
            for other in draw_orders(question, self._ask.orders)
        ]
        work = self._make_work(question, parts, order)
        return AskedQuestion(
            question,
            [work],
            _read_logits,
            partial(self._contrast, question, work),
            self._head.temperatures.of(question.type, len(question.options)),
            _describe_cut(parts),
            orders,
        )

    def _contrast(
        self, question: DecisionQuestion, work: Work, first: int, second: int
    ) -> list[Contrast]:
        """Return the question's sequence with the weights of its options in a margin."""
        texts, names = self._texts(question), (option.name for option in question.options)
        instructions = Segment("instructions", None, next(texts))
        options = [Segment("option", name, text) for name, text in zip(names, texts, strict=True)]
        state = Segment("state", None, self._without_mask(self._ask.state))
        weights = [0.0] * len(options)
        weights[first], weights[second] = 1.0, -1.0
        return [Contrast(work, weights, [instructions, *options, state])]

    def _make_work(self, question: DecisionQuestion, parts: QuestionParts, order: Order) -> Work:
        """Return the work of a question whose options are read in this order."""
        marks, fit, state = self._head.marks, parts.fit, parts.state
        laid = _Sequence(parts.instructions.facts)
        laid.add_mark(marks.cls)
        laid.add(0, parts.instructions, slice(fit.instructions))
        laid.add_mark(marks.separator)
        markers = [0] * len(order)
        for option in order:
            work, kept = parts.options[option], fit.options[option]
            first = self._first_token(work)
            markers[option] = laid.add_mark(marks.mask)
            laid.add(1 + option, work, slice(first, first + kept))
        laid.add_mark(marks.separator)
        first = len(state) - fit.state if self._from_end else 0
        laid.add(1 + len(order), state, slice(first, first + fit.state))
        laid.add_mark(marks.separator)
        head = replace(self._head, kind=question.type, markers=markers)
        length = len(laid.token_ids)
        ids, facts = laid.token_ids[: fit.total], laid.facts(fit.total, self._resolver)
        outputs = Outputs(task_heads=(head,))
        return Work(
            packing.Sequence(ids), outputs, state.record, None, length, facts, adapter=state.adapter
        )


class _Sequence:
    """A sequence that is put together of tokenized parts and special tokens.

    Attributes:
        token_ids: so far.
    """

    def __init__(self, shown: Mapping[str, Any]) -> None:
        self.token_ids = list[int]()
        self._shown = bool(shown)  # whether the parts have facts
        self._offsets, self._words = list[tuple[int, int]](), list[int | None]()
        self._segments, self._special = list[int](), list[bool]()

    def add_mark(self, id: int) -> int:
        """Add a special token, and return its place."""
        self.token_ids.append(id)
        if self._shown:
            self._offsets.append((0, 0))
            self._words.append(None)
            self._segments.append(self._segments[-1] if self._segments else 0)
            self._special.append(True)
        return len(self.token_ids) - 1

    def add(self, segment: int, part: Work, kept: slice) -> None:
        """Add some tokens of a part, which is the sequence's text of this number."""
        ids = (part.sequence.token_ids or ())[kept]
        self.token_ids.extend(ids)
        if self._shown:
            self._offsets.extend(part.facts["offsets"][kept])
            self._words.extend(part.facts["words"][kept])
            self._segments.extend([segment] * len(ids))
            self._special.extend([False] * len(ids))

    def facts(self, length: int, resolver: Resolver) -> dict[str, Any]:
        """Return the fields of the first tokens, as an answer shows them; none without facts."""
        if not self._shown:
            return {}
        ids = self.token_ids[:length]
        columns: dict[str, list[Any]] = {
            "offsets": self._offsets,
            "words": self._words,
            "segments": self._segments,
            "special": self._special,
        }
        shown = {name: column[:length] for name, column in columns.items()}
        return {"tokens": resolver.model.tokenizer.tokens_of(ids), "token_ids": ids, **shown}


def _read_logits(works: Sequence[Work]) -> Array:
    """Return the logits of a question's options from its work's result."""
    logits: Array = works[0].result.task["logits"]
    return logits.astype(np.float64)


def _locate(name: str, *field: str | int) -> Loc:
    """Return the place in the request of a part of a question."""
    return ("questions", name, *field)


def _refuse_cut(length: int, room: int, loc: Loc) -> None:
    """Refuse a part of more tokens than there is room for."""
    if length > room:
        raise Refused.at("sequence_too_long", *loc, length=length, limit=room)


def _describe_cut(parts: QuestionParts) -> dict[str, int] | None:
    """Return how many tokens were kept of a question that was cut; None: all were."""
    fit, state, instructions = parts.fit, len(parts.state), len(parts.instructions)
    cut = sum(len(option) > kept for option, kept in zip(parts.options, fit.options, strict=True))
    whole = fit.state == state and fit.instructions == instructions
    if whole and not cut and not parts.state.truncated:
        return None
    return {
        "state_tokens": max(state, parts.state.length),
        "state_tokens_kept": fit.state,
        "instructions_tokens": instructions,
        "instructions_tokens_kept": fit.instructions,
        "options_cut": cut,
    }
