"""What parts of a text are worth: the text once whole, and once without each part.

A copy is what a client would send that left these tokens out of the token ids or the embeddings
itself; it has the bits of such a request. Source: Li et al. 2016, "Understanding Neural Networks
through Representation Erasure" (arXiv 1612.08220), on inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from model import packing
from model.maps.units import Units
from service.encode.interventions import (
    MOST_COPIES,
    NUMBER_BYTES,
    CheckTokens,
    Outcome,
    Submit,
)
from service.engine.work import Work
from service.refusals import Refused

# Bytes as tests/service/encode/test_occlusion.py measures them
COPY_BYTES = 600  # of a copy, beside its tokens and its vector
TOKEN_BYTES = 16  # of a token's id and its type

MANY = "leaving out one part at a time takes {count:,} copies of inputs, and the limit is {limit:,}"
EMPTY = "it is one part whole, and without it nothing is left to compare"

Span = tuple[int, int]  # tokens, [first, last)


def without(sequence: packing.Sequence, span: Span) -> packing.Sequence:
    """Return a sequence that lacks some of its tokens."""
    first, last = span
    ids, types, rows = sequence.token_ids, sequence.types, sequence.embeddings
    return replace(
        sequence,
        token_ids=None if ids is None else [*ids[:first], *ids[last:]],
        types=None if types is None else [*types[:first], *types[last:]],
        embeddings=None if rows is None else torch.cat([rows[:first], rows[last:]]),
    )


@dataclass(frozen=True, slots=True)
class Occlusion:
    """The works of a request, and a copy of each without each of its parts; all run at once.

    Args:
        works: one for each input.
        copies: those of each input in turn.
        counts: how many each input has.
        held: bytes that are kept of the copies, without the answer.
    """

    works: Sequence[Work]
    copies: Sequence[Work]
    counts: Sequence[int]
    held: int

    @classmethod
    def of(
        cls, works: Sequence[Work], units: Sequence[Units], width: int, check_tokens: CheckTokens
    ) -> "Occlusion":
        """Return the course of works, each without each of the units it shows.

        Args:
            units: of each work.
            width: of the model.
            check_tokens: refuses too many tokens of a request; told what holds them.

        Raises:
            Refused: more copies or tokens than may be, or one without any token.
        """
        spans = [[one.spans[place] for place in one.axis] for one in units]
        counts = list(map(len, spans))
        if (count := sum(counts)) > MOST_COPIES:
            detail = MANY.format(count=count, limit=MOST_COPIES)
            raise Refused("batch_too_large", detail=detail, limit=MOST_COPIES)
        tokens = sum(
            len(work) - (last - first)
            for work, own in zip(works, spans, strict=True)
            for first, last in own
        )
        whole = sum(map(len, works))
        check_tokens(whole + tokens, "with each part left out once it takes the work of")
        for index, (work, own) in enumerate(zip(works, spans, strict=True)):
            if (0, len(work)) in own:
                raise Refused.at("nothing_left", "inputs", index, detail=EMPTY)
        copies = [
            replace(work, sequence=without(work.sequence, span), facts={})
            for work, own in zip(works, spans, strict=True)
            for span in own
        ]
        vectors = NUMBER_BYTES * sum(
            work.outputs.pooling.size(width) for work in copies if work.outputs.pooling
        )
        rows = NUMBER_BYTES * sum(
            work.sequence.embeddings.numel()
            for work in copies
            if work.sequence.embeddings is not None
        )
        held = COPY_BYTES * len(copies) + TOKEN_BYTES * tokens + vectors + rows
        return cls(works, copies, counts, held)

    @property
    def every(self) -> list[Work]:
        """Return all works, in the order in which the step takes them."""
        return [*self.works, *self.copies]

    async def run(self, submit: Submit) -> Outcome:
        """Run all works at once."""
        results = await submit(self.every)
        inputs, rest = list(results[: len(self.works)]), iter(results[len(self.works) :])
        return Outcome(inputs, [[next(rest) for _ in range(count)] for count in self.counts])
