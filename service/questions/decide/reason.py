"""What a decision rests on: shares of its margin, by words, and what is left without them.

    margin     logit of the first option less that of the second; of yes less that of no
    "alone"    the margin less what it is without a word of the state: one pass a word
    "input"    what each word adds to the margin, exactly (model/probes/readout.py); with what
               other tokens, special ones or blanks, and biases add, they sum to it
    control    the margin without the strongest words of the state, and without random others

First and second are those of the whole state, whatever is left out. Source of "alone": Li et al.
2016 (arXiv 1612.08220).
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean, stdev
from typing import Any

import numpy as np

from model.probes import Readout
from service.engine.fair.turns import in_turns
from service.pipeline.edit.sweep import MOST_COPIES
from service.pipeline.find.resolver import Resolver
from service.questions.contrast import ReasonUnit, Segment, divide, sum_tokens
from service.questions.decide import Reason
from service.questions.decide.asked import TOKEN_BYTES, WORK_BYTES, AskedQuestion
from service.questions.highlight.passage import DRAWS, count_draws
from service.shapes.step import Step
from service.shapes.work import Outputs, Work
from service.tables.refusals import Refused

MOST_MARKED = 3  # of the state's words, which a control leaves out
UNIT_BYTES = 120  # of a word in an answer, besides its text
REASON_TAKES = "to tell what its decisions rest on takes the work of"
ONE_OPTION = "there is one option, and so no other that it could be told from"
TOO_MANY_COPIES = "leaving out each word takes {count:,} copies, and the limit is {limit:,}"


class ReasonWorks:
    """The works that tell what one decision rests on, made once its answer is known.

    Attributes:
        works: those to run.
        margin: of the first option over the second, by their numbers.
    """

    def __init__(self, asked: AskedQuestion, reason: Reason) -> None:
        logits = asked.logits(asked.works)
        first, second = asked.rank(logits)
        self.asked, self._reason, self.first, self.second = asked, reason, first, second
        self._contrasts = asked.contrast(first, second)
        self.margin = float(logits[first] - logits[second])
        self.units = divide(self._contrasts, reason.level)
        self._state = [unit for unit in self.units if unit.segment.part == "state"]
        self._copies, self._read = list[list[Work]](), list[Work]()
        if reason.method == "alone":
            self._copies = [self.leave_out([unit]) for unit in self._state]
        else:
            self._read = [contrast.readout() for contrast in self._contrasts]
        self.works = [*chain(*self._copies), *self._read]

    def leave_out(self, units: Iterable[ReasonUnit]) -> list[Work]:
        """Return the works of the margin without some units of the state."""
        units = list(units)
        return [
            _without(contrast.work, {token for unit in units for token in unit.tokens[number]})
            for number, contrast in enumerate(self._contrasts)
        ]

    def measure(self, works: Sequence[Work]) -> float:
        """Return the margin by the results of works that `leave_out` returned."""
        pairs = zip(works, self._contrasts, strict=True)
        return sum(
            float(work.result.task["logits"].astype(np.float64) @ np.array(contrast.weights))
            for work, contrast in pairs
        )

    def shares(self) -> tuple[dict[ReasonUnit, float], float, float]:
        """Return the share of each unit, of all other tokens, and of biases."""
        if self._reason.method == "alone":
            without = map(self.measure, self._copies)
            pairs = zip(self._state, without, strict=True)
            return {unit: self.margin - margin for unit, margin in pairs}, 0.0, 0.0
        made = [work.result.made[Readout.name] for work in self._read]
        by_token = [np.asarray(one["shares"][0], np.float64) for one in made]
        shares, special = sum_tokens(self.units, by_token)
        return shares, special, float(sum(one["rest"][0] for one in made))

    def describe(self) -> dict[str, Any]:
        """Return the fields of an answer, without the control."""
        shares, special, rest = self.shares()
        names = [option.name for option in self.asked.question.options]
        exact = {} if self._reason.method == "alone" else {"special": special, "rest": rest}
        return {
            "method": self._reason.method,
            "level": self._reason.level,
            "first": names[self.first],
            "second": names[self.second],
            "margin": self.margin,
            "parts": list(_describe_parts(shares)),
            **exact,
        }

    def controls(self) -> "list[tuple[list[ReasonUnit], list[Work]]]":
        """Return units of the state with the works without them: the strongest, then random."""
        shares, *_ = self.shares()
        ranked = sorted(self._state, key=lambda unit: -shares[unit])
        marked = [unit for unit in ranked[:MOST_MARKED] if shares[unit] > 0]
        if not marked:
            return []
        others = [unit for unit in self._state if unit not in marked]
        drawn = _draw(others, len(marked))
        return [(units, self.leave_out(units)) for units in (marked, *drawn)]


def _without(work: Work, left_out: set[int]) -> Work:
    """Return a work without some tokens, which makes its head's logits alone."""
    kept = [place for place in range(len(work)) if place not in left_out]
    ids, types = work.sequence.token_ids or (), work.sequence.types
    sequence = replace(
        work.sequence,
        token_ids=[ids[place] for place in kept],
        types=None if types is None else [types[place] for place in kept],
    )
    outputs = Outputs(task_heads=work.outputs.task_heads)
    return replace(work, sequence=sequence, outputs=outputs, facts={})


