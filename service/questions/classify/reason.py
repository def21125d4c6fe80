"""On which words a label rests that a request's own labels make: best of all, or fitting by itself.

    several labels   the entailment of the best label less that of the runner-up: of two pairs
    one, multi       the entailment of the best label less its contradiction: of one pair

Labels rank by these numbers as by their scores. The text is a part of every pair, and its words'
shares are added up over them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from service.engine.fair.turns import in_turns
from service.pipeline.find.resolver import Resolver
from service.questions.classify import ZeroShotRequest
from service.questions.contrast import Contrast, ReasonUnit, Segment, divide, sum_tokens
from service.questions.entailment import contrast_hypotheses, find_classes, find_head
from service.questions.reasons import (
    ReadScore,
    SharedScores,
    best_two,
    shorten,
    tell_score,
    weigh_reason,
)
from service.shapes.answer import Array
from service.shapes.outputs import ScoreReason
from service.shapes.step import Step
from service.shapes.work import Work


class LabelReasons:
    """What the best label of each text rests on.

    Args:
        pairs: the works of each text, one for each label.
        hypotheses: of the labels.
    """

    def __init__(
        self,
        ask: ZeroShotRequest,
        reason: ScoreReason,
        pairs: Sequence[Sequence[Work]],
        hypotheses: Sequence[str],
        resolver: Resolver,
    ) -> None:
        self._ask, self._reason, self._pairs, self._hypotheses = ask, reason, pairs, hypotheses
        self._alone = ask.multi_label or len(ask.labels) == 1
        self._each = 1 if self._alone else 2  # pairs that make a text's margin
        self._shared = SharedScores([work for works in pairs for work in works], resolver)

    async def weigh(self) -> int:
        """Return the bytes of JSON that they take at most."""
        size = 0
        async for works in in_turns(self._pairs):
            size += self._each * max(map(weigh_reason, works))
        return size

    async def step(self) -> Step:
        """Return the step that runs the pairs, and then carries the margins back.

        Raises:
            Refused: it takes the work of too many tokens.
        """
        return await self._shared.step(self._examples, self._scores)

    def _examples(self) -> Iterator[ReadScore]:
        """Yield scores of no weights, of the longest pairs of each text."""
        for index, works in enumerate(self._pairs):
            lengths = [*map(len, works)]
            for place in np.argsort(lengths)[-self._each :].tolist():
                yield ReadScore(index * len(works) + place, find_head(works[0]), {})

    def _scores(self) -> Iterator[ReadScore]:
        """Yield what makes the margin of each text, once its labels have their logits."""
        for index, works in enumerate(self._pairs):
            places = self._rank(works)
            for place, contrast in zip(places, self._contrast(index, places), strict=True):
                weights = dict(enumerate(contrast.weights))
                yield ReadScore(index * len(works) + place, find_head(works[0]), weights)

    def _rank(self, works: Sequence[Work]) -> list[int]:
        """Return the labels whose pairs make a text's margin, the best first."""
        best = best_two(self._fits(works))
        return [place for place in best if place is not None][: self._each]

    def _fits(self, works: Sequence[Work]) -> Array:
        """Return the number by which a text's labels rank, (labels,) float64."""
        contradiction, entailment = find_classes(works[0])
        logits = np.stack([work.result.task["logits"] for work in works]).astype(np.float64)
        return logits[:, entailment] - (logits[:, contradiction] if self._alone else 0.0)

    def _contrast(self, index: int, places: Sequence[int]) -> list[Contrast]:
        """Return the pairs of a text that make its margin, with the weights of their logits."""
        said = [Segment("option", self._ask.labels[at], self._hypotheses[at]) for at in places]
        read = [self._pairs[index][place] for place in places]
        text = Segment("state", None, self._ask.inputs[index])
        return contrast_hypotheses(text, [*zip(read, said, strict=True)])

    def tell(self, index: int) -> dict[str, Any]:
        """Return what an answer says of a text's best label."""
        works, each = self._pairs[index], range(index * self._each, (index + 1) * self._each)
        places, read = self._rank(works), [self._shared.read(number) for number in each]
        contrasts, fits = self._contrast(index, places), self._fits(works)
        units = divide(contrasts, self._reason.level)
        shares, special = sum_tokens(units, [by_token for by_token, _ in read])
        if self._alone:
            against, score = find_head(works[0]).labels[find_classes(works[0])[0]], fits[places[0]]
        else:
            against, score = self._ask.labels[places[1]], fits[places[0]] - fits[places[1]]
        special, rest = shorten(np.array([special, sum(rest for _, rest in read)]))
        return {
            **tell_score(self._ask.labels[places[0]], against, float(score)),
            "units": _list_shares(contrasts, shares),
            "special": special,
            "rest": rest,
        }


def _list_shares(
    contrasts: Sequence[Contrast], shares: Mapping[ReasonUnit, float]
) -> list[dict[str, Any]]:
    """Return what an answer says of units: those of the text, then of each hypothesis."""
    segments = [contrasts[0].segments[0], *(contrast.segments[1] for contrast in contrasts)]
    units = sorted(shares, key=lambda unit: (segments.index(unit.segment), unit.start))
    short = shorten(np.array([shares[unit] for unit in units]))
    return [
        {
            "text": unit.segment.text[unit.start : unit.end],
            "characters": [unit.start, unit.end],
            "segment": segments.index(unit.segment),
            "share": share,
        }
        for unit, share in zip(units, short, strict=True)
    ]
