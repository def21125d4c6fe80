"""Works that follow from what others leave: patched inputs, and copies with one head scaled.

    1  inputs without patches                      keep what patches and copies take
    2  patched inputs                              with values of 1
    3  a copy for each input and head of a sweep   from inside that head's layer on, of 1 and 2

What lies below a copy's head is the untouched pass's, and is not computed again.
"""

from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from model.packing import Sequence
from service.encode.interventions.edits import Edits
from service.engine.work import Result, Work

Heads = Mapping[int, Many[int]]  # by layer


class Outcome(NamedTuple):
    """What came out of a course: for each input, and for each of its copies, in their order."""

    inputs: list[Result]
    copies: list[list[Result]]


Steps = Generator[Many[Work], Many[Result], Outcome]  # works to run; their results


@dataclass(frozen=True, slots=True)
class Course:
    """The works of one request, in the order in which they can be run.

    Args:
        works: one for each input, those of patched inputs still without values.
        edits: of each input.
        head: channels of a head.
        heads: that a sweep scales, one a copy; empty without a sweep.
        scale: by which.
        copies: those of each input in turn, by layer and head, still without what they enter.
        held: bytes that are kept of all beside the answer.
    """

    works: Many[Work]
    edits: Many[Edits]
    head: int
    heads: Heads
    scale: float
    copies: Many[Work]
    held: int

    @property
    def every(self) -> list[Work]:
        """All works, in the order in which the steps take them."""
        by_turn = sorted(zip(self.works, self.edits, strict=True), key=lambda one: _late(one[1]))
        return [*(work for work, _ in by_turn), *self.copies]

    def steps(self) -> Steps:
        """Yield works to run, take their results, return all."""
        sequences = [work.sequence for work in self.works]
        free = [index for index, one in enumerate(self.edits) if not _late(one)]
        results = dict(zip(free, (yield [self.works[index] for index in free]), strict=True))
        if patched := [index for index, one in enumerate(self.edits) if _late(one)]:
            for index in patched:
                patches = self._values(self.edits[index], results)
                sequences[index] = replace(sequences[index], patches=patches)
            works = [replace(self.works[index], sequence=sequences[index]) for index in patched]
            results |= zip(patched, (yield works), strict=True)
        inputs = [results[index] for index in range(len(sequences))]
        if not self.heads:
            return Outcome(inputs, [])
        entered = (
            sequence
            for one, result in zip(sequences, inputs, strict=True)
            for sequence in self._entered(one, result)
        )
        copies = yield [
            replace(copy, sequence=sequence)
            for copy, sequence in zip(self.copies, entered, strict=True)
        ]
        count = len(copies) // len(inputs)
        return Outcome(inputs, [list(copies[i * count :][:count]) for i in range(len(inputs))])

    def _values(self, edits: Edits, results: Mapping[int, Result]) -> dict[int, dict[int, Tensor]]:
        """What replaces the heads of a patched input, (tokens, head) each."""
        size = self.head
        return {
            layer: {
                head: results[source].kept[layer].mixed[:, head * size : (head + 1) * size]
                for head, source in heads.items()
            }
            for layer, heads in edits.patches.items()
        }

    def _entered(self, sequence: Sequence, result: Result) -> Iterator[Sequence]:
        """A copy of an input for each head that is scaled, from inside the head's layer on."""
        for layer, heads in self.heads.items():
            above = {i: scales for i, scales in sequence.gates.items() if i > layer}
            patches = {i: values for i, values in sequence.patches.items() if i > layer}
            for head in heads:
                gates = {layer: {head: self.scale}, **above}
                entry = result.kept[layer]
                yield replace(sequence, gates=gates, patches=patches, entry=entry)


def _late(one: Edits) -> bool:
    """Whether an input waits for the values of others."""
    return bool(one.patches)