def _draw(others: Sequence[ReasonUnit], count: int) -> list[list[ReasonUnit]]:
    """Draw so many of other units, a few times, no two choices the same."""
    text = "".join(unit.segment.text[unit.start : unit.end] for unit in others)
    # of `random`, the one method whose numbers stay the same in every version of Python
    chance = random.Random(hashlib.sha256(text.encode("utf-8", "replace")).digest()).random
    drawn, most = dict[tuple[int, ...], None](), count_draws(len(others), count)
    while len(drawn) < most:
        places = [*range(len(others))]
        for place in range(count):  # the first steps of a Fisher-Yates shuffle
            other = place + int(chance() * (len(places) - place))
            places[place], places[other] = places[other], places[place]
        drawn[tuple(sorted(places[:count]))] = None
    return [[others[place] for place in places] for places in drawn]


def _describe_parts(shares: dict[ReasonUnit, float]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each part: its own share, and its units with theirs."""
    by_segment = dict[Segment, list[ReasonUnit]]()
    for unit in shares:
        by_segment.setdefault(unit.segment, []).append(unit)
    for segment, units in by_segment.items():
        named = {} if segment.name is None else {"name": segment.name}
        yield {
            "part": segment.part,
            **named,
            "share": sum(shares[unit] for unit in units),
            "units": [
                {
                    "text": segment.text[unit.start : unit.end],
                    "characters": [unit.start, unit.end],
                    "share": shares[unit],
                }
                for unit in units
            ],
        }


class Reasoning:
    """What the decisions of a request rest on: the steps that tell it, and what they cost.

    Attributes:
        follow: examples of the works of these steps, and how often each runs.
        held: bytes that they keep.
        size: bytes of JSON.

    Raises:
        Refused: it takes too many copies or tokens.
    """

    def __init__(self, reason: Reason, asked: Sequence[AskedQuestion], resolver: Resolver) -> None:
        self._reason, self._asked = reason, [one for one in asked if _has_margin(one)]
        self._told = dict[int, ReasonWorks]()  # by the question's id
        self._controls = dict[int, list[tuple[list[ReasonUnit], list[Work]]]]()
        self.follow, self.size = list[tuple[Work, int]](), 0
        for one in self._asked:
            self._add_question(one)
        copies = sum(count for _, count in self.follow)
        if copies > MOST_COPIES:
            detail = TOO_MANY_COPIES.format(count=copies, limit=MOST_COPIES)
            raise Refused.at("batch_too_large", "reason", detail=detail, limit=MOST_COPIES)
        tokens = sum(len(work) * count for work, count in self.follow)
        run = sum(len(work) for one in asked for work in one.every)
        resolver.check_tokens(run + tokens, REASON_TAKES)
        config = resolver.model.config
        probes = [(probe, len(work)) for work, _ in self.follow for probe in work.outputs.probes]
        scratch = [probe.scratch_bytes(config, length) for probe, length in probes]
        self.held = WORK_BYTES * copies + TOKEN_BYTES * tokens + max(scratch, default=0)

    def _add_question(self, asked: AskedQuestion) -> None:
        """Count the works of a question, whose first and second are not known yet."""
        longest = sorted(range(len(asked.works)), key=lambda place: -len(asked.works[place]))
        contrasts = asked.contrast(*(longest[:2] if len(longest) > 1 else (0, 1)))
        units, reason = divide(contrasts, self._reason.level), self._reason
        state = sum(unit.segment.part == "state" for unit in units)
        for contrast in contrasts:
            if reason.method == "alone":
                self.follow.append((contrast.bare(), state))
            else:
                self.follow.append((contrast.readout(), 1))
            if reason.control:
                self.follow.append((contrast.bare(), 1 + DRAWS))
        shown = units if reason.method == "input" else units[-state:]
        self.size += sum(UNIT_BYTES + unit.end - unit.start for unit in shown)

    async def start(self) -> Step | None:
        """Return the step of all reasons, once the questions have their results."""
        async for one in in_turns(self._asked):
            self._told[id(one)] = ReasonWorks(one, self._reason)
        works = [work for told in self._told.values() for work in told.works]
        then = self._start_controls if self._reason.control else None
        return Step(works, then) if works else None

    async def _start_controls(self) -> Step | None:
        """Return the step of the controls, once the shares are known."""
        async for number, told in in_turns(self._told.items()):
            self._controls[number] = told.controls()
        every = [work for those in self._controls.values() for _, own in those for work in own]
        return Step(every) if every else None

    def describe(self, asked: AskedQuestion) -> dict[str, Any]:
        """Return the field of a question's answer, and why it is null where it is."""
        told = self._told.get(id(asked))
        if told is None:
            return {"reason": None, "reason_missing": ONE_OPTION}
        facts = told.describe()
        if self._reason.control:
            facts["control"] = _describe_control(told, self._controls.get(id(asked), []))
        return {"reason": facts}


def _has_margin(asked: AskedQuestion) -> bool:
    """Tell whether a question has two options."""
    return len(asked.question.options) > 1


def _describe_control(
    told: ReasonWorks, controls: Sequence[tuple[Sequence[ReasonUnit], Sequence[Work]]]
) -> dict[str, Any] | None:
    """Return what the margin is without the strongest words and without random others."""
    if not controls:
        return None
    (marked, without), *drawn = controls
    others = [told.measure(works) for _, works in drawn]
    return {
        "left_out": [unit.segment.text[unit.start : unit.end] for unit in marked],
        "without": told.measure(without),
        "without_random": fmean(others) if others else None,
        "deviation": stdev(others) if len(others) > 1 else None,
    }
