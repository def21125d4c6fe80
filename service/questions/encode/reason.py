"""Why an input has its class, or its tokens their labels: what each logit rests on."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from model.maps.units import Units
from model.task_heads import Classifier, Tagger
from service.engine.fair.turns import in_turns
from service.pipeline.find.resolver import Resolver
from service.pipeline.find.selection import choose_units
from service.pipeline.write.task_answers import labelled_tokens
from service.questions.encode import EncodeRequest
from service.questions.reasons import (
    ReadScore,
    SharedScores,
    best_two,
    list_units,
    require_linear,
    shorten,
    sum_units,
    tell_score,
)
from service.shapes.inputs import Texts, numbered_items, text_and_pair
from service.shapes.outputs import LabelTokens, ScoreReason, Wanted
from service.shapes.side import Placer
from service.shapes.step import Step
from service.shapes.task import Task
from service.shapes.work import Work
from service.tables.refusals import Refused

STRONGEST = 5  # units that are shown of each label; the others are in its rest
# Details of refusals
NO_SCORE = 'it goes with "classify" or "label_tokens"'
NOT_WITH_REASON = (
    'it explains the pass of the inputs as they are: without "sweep", and without "patch", which '
    "takes values from another pass"
)


def check_reason(ask: EncodeRequest, tasks: Sequence[Task]) -> Classifier | Tagger:
    """Return the head whose scores are shared out.

    Raises:
        Refused: no such score is asked for, it is not linear, or heads take values of another pass.
    """
    heads = [task.head for task in tasks if isinstance(task.head, Classifier | Tagger)]
    if not heads:
        raise Refused.at("out_of_range", "reason", detail=NO_SCORE)
    if ask.sweep or any(item.patch for _, item in numbered_items(ask.inputs)):
        raise Refused.at("out_of_range", "reason", detail=NOT_WITH_REASON)
    return require_linear(heads[0], "reason")


async def choose_every_unit(reason: ScoreReason, works: Sequence[Work], at: Placer) -> list[Units]:
    """Return the tokens or words of each text; refuse words of what is no text."""
    return [
        choose_units(reason.level, "keep", work, at(index))
        async for index, work in in_turns(enumerate(works))
    ]


class InputReasons:
    """What the scores of inputs rest on: that of each one's best class, or of each best label.

    Args:
        head: that `check_reason` returns.
        wanted: the tasks as the request has them.
        works, units: of the inputs.
    """

    def __init__(
        self,
        head: Classifier | Tagger,
        wanted: Sequence[Wanted],
        inputs: Texts,
        works: Sequence[Work],
        units: Sequence[Units],
        resolver: Resolver,
    ) -> None:
        self._head, self._inputs, self._works, self._units = head, inputs, works, units
        # where a label is told: of each token, or of each word at its first
        self._level = next((one.level for one in wanted if isinstance(one, LabelTokens)), "token")
        # of each input, as `_place_scores` returns them
        self._places = list[list[int | None]]()
        self._firsts = [0]  # the number of each input's first score
        self._shared = SharedScores(works, resolver)

    async def step(self) -> Step:
        """Return the step that runs the inputs, and then carries their scores back.

        Raises:
            Refused: it takes the work of too many tokens.
        """
        async for work in in_turns(self._works):
            self._places.append(self._place_scores(work))
            scores = sum(place is not None for place in self._places[-1])
            self._firsts.append(self._firsts[-1] + scores)
        return await self._shared.step(self._examples, self._scores)

    def _place_scores(self, work: Work) -> list[int | None]:
        """Return the token of each score of an input; of a class 0, None where no label is."""
        if isinstance(self._head, Classifier):
            return [0]
        return labelled_tokens(work.facts, self._level, len(work))

    def _examples(self) -> Iterator[ReadScore]:
        """Yield scores of no weights, as many as there will be."""
        for index, places in enumerate(self._places):
            for place in places:
                if place is not None:
                    yield ReadScore(index, self._head, {})

    def _scored(self, index: int) -> list[int]:
        """Return the tokens of an input whose scores are shared out."""
        return [place for place in self._places[index] if place is not None]

    def _scores(self) -> Iterator[ReadScore]:
        """Yield the scores of the best classes or labels, once they are known."""
        for index, work in enumerate(self._works):
            made = work.result.task
            if isinstance(self._head, Classifier):
                first, second = best_two(made["logits"])
                weights = {first: 1.0} if second is None else {first: 1.0, second: -1.0}
                yield ReadScore(index, self._head, weights)
                continue
            for place in self._scored(index):
                yield ReadScore(index, self._head, {int(made["labels"][place]): 1.0}, place)

    def tell(self, index: int) -> dict[str, Any] | list[dict[str, Any] | None]:
        """Return what an answer says of an input's class, or of each of its labels."""
        first = self._firsts[index]
        if isinstance(self._head, Classifier):
            return self._tell_class(index, first)
        numbers = {place: first + n for n, place in enumerate(self._scored(index))}
        return [
            None if place is None else self._tell_label(index, numbers[place], place)
            for place in self._places[index]
        ]

    def _tell_class(self, index: int, number: int) -> dict[str, Any]:
        """Return the reason of the best class: its logit less the next one's, by unit."""
        labels, logits = self._head.labels, self._works[index].result.task["logits"]
        first, second = best_two(logits)
        against = None if second is None else labels[second]
        score = float(logits[first]) - (0.0 if second is None else float(logits[second]))
        units, rest = self._list(index, number)
        return {**tell_score(labels[first], against, score), "units": units, "rest": rest}

    def _tell_label(self, index: int, number: int, place: int) -> dict[str, Any]:
        """Return the reason of a token's best label: its logit, and the strongest units of it."""
        label = int(self._works[index].result.task["labels"][place])
        units, rest = self._list(index, number)
        score = rest + sum(unit["share"] for unit in units)
        units.sort(key=lambda unit: -abs(unit["share"]))
        (rest,) = shorten(np.array([score - sum(one["share"] for one in units[:STRONGEST])]))
        told = tell_score(self._head.labels[label], None, score)
        return {**told, "units": units[:STRONGEST], "rest": rest}

    def _list(self, index: int, number: int) -> tuple[list[dict[str, Any]], float]:
        """Return an input's units with their shares of a score, and the score's rest."""
        shares, rest = self._shared.read(number)
        texts = [text for text in text_and_pair(self._inputs[index]) if text is not None]
        units, facts = self._units[index], self._works[index].facts
        return list_units(units, facts, texts, sum_units(units, shares)), rest
