"""What each head is worth: copies of the inputs with one head scaled each, and how they differ.

What lies below a copy's head is the untouched pass's and is not computed again: a copy begins
inside that head's layer, once the untouched passes have left what it enters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from model.task_heads import Classifier
from service.core import Step
from service.encode.interventions import NUMBER_BYTES
from service.encode.resolver import Resolver
from service.engine.work import Array, Outputs, Result, Work
from service.inputs import Sweep
from service.refusals import Refused

MOST_COPIES = 4096  # of a request, which take a lane some 50 us each on top of their tokens

NOTHING_TO_SWEEP = (
    'a sweep answers how vectors or classes move, and this request has "pooled": false '
    'and no "classify"'
)


class Copies:
    """The copies of a sweep.

    Args:
        outputs: of each input.
        count: of inputs.
        tokens: whether copies keep their tokens' vectors, of which a pair's share is made.

    Attributes:
        heads: that are scaled, one a copy.
        made: of each input, in the order of heads, once the inputs have run.

    Raises:
        Refused: a head that does not exist, more copies than may be, or a sweep of nothing.
    """

    def __init__(
        self, sweep: Sweep, outputs: Outputs, count: int, resolver: Resolver, *, tokens: bool
    ) -> None:
        if not outputs.pooling and not _classifiers(outputs):
            raise Refused.at("out_of_range", "sweep", detail=NOTHING_TO_SWEEP)
        self.heads, self._resolver = resolver.heads(sweep, "sweep"), resolver
        self._scale, self._tokens = sweep.scale, tokens
        self.made = list[list[Work]]()
        if (copies := self._count * count) > MOST_COPIES:
            detail = f"it takes {copies:,} copies of inputs, and the limit is {MOST_COPIES:,}"
            raise Refused.at("batch_too_large", "sweep", detail=detail, limit=MOST_COPIES)

    @property
    def _count(self) -> int:
        return sum(map(len, self.heads.values()))

    def step(self, works: Sequence[Work]) -> Step:
        """Return a step of inputs, from which their copies follow.

        Raises:
            Refused: it is more work than a request may take.
        """
        config = self._resolver.model.config
        passes = sum(len(own) * (config.layers - i) for i, own in self.heads.items())
        tokens = math.ceil((1 + passes / config.layers) * sum(map(len, works)))
        self._resolver.check_tokens(tokens, "with its sweep it takes the work of")
        outputs = works[0].outputs
        copied = Outputs(outputs.pooling, self._tokens, task_heads=_classifiers(outputs))
        classes = sum(len(head.labels) for head in _classifiers(outputs))
        swept = self._count * (bool(copied.pooling) + classes + self._tokens)
        for work in works:
            kept = work.outputs.kept.union(self.heads)
            work.outputs = replace(work.outputs, kept=kept, swept=swept)
        likes = [
            (
                replace(work, outputs=copied, entered=layer, edited_heads=1 + work.edited_heads),
                len(heads),
            )
            for work in works
            for layer, heads in self.heads.items()
        ]
        size = copied.pooling.uncut_size(config.width) if copied.pooling else 0
        copies = self._count * size * len(works)
        rows = self._count * config.width * sum(map(len, works)) if self._tokens else 0

        async def follow() -> Step:
            rest = iter([like for like, _ in likes])
            self.made = [list(self._copies_of(work, rest)) for work in works]
            return Step([copy for own in self.made for copy in own])

        return Step(works, follow, likes, NUMBER_BYTES * (copies + rows))

    def _copies_of(self, work: Work, likes: Iterator[Work]) -> Iterator[Work]:
        """Yield a copy of an input per scaled head, from inside the head's layer on."""
        sequence = work.sequence
        for layer, heads in self.heads.items():
            like, entry = next(likes), work.result.kept[layer]
            above = {i: scales for i, scales in sequence.gates.items() if i > layer}
            patches = {i: values for i, values in sequence.patches.items() if i > layer}
            for head in heads:
                gates = {layer: {head: self._scale}, **above}
                changed = replace(sequence, gates=gates, patches=patches, entry=entry)
                yield replace(like, sequence=changed)

    def by_head(self, numbers: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Return numbers in the order of heads, keyed by layer, then head."""
        rest = iter(numbers)
        return {
            str(layer): {str(head): next(rest) for head in of_layer}
            for layer, of_layer in self.heads.items()
        }

    def moved(self, index: int, whole: Result) -> dict[str, Any]:
        """Return what POST /v1/encode answers of one input, keyed by layer, then head.

        cosine  of the vector with the head scaled and the untouched one
        logits  each class's with the head scaled, less the untouched one
        """
        told, copies = dict[str, Any](), [copy.result for copy in self.made[index]]
        if whole.pooled is not None:
            vectors = _pooled_vectors(copies)
            untouched = np.broadcast_to(whole.pooled.astype(np.float64), vectors.shape)
            told["cosine"] = self.by_head(_row_cosines(vectors, untouched).tolist())
        if "logits" in whole.task:
            logits = np.stack([copy.task["logits"] for copy in copies]).astype(np.float64)
            told["logits"] = self.by_head((logits - whole.task["logits"]).tolist())
        return told

    def changed(self, left: Result, right: Result, index: int) -> dict[str, Any]:
        """Return what POST /v1/similarity answers of one text on the right.

        change  of the score, when the head is scaled in both texts
        """
        score = _row_cosines(_pooled_vectors([left]), _pooled_vectors([right]))
        sides = ([copy.result for copy in self.made[at]] for at in (0, index))
        scores = _row_cosines(*map(_pooled_vectors, sides))
        return {"change": self.by_head((scores - score).tolist())}


def _classifiers(outputs: Outputs) -> tuple[Classifier, ...]:
    """Return the heads whose logits a sweep is about."""
    return tuple(head for head in outputs.task_heads if isinstance(head, Classifier))


def _pooled_vectors(copies: Sequence[Result]) -> Array:
    """Return the pooled vectors of copies, (copies, width) float64."""
    return np.stack([copy.pooled for copy in copies if copy.pooled is not None]).astype(np.float64)


def _row_cosines(one: Array, other: Array) -> Array:
    """Return the cosines of the rows of two matrices, (rows,); 0 where one has no length."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = (one * other).sum(axis=1)
    cosines: Array = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return cosines
