"""What input tokens do to a text: works that each carry some of its sources through the model."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from model.config import EncoderConfig
from model.maps.units import Units
from model.probes import Probe
from service.engine.fair.turns import in_turns
from service.pipeline.find.resolver import Resolver
from service.shapes.work import Outputs, Work

TILE_ROWS = 1024  # tokens times sources of a work, which holds its lane for less than half a second
CARRYING_TAKES = "with each token or word carried through the layers by itself it takes the work of"
# Bytes as tests/service/questions/test_carried.py measures them
WORK_BYTES = 600  # of a work, apart from what it makes


async def carry_works(
    works: Sequence[Work],
    owners: Sequence[Sequence[int]],
    resolver: Resolver,
    make_probe: Callable[[int, range], Probe],
) -> list[list[Work]]:
    """Return the works that carry each text, of which the first is its own.

    Args:
        owners: of each work, the source that each token belongs to.
        make_probe: returns what carries these sources of the text with this number.

    Raises:
        Refused: it takes the work of too many tokens.
    """
    counts = [max(own) + 1 for own in owners]
    tokens = sum(len(work) * (1 + count) for work, count in zip(works, counts, strict=True))
    resolver.check_tokens(tokens, CARRYING_TAKES)
    carried = list[list[Work]]()
    async for number, (work, count) in in_turns(enumerate(zip(works, counts, strict=True))):
        step = max(1, TILE_ROWS // len(work))
        first, *others = [
            make_probe(number, range(start, min(start + step, count)))
            for start in range(0, count, step)
        ]
        work.outputs = work.outputs.asking(first)
        tiles = (replace(work, outputs=Outputs(probes=(one,)), facts={}) for one in others)
        carried.append([work, *tiles])
    return carried


async def weigh_probes(works: Sequence[Work], config: EncoderConfig) -> int:
    """Return the bytes of works that share out a text's probe, and of what the largest makes."""
    most = 0
    async for work in in_turns(works):
        sizes = [probe.scratch_bytes(config, len(work)) for probe in work.outputs.probes]
        most = max(most, *sizes)
    return WORK_BYTES * len(works) + most


def number_sources(units: Units) -> tuple[int, ...]:
    """Return each token's source: its unit's place on the axis, from 1 on; the next if dropped."""
    places, dropped = {unit: place for place, unit in enumerate(units.axis, 1)}, len(units.axis) + 1
    return tuple(
        places.get(unit, dropped)
        for unit, (first, last) in enumerate(units.spans)
        for _ in range(first, last)
    )
