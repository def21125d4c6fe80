"""What scores rest on: the exact shares of input tokens or words in scores that heads read out.

Which scores are shared out, such as the winner's less the runner-up's, is known once the texts have
run; works that carry these back through the layers follow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from model.decider import Decider
from model.maps.units import Units
from model.probes import Readout
from model.probes.frozen_heads import LinearHead, check_linear
from model.similarity import NotLinear
from service.engine.fair.turns import in_turns
from service.pipeline.cost import SINGLE
from service.pipeline.find.resolver import Resolver
from service.pipeline.write.task_answers import short_numbers
from service.questions.carried import TILE_ROWS, weigh_probes
from service.shapes.answer import Array
from service.shapes.step import Step
from service.shapes.work import Outputs, Work
from service.tables.refusals import Refused

SHARING_TAKES = "with scores carried back through the layers it takes the work of"
UNIT_BYTES, TEXT_BYTES = 120, 4  # of JSON for a unit without text, and of text for each token

Checked = TypeVar("Checked", bound=LinearHead)


class ReadScore(NamedTuple):
    """A score to share out: a sum of a text's logits with weights.

    Args:
        text: the number of the text's work.
        head: what gives the logits.
        weights: by the logit's place, such as {winner: 1, runner_up: -1}; 0 for others.
        place: of a Tagger, the token.
    """

    text: int
    head: LinearHead
    weights: Mapping[int, float]
    place: int = 0

    def weigh_outputs(self) -> list[float]:
        """Return the weight of each logit, in the head's order."""
        head = self.head
        outputs = len(head.markers if isinstance(head, Decider) else head.labels)
        return [self.weights.get(place, 0.0) for place in range(outputs)]


