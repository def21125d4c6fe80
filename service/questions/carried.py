"""What input tokens do to a text: works that each carry some of its sources through the model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from model.carried import Sources
from model.config import EncoderConfig, PoolingMode
from model.maps.units import Units
from service.encode.price import SINGLE
from service.encode.resolver import Resolver
from service.engine.fair.turns import in_turns
from service.shapes.work import Outputs, Work

TILE_ROWS = 1024  # tokens times sources of a work, which holds its lane for less than half a second
CARRYING_TAKES = "with each token or word carried through the layers by itself it takes the work of"
# Bytes as tests/service/questions/test_carried.py measures them
WORK_BYTES = 600  # of a work, apart from what it makes


async def carry_works(
    works: Sequence[Work],
    owners: Sequence[Sequence[int]],
    resolver: Resolver,
    modes: tuple[PoolingMode, ...] = (),
    layers: int | None = None,
) -> tuple[list[list[Work]], int]:
    """Return the works that carry each text, of which the first is its own; and the bytes kept.

    Args:
        owners: of each work, the source that each token belongs to.
        modes, layers: as of Sources.

    Raises:
        Refused: it takes the work of too many tokens.
    """
    config = resolver.model.config
    carried = sum(len(work) * (max(own) + 1) for work, own in zip(works, owners, strict=True))
    resolver.check_tokens(sum(map(len, works)) + carried, CARRYING_TAKES)
    texts = zip(works, owners, strict=True)
    tiles = [_divide(work, own, modes, layers) async for work, own in in_turns(texts)]
    return tiles, weigh_carrying([*chain(*tiles)], config)


def weigh_carrying(works: Sequence[Work], config: EncoderConfig) -> int:
    """Return the bytes of works that carry sources or targets, and of what the largest makes."""
    carried = [work.outputs.carried or work.outputs.targets or () for work in works]
    rows = max(len(work) * (1 + len(each)) for work, each in zip(works, carried, strict=True))
    made = rows * (6 * config.width + 3 * config.feed_forward)
    return SINGLE * made + WORK_BYTES * len(works)


def number_sources(units: Units) -> tuple[int, ...]:
    """Return each token's source: its unit's place on the axis, from 1 on; the next if dropped."""
    places, dropped = {unit: place for place, unit in enumerate(units.axis, 1)}, len(units.axis) + 1
    return tuple(
        places.get(unit, dropped)
        for unit, (first, last) in enumerate(units.spans)
        for _ in range(first, last)
    )


def _divide(
    work: Work, owners: Sequence[int], modes: tuple[PoolingMode, ...], layers: int | None
) -> list[Work]:
    """Return works that together carry all sources, the given one first."""
    count, step = max(owners) + 1, max(1, TILE_ROWS // len(work))
    first, *others = [
        Sources(owners, range(start, min(start + step, count)), modes, layers)
        for start in range(0, count, step)
    ]
    work.outputs = replace(work.outputs, carried=first)
    return [work, *(replace(work, outputs=Outputs(carried=one), facts={}) for one in others)]
