"""Occlusion: copies of a text that each lack one part, to measure what the part is worth.

A copy gives the same bits as a request whose client left these tokens out of the token ids or the
embeddings. Source: Li et al. 2016, "Understanding Neural Networks through Representation Erasure"
(arXiv 1612.08220), on inputs.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from model import packing
from model.maps.units import Units
from service.engine.fair.turns import give_turn, in_turns
from service.pipeline.edit.interventions import NUMBER_BYTES
from service.pipeline.edit.sweep import MOST_COPIES
from service.pipeline.find.resolver import Resolver
from service.shapes.side import Side, place_of_work
from service.shapes.work import Work
from service.tables.refusals import Refused

# Bytes as tests/service/questions/test_occlusion.py measures them
COPY_BYTES = 600  # of a copy, apart from its tokens and its vector
TOKEN_BYTES = 16  # of a token's id and its type

TOO_MANY_COPIES = (
    "leaving out one part at a time takes {count:,} copies of inputs, and the limit is {limit:,}"
)
ONLY_PART = "it is one part whole, and without it nothing is left to compare"

Span = tuple[int, int]  # tokens, [first, last)


def leave_out(sequence: packing.Sequence, span: Span) -> packing.Sequence:
    """Return a copy of a sequence without the tokens of a span."""
    first, last = span
    ids, types, rows = sequence.token_ids, sequence.types, sequence.embeddings
    return replace(
        sequence,
        token_ids=None if ids is None else [*ids[:first], *ids[last:]],
        types=None if types is None else [*types[:first], *types[last:]],
        embeddings=None if rows is None else torch.cat([rows[:first], rows[last:]]),
    )


async def occlude_works(
    works: Sequence[Work], units: Sequence[Units], resolver: Resolver, sides: Sequence[Side]
) -> tuple[list[list[Work]], int]:
    """Return each work's copies without one of its units each; and the bytes kept of all copies.

    Args:
        units: of each work.
        sides: of the request, for the places in refusals.

    Raises:
        Refused: there are too many copies or tokens, or a copy has no token.
    """
    spans = [[of_work.spans[place] for place in of_work.axis] for of_work in units]
    if (count := sum(map(len, spans))) > MOST_COPIES:
        detail = TOO_MANY_COPIES.format(count=count, limit=MOST_COPIES)
        raise Refused("batch_too_large", detail=detail, limit=MOST_COPIES)
    tokens = sum(
        len(work) - (last - first)
        for work, work_spans in zip(works, spans, strict=True)
        for first, last in work_spans
    )
    whole = sum(map(len, works))
    resolver.check_tokens(whole + tokens, "with each part left out once it takes the work of")
    for index, (work, work_spans) in enumerate(zip(works, spans, strict=True)):
        if (0, len(work)) in work_spans:
            raise Refused.at("nothing_left", *place_of_work(sides, index), detail=ONLY_PART)
    copies: list[list[Work]] = [[] for _ in works]
    async for index, span in in_turns((i, span) for i, own in enumerate(spans) for span in own):
        work = works[index]
        shorter = leave_out(work.sequence, span)
        copies[index].append(replace(work, sequence=shorter, facts={}))
    await give_turn(count)
    width, flat = resolver.model.config.width, [copy for of_work in copies for copy in of_work]
    vectors = sum(copy.outputs.pooling.uncut_size(width) for copy in flat if copy.outputs.pooling)
    embeddings = (copy.sequence.embeddings for copy in flat)
    rows = sum(array.numel() for array in embeddings if array is not None)
    held = COPY_BYTES * count + TOKEN_BYTES * tokens + NUMBER_BYTES * (vectors + rows)
    return copies, held