class SharedScores:
    """Scores of texts, shared out among each text's input tokens.

    Args:
        works: of the texts.
    """

    def __init__(self, works: Sequence[Work], resolver: Resolver) -> None:
        self._works, self._resolver = works, resolver
        self._rows: list[tuple[Work, int]] = []  # of each score, what carries it and its row there

    async def step(
        self,
        examples: Callable[[], Iterable[ReadScore]],
        choose: Callable[[], Iterable[ReadScore]],
    ) -> Step:
        """Return a step that runs the texts and then carries the chosen scores back.

        Args:
            examples: returns as many scores, each of as long a text, as can be chosen at most.
            choose: returns the scores once the texts have their results, those of a text and head
                side by side.

        Raises:
            Refused: it takes the work of too many tokens.
        """
        carried = 0
        async for score in in_turns(examples()):
            carried += len(self._works[score.text])
        self._resolver.check_tokens(sum(map(len, self._works)) + 2 * carried, SHARING_TAKES)
        likes = await self._divide(examples())
        held = SINGLE * carried
        if likes:
            held += await weigh_probes(likes, self._resolver.model.config)

        async def carry_back() -> Step | None:
            """Return the step that carries the scores, once they are known; None without any."""
            made = await self._divide(choose())
            self._rows.extend((work, row) for work in made for row in range(_count_scores(work)))
            return Step(made) if made else None

        return Step(self._works, carry_back, [(work, 1) for work in likes], held)

    async def _divide(self, scores: Iterable[ReadScore]) -> list[Work]:
        """Return the works that carry scores back, in their order."""
        made, some = list[Work](), list[ReadScore]()
        async for score in in_turns(scores):
            if some and not self._goes_with(some, score):
                made.append(self._carry(some))
                some = []
            some.append(score)
        return [*made, self._carry(some)] if some else made

    def _goes_with(self, some: Sequence[ReadScore], score: ReadScore) -> bool:
        """Tell whether one work can carry a score with others."""
        first, most = some[0], max(1, TILE_ROWS // len(self._works[some[0].text]))
        return first.text == score.text and first.head is score.head and len(some) < most

    def _carry(self, some: Sequence[ReadScore]) -> Work:
        """Return the work that carries scores of a text and head back."""
        weights = torch.tensor([score.weigh_outputs() for score in some])
        probe = Readout(some[0].head, weights, [score.place for score in some])
        return replace(self._works[some[0].text], outputs=Outputs(probes=(probe,)), facts={})

    def read(self, number: int) -> tuple[Array, float]:
        """Return a score's shares of its text's tokens, (tokens,) float64, and its rest.

        Args:
            number: of the score among those chosen.
        """
        work, row = self._rows[number]
        made = work.result.made[Readout.name]
        return made["shares"][row].astype(np.float64), float(made["rest"][row])


def _count_scores(work: Work) -> int:
    """Return how many scores a work carries."""
    readout = work.outputs.probe(Readout)
    return 0 if readout is None else len(readout)


def require_linear(head: Checked, *loc: str | int) -> Checked:
    """Return a head whose logits are sums over input tokens; see model/probes/readout.py.

    Args:
        loc: the place in the request that asks for shares.

    Raises:
        Refused: it is no such head; the message names the step.
    """
    try:
        check_linear(head)
    except NotLinear as error:
        detail = f"this model's head has {error}, so its scores have no shares"
        raise Refused.at("similarity_not_explainable", *loc, detail=detail) from None
    return head


def best_two(logits: Array) -> tuple[int, int | None]:
    """Return the places of the largest logit and of the next, the first of equal ones.

    The next is None where there is but one.
    """
    order = np.argsort(-logits, kind="stable")
    return int(order[0]), int(order[1]) if len(order) > 1 else None


def sum_units(units: Units, shares: Array) -> Array:
    """Return the share of each unit from those of its tokens, (units,)."""
    summed: Array = np.add.reduceat(shares, [first for first, _ in units.spans])
    return summed


def list_units(
    units: Units, facts: Mapping[str, Any], texts: Sequence[str], shares: Array
) -> list[dict[str, Any]]:
    """Return what an answer says of each unit: its text, where that stands, and its share.

    Args:
        units: all of them shown.
        facts: of the text's tokens.
        texts: which tokens' offsets are of, by segment; without those of ids and embeddings.
        shares: of the units, (units,).
    """
    rows = list[dict[str, Any]]()
    for (first, last), share in zip(units.spans, shorten(shares), strict=True):
        segment, span = _locate(range(first, last), facts, texts)
        if segment is not None and span is not None:
            text: str | None = texts[segment][slice(*span)]
        else:
            text = " ".join(facts["tokens"][first:last]) if facts["tokens"] else None
        rows.append({"text": text, "characters": span, "segment": segment, "share": share})
    return rows


def _locate(
    tokens: range, facts: Mapping[str, Any], texts: Sequence[str]
) -> tuple[int | None, list[int] | None]:
    """Return which text some tokens are of, and their characters without white space around.

    Both are None of tokens that stand for no characters: special ones, and those of a prompt.
    """
    spans = [facts["offsets"][token] for token in tokens] if facts["offsets"] else []
    start, end = (
        min((a for a, b in spans if b > a), default=0),
        max((b for _, b in spans), default=0),
    )
    if end <= start or facts["special"][tokens.start]:
        return None, None
    segment = (facts.get("segments") or [0] * tokens.stop)[tokens.start]
    part = texts[segment][start:end]
    start += len(part) - len(part.lstrip())
    return segment, [start, start + len(part.strip())]


def shorten(numbers: Array) -> list[float]:
    """Return numbers in float32, with the fewest digits that tell them apart."""
    return short_numbers(numbers.astype(np.float32))


def tell_score(target: str, against: str | None, score: float) -> dict[str, Any]:
    """Return what an answer says of the score that it shares out.

    Args:
        target: the class or label whose logit it is.
        against: whose logit is taken off; None: nothing is.
    """
    (short,) = shorten(np.array([score]))
    told = {"method": "input", "target": target}
    return (
        {**told, "logit": short}
        if against is None
        else {**told, "against": against, "margin": short}
    )


def weigh_reason(work: Work) -> int:
    """Return the bytes of what is said of each unit of a text, at most one for each token."""
    return (UNIT_BYTES + TEXT_BYTES) * len(work)
