"""What parts of a text are worth: the text once whole, and once without each part.

A copy is what a client would send that left these tokens out of the token ids or the embeddings
itself; it has the bits of such a request. Source: Li et al. 2016, "Understanding Neural Networks
through Representation Erasure" (arXiv 1612.08220), on inputs.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from model import packing
from model.maps.units import Units
from service.core import Side, place_of_work
from service.encode.interventions import NUMBER_BYTES
from service.encode.resolver import Resolver
from service.encode.swept import MOST_COPIES
from service.engine.work import Work
from service.refusals import Refused

# Bytes as tests/service/questions/test_occlusion.py measures them
COPY_BYTES = 600  # of a copy, beside its tokens and its vector
TOKEN_BYTES = 16  # of a token's id and its type

TOO_MANY_COPIES = (
    "leaving out one part at a time takes {count:,} copies of inputs, and the limit is {limit:,}"
)
ONLY_PART = "it is one part whole, and without it nothing is left to compare"

Span = tuple[int, int]  # tokens, [first, last)


def leave_out(sequence: packing.Sequence, span: Span) -> packing.Sequence:
    """Return a sequence that lacks some of its tokens."""
    first, last = span
    ids, types, rows = sequence.token_ids, sequence.types, sequence.embeddings
    return replace(
        sequence,
        token_ids=None if ids is None else [*ids[:first], *ids[last:]],
        types=None if types is None else [*types[:first], *types[last:]],
        embeddings=None if rows is None else torch.cat([rows[:first], rows[last:]]),
    )


def occlude_works(
    works: Sequence[Work], units: Sequence[Units], resolver: Resolver, sides: Sequence[Side]
) -> tuple[list[list[Work]], int]:
    """Return copies of each work that lack one of its units each, and the bytes kept of them.

    Args:
        units: of each work.

    Raises:
        Refused: more copies or tokens than may be, or one without any token.
    """
    spans = [[one.spans[place] for place in one.axis] for one in units]
    if (count := sum(map(len, spans))) > MOST_COPIES:
        detail = TOO_MANY_COPIES.format(count=count, limit=MOST_COPIES)
        raise Refused("batch_too_large", detail=detail, limit=MOST_COPIES)
    tokens = sum(
        len(work) - (last - first)
        for work, own in zip(works, spans, strict=True)
        for first, last in own
    )
    whole = sum(map(len, works))
    resolver.check_tokens(whole + tokens, "with each part left out once it takes the work of")
    for index, (work, own) in enumerate(zip(works, spans, strict=True)):
        if (0, len(work)) in own:
            raise Refused.at("nothing_left", *place_of_work(sides, index), detail=ONLY_PART)
    copies = [
        [replace(work, sequence=leave_out(work.sequence, span), facts={}) for span in own]
        for work, own in zip(works, spans, strict=True)
    ]
    width, every = resolver.model.config.width, [copy for own in copies for copy in own]
    vectors = sum(copy.outputs.pooling.uncut_size(width) for copy in every if copy.outputs.pooling)
    given = (copy.sequence.embeddings for copy in every)
    rows = sum(one.numel() for one in given if one is not None)
    held = COPY_BYTES * count + TOKEN_BYTES * tokens + NUMBER_BYTES * (vectors + rows)
    return copies, held
