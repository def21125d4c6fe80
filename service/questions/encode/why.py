"""Attention of the form why: above layer 0 a score's parts are those of its carried input."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from service.encode.price import SINGLE
from service.encode.resolver import Resolver
from service.questions.carried import carry_works
from service.shapes.step import Step
from service.shapes.work import Array, Maps, Work

EMBEDDED_PARTS = 4  # of what enters layer 0, with the whole
SOURCE_AXIS = {
    "scores": 2,
    "share": 1,
    "shuffled": 1,
}  # in arrays above layer 0; the first source is all biases


async def carry_scores(
    works: Sequence[Work], resolver: Resolver
) -> tuple[Sequence[Sequence[Work]], Step]:
    """Return the works that explain each work's scores, itself first, and the step of all.

    Raises:
        Refused: it takes the work of too many tokens.
    """
    selections = [work.outputs.attention for work in works if work.outputs.attention]
    last, config = max(selections[0].heads), resolver.model.config
    if last == 0:
        rows = EMBEDDED_PARTS * max(map(len, works))
        return [[work] for work in works], Step(works, held=6 * SINGLE * rows * config.width)
    owners = [range(1, len(work) + 1) for work in works]
    tiles, held = await carry_works(works, owners, resolver, layers=last)
    for (_, *others), selection in zip(tiles, selections, strict=True):
        above = {layer: heads for layer, heads in selection.heads.items() if layer}
        for tile in others:
            tile.outputs = replace(tile.outputs, attention=replace(selection, heads=above))
    return tiles, Step([*works, *chain.from_iterable(tile[1:] for tile in tiles)], held=held)


def join_scores(tiles: Sequence[Work]) -> Maps:
    """Return what the tiles of a work show as one; above layer 0 biases come after all tokens."""
    first, *others = [tile.result.attention for tile in tiles if tile.result.attention]
    heads = dict(first.heads)
    for layer in filter(None, heads):
        arrays = [maps.heads[layer] for maps in (first, *others)]
        heads[layer] = {
            **arrays[0],
            **{n: _join([each[n] for each in arrays], axis) for n, axis in SOURCE_AXIS.items()},
        }
    return replace(first, heads=heads)


def _join(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays along the axis of sources, with the first source behind all others."""
    biases, own = np.split(arrays[0], [1], axis)
    return np.concatenate([own, *arrays[1:], biases], axis)
