"""Attention of the form why: above layer 0 a score's parts are those of its carried input."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from model.probes import Sources, Why
from service.pipeline.find.resolver import Resolver
from service.questions.carried import WORK_BYTES, carry_works
from service.shapes.step import Step
from service.shapes.work import Array, Work

# Axis of the sources in arrays above layer 0; the first source is all biases
SOURCE_AXIS = {"scores": 2, "share": 1, "shuffled": 1}


async def carry_scores(
    works: Sequence[Work], resolver: Resolver
) -> tuple[Sequence[Sequence[Work]], Step]:
    """Return the works that explain each work's scores, itself first, and the step of all.

    Raises:
        Refused: it takes the work of too many tokens.
    """
    asked = [why for work in works if (why := work.outputs.probe(Why))]
    last, config = max(asked[0].selection.heads), resolver.model.config
    answers = [why.bytes(config, len(work)) for why, work in zip(asked, works, strict=True)]
    held = max(answer["attention"] for answer in answers)  # tiles, which are joined
    if last == 0:
        return [[work] for work in works], Step(works, held=held)
    owners = [range(1, len(work) + 1) for work in works]
    above = [
        replace(selection, heads={i: heads for i, heads in selection.heads.items() if i})
        for selection in [why.selection for why in asked]
    ]

    def explain(number: int, sources: range) -> Why:
        """Return what explains by some sources, of layer 0 by the first ones alone."""
        selection = asked[number].selection if 0 in sources else above[number]
        return Why(selection, Sources(owners[number], sources, layers=last))

    tiles = await carry_works(works, owners, resolver, explain)
    step = [*works, *chain.from_iterable(tile[1:] for tile in tiles)]
    return tiles, Step(step, held=held + WORK_BYTES * len(step))


def join_scores(tiles: Sequence[Work]) -> dict[str, Any]:
    """Return what the tiles of a work make as one; above layer 0 biases come after all tokens."""
    made: list[Mapping[int, Any]] = [tile.result.made[Why.name]["heads"] for tile in tiles]
    heads = dict(made[0])
    for layer in filter(None, heads):
        arrays = [each[layer] for each in made]
        joined = {n: _join([each[n] for each in arrays], axis) for n, axis in SOURCE_AXIS.items()}
        heads[layer] = {**arrays[0], **joined}
    return {"heads": heads}


def _join(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays along the axis of sources, with the first source behind all others."""
    biases, own = np.split(arrays[0], [1], axis)
    return np.concatenate([own, *arrays[1:], biases], axis)
