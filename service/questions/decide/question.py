"""Decisions: each question of a state, answered with probabilities of its options.

    probabilities   softmax(logits / temperature), float64
    confidence      choice  (max p - 1/n) / (1 - 1/n)
                    score   max(0, 1 - sum_i p_i |i - mode| / D), D the same sum for equal p
    score           sum_i i p_i, of levels counted from 0

Source: typesafe-sdk 0.7.5 for the formulas of confidence and score.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from model.config import EncoderConfig
from service.pipeline.find.resolver import Resolver
from service.pipeline.worker import Workers
from service.pipeline.write.task_answers import short_numbers
from service.questions.decide import MOST_OPTIONS, MOST_QUESTIONS, DecideRequest, DecisionQuestion
from service.questions.decide.asked import (
    ORDER_SEED,
    AskedQuestion,
    Way,
    by_options,
    count_held,
)
from service.questions.decide.entailed import Entailed
from service.questions.decide.marked import Marked
from service.questions.decide.marks import MarkRows, describe_rows
from service.questions.decide.reason import Reasoning
from service.questions.entailment import softmax
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.price import Part, Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Plan, Read, Step
from service.shapes.work import Work
from service.tables.refusals import Refused

QUESTION_BYTES, OPTION_BYTES = 300, 50  # of each in an answer, without their names
NO_DECISIONS = "decisions need a checkpoint with a head for them, or one of entailment"


class Decision:
    """A request to answer questions of a state."""

    def __init__(
        self, ask: DecideRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._layout, self._resolver = ask, custom.layout, resolver
        if not ask.questions:
            detail = "expected one question or more, received none"
            raise Refused.at("batch_empty", "questions", detail=detail)
        for question in ask.questions:
            check_options(question)
        _check_count(len(ask.questions), MOST_QUESTIONS, "questions")
        tasks = resolver.model.tasks
        if "decide" not in tasks and "zero_shot" not in tasks:
            raise Refused("task_not_found", detail=NO_DECISIONS, tasks=list(tasks))
        self._way: Way = (Marked if "decide" in tasks else Entailed)(ask, resolver)
        self._rows = MarkRows(ask.attention, resolver) if ask.attention else None
        self.sides: Sequence[Side] = self._way.sides

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the only step, the sequences of all questions; an item is of a question."""
        asked = await self._way.ask(works, read)
        every = [work for one in asked for work in one.every]
        if self._rows:
            async for _, one in by_options(self._ask.questions, asked):
                self._rows.ask(one.works[0])
        held = count_held(every)
        step, reasoning = Step(every, held=held), None
        parts: dict[Part, int] = {"task": 0, "attention": 0}
        async for _, one in by_options(self._ask.questions, asked):
            parts["task"] += _weigh_question(one)
            parts["attention"] += _weigh_probes(one.works, self._resolver.model.config)
        arrays = len(asked) * self._rows.layers if self._rows else 0

        async def make_items() -> Iterable[AnswerItem]:
            """Return an item for each question, in order."""
            pairs = by_options(self._ask.questions, asked)
            return [self._make_item(one, reasoning) async for _, one in pairs]

        if self._ask.reason:
            reasoning = Reasoning(self._ask.reason, asked, self._resolver)
            parts["shares"] = reasoning.size
            step = Step(every, reasoning.start, reasoning.follow, held + reasoning.held)
        return Plan(step, Price(parts, self._layout, arrays=arrays), make_items)

    def _make_item(self, asked: AskedQuestion, reasoning: Reasoning | None) -> AnswerItem:
        """Return the item of a question that was run."""
        logits, question = asked.logits(asked.works), asked.question
        probabilities = softmax(logits / asked.temperature)
        facts: dict[str, Any] = {
            "name": question.name,
            "type": question.type,
            "options": [option.name for option in question.options],
            "probabilities": short_numbers(probabilities.astype(np.float32)),
            "winner": int(logits.argmax()),
            "confidence": measure_confidence(question, probabilities),
            "truncated": asked.cut,
        }
        if question.type == "score":
            facts["score"] = float(probabilities @ np.arange(len(probabilities)))
        if self._ask.orders:
            facts["orders"] = _compare_orders(asked, probabilities)
        if reasoning:
            facts |= reasoning.describe(asked)
        run = sum(map(len, asked.every))
        if self._rows is None:
            return AnswerItem(run, facts)
        work, rows = asked.works[0], self._rows.read(asked.works[0])
        return AnswerItem(
            run,
            facts,
            attention=describe_rows(work, facts["options"]),
            maps={"layers": {str(layer): array for layer, array in rows.items()}},
            arrays={f"attention.L{layer}": array for layer, array in rows.items()},
        )


def _weigh_probes(works: Sequence[Work], config: EncoderConfig) -> int:
    """Return the bytes of what the works' probes make."""
    return sum(
        size
        for work in works
        for probe in work.outputs.probes
        for size in probe.bytes(config, len(work)).values()
    )


def check_options(question: DecisionQuestion) -> None:
    """Refuse a question of too few options, or too many."""
    options, loc = question.options, ("questions", question.name, "options")
    least = 2 if question.type == "choice" else 1
    if len(options) < least:
        detail = f"expected {least} or more, received {len(options)}"
        raise Refused.at("out_of_range", *loc, detail=detail)
    _check_count(len(options), MOST_OPTIONS, *loc)


def _check_count(count: int, most: int, *loc: str | int) -> None:
    """Refuse more questions, or more options, than a request may have."""
    if count > most:
        detail = f"expected at most {most}, received {count:,}"
        raise Refused.at("batch_too_large", *loc, detail=detail, limit=most)


def measure_confidence(question: DecisionQuestion, probabilities: Array) -> float:
    """Return how far probabilities, (options,), are from equal ones, 0 to 1; 1 of one option."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    if question.type != "score":
        return float((probabilities.max() - 1 / count) / (1 - 1 / count))
    distances = np.abs(np.arange(count) - probabilities.argmax())
    return float(max(0.0, 1 - probabilities @ distances / distances.mean()))


def _compare_orders(asked: AskedQuestion, probabilities: Array) -> dict[str, Any]:
    """Return how far a question's answer moves when its options are read in other orders."""
    tried, largest, changed = list[dict[str, Any]](), 0.0, 0
    for order, works in asked.orders:
        other = softmax(asked.logits(works) / asked.temperature)
        largest = max(largest, float(np.abs(other - probabilities).max()))
        changed += int(other.argmax() != probabilities.argmax())
        numbers = short_numbers(other.astype(np.float32))
        tried.append({"order": [*order], "probabilities": numbers})
    return {"seed": ORDER_SEED, "largest": largest, "changed": changed, "tried": tried}


def _weigh_question(asked: AskedQuestion) -> int:
    """Return the bytes of a question in the answer."""
    options = sum(OPTION_BYTES + len(one.name.encode()) for one in asked.question.options)
    per_order = OPTION_BYTES * len(asked.question.options)
    return QUESTION_BYTES + options + len(asked.orders) * per_order
