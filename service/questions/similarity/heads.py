"""Shares of heads: works that carry vectors back through the passes of the texts they meet."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.probes import Targets
from model.similarity import LinearPooling
from service.pipeline.cost import DOUBLE, SINGLE
from service.pipeline.find.resolver import Resolver
from service.questions.carried import TILE_ROWS, weigh_probes
from service.shapes.step import Step
from service.shapes.work import Outputs, Work

SHARING_TAKES = "with vectors carried back through the layers of the texts it takes the work of"


class HeadShares:
    """What each head adds to cosines: of the left text with each on the right, and of each with it.

    A text's targets are its own vector, then those of the texts it is compared with.

    Args:
        works: of the left text, then of each on the right.
        linear: the model's pooling.
    """

    def __init__(self, works: Sequence[Work], resolver: Resolver, linear: LinearPooling) -> None:
        self._works, self._resolver, self._linear = works, resolver, linear
        rights = range(1, len(works))
        self._targets = [[0, *rights], *([right, 0] for right in rights)]  # of each text, by number
        self._units = torch.empty(0)  # vectors of length 1, (texts, size) float64
        self._made: Sequence[Sequence[Work]] = ()  # of each text, what carries its targets

    async def step(self) -> Step:
        """Return a step that runs the texts, and then carries their vectors back.

        Raises:
            Refused: it takes the work of too many tokens.
        """
        works, config = self._works, self._resolver.model.config
        each = zip(works, self._targets, strict=True)
        tokens = sum(len(work) * (1 + len(targets)) for work, targets in each)
        self._resolver.check_tokens(tokens, SHARING_TAKES)
        size, longest = len(self._resolver.model.pooling.modes) * config.width, max(map(len, works))
        examples = [*chain(*self._divide(torch.empty(len(works), 0)))]
        shares = config.layers * (config.heads + 1) * sum(map(len, self._targets))
        held = await weigh_probes(examples, config)
        held += SINGLE * longest * config.layers * config.width  # what enters each layer
        held += (SINGLE + DOUBLE) * (shares + 2 * len(works) * size)

        async def carry_back() -> Step:
            """Return the step that carries the vectors, once they are known."""
            vectors = torch.stack([torch.from_numpy(work.result.vector) for work in works])
            lengths = vectors.norm(dim=1, keepdim=True)
            self._units = vectors / torch.where(lengths == 0, math.inf, lengths)
            self._made = self._divide(self._linear.carry_back(self._units, size).float())
            return Step([*chain(*self._made)])

        return Step(works, carry_back, [(work, 1) for work in examples], held)

    def _divide(self, vectors: Tensor) -> list[list[Work]]:
        """Return the works that together carry all targets of each text.

        Args:
            vectors: as targets, (texts, modes * width).
        """
        modes, divided = self._resolver.model.pooling.modes, list[list[Work]]()
        for work, targets in zip(self._works, self._targets, strict=True):
            step = max(1, TILE_ROWS // len(work))
            outputs = [
                Outputs(probes=(Targets(vectors[targets[first : first + step]], modes),))
                for first in range(0, len(targets), step)
            ]
            divided.append([replace(work, outputs=each, facts={}) for each in outputs])
        return divided

    def share(self, right: int, score: float) -> tuple[dict[str, Tensor], float]:
        """Return the shares of the left text's heads and of a right one's, their worth, and a gap.

        Args:
            right: the number of the right text, from 1 on.
            score: the cosine of both.

        Returns:
            left_heads, right_heads: (layers, heads); left_rest, right_rest: (layers,); float64.
            worth: how the score falls as a head's writing shrinks in both texts, (layers, heads).
            And what the score has beyond a layer's shares, of the layer and side where that is
            most: the rounding of the pass that serves.
        """
        sides = {"left": self._shares_of(0, right), "right": self._shares_of(right, 1)}
        arrays, worth = dict[str, Tensor](), torch.zeros((), dtype=torch.float64)
        gaps = torch.cat([score - others.sum(1) for _, others in sides.values()])
        for side, (own, others) in sides.items():
            arrays[f"{side}_heads"], arrays[f"{side}_rest"] = others[:, :-1], others[:, -1]
            worth = worth + (others - score * own)[:, :-1]
        return {**arrays, "worth": worth}, float(gaps[gaps.abs().argmax()])

    def _shares_of(self, text: int, target: int) -> tuple[Tensor, Tensor]:
        """Return a text's shares of its cosines with itself and with the target at this place.

        Returns:
            Of each head and of the rest, (layers, heads + 1) float64 each.
        """
        made = [work.result.made[Targets.name] for work in self._made[text]]
        arrays = list(map(torch.from_numpy, made))
        own, others = torch.cat(arrays, 2)[..., [0, target]].double().unbind(2)
        if (bias := self._linear.bias) is not None:
            own[:, -1] += bias @ self._units[text]
            others[:, -1] += bias @ self._units[self._targets[text][target]]
        length = float(own[0].sum()) or math.inf
        return own / length, others / length


def weigh_shares(rights: int, config: EncoderConfig, number: int) -> int:
    """Return the bytes of the arrays of all texts on the right; `number` is those of a number."""
    return rights * config.layers * (3 * config.heads + 2) * number
