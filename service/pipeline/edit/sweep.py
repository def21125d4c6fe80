"""Sweeps heads: runs copies of the inputs with one head scaled each, and compares their answers.

Layers below a copy's head give what they give in the unchanged pass, and are not computed again: a
copy begins inside that head's layer, from a state that the unchanged pass has kept.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from model.task_heads import Classifier
from service.engine.fair.turns import in_turns
from service.pipeline.edit.interventions import NUMBER_BYTES
from service.pipeline.find.resolver import Resolver
from service.shapes.inputs import Sweep
from service.shapes.step import Step
from service.shapes.work import Array, Outputs, Result, Work
from service.tables.refusals import Refused

MOST_COPIES = 4096  # copies of a request; each takes a lane some 50 us on top of its tokens

NOTHING_TO_SWEEP = (
    'a sweep answers how vectors or classes move, and this request has "pooled": false '
    'and no "classify"'
)


class Copies:
    """The copies of a request's inputs in a sweep.

    Args:
        outputs: what is computed of each input.
        count: number of inputs.
        tokens: whether copies keep their token vectors, for the shares of a pair of tokens.

    Attributes:
        heads: the heads to scale, each in a copy of its own.
        made: copies of each input, in the order of heads; empty until the inputs have run.

    Raises:
        Refused: a head does not exist, there are too many copies, or no output to compare.
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
        """Return the number of copies of each input."""
        return sum(map(len, self.heads.values()))

    async def step(self, works: Sequence[Work]) -> Step:
        """Return a step that runs the inputs, and then their copies.

        Raises:
            Refused: the copies are more work than a request may take.
        """
        config = self._resolver.model.config
        passes = sum(len(own) * (config.layers - i) for i, own in self.heads.items())
        tokens = math.ceil((1 + passes / config.layers) * sum(map(len, works)))
        self._resolver.check_tokens(tokens, "with its sweep it takes the work of")
        outputs = works[0].outputs
        copied = Outputs(outputs.pooling, self._tokens, task_heads=_classifiers(outputs))
        classes = sum(len(head.labels) for head in _classifiers(outputs))
        swept = self._count * (bool(copied.pooling) + classes + self._tokens)
        async for work in in_turns(works):
            kept = work.outputs.kept.union(self.heads)
            work.outputs = replace(work.outputs, kept=kept, swept=swept)
        templates = list[tuple[Work, int]]()  # for each input and layer, with its number of copies
        async for work in in_turns(works):
            edited = 1 + work.edited_heads
            for layer, heads in self.heads.items():
                template = replace(work, outputs=copied, entered=layer, edited_heads=edited)
                templates.append((template, len(heads)))
        size = copied.pooling.uncut_size(config.width) if copied.pooling else 0
        vectors = self._count * size * len(works)
        rows = self._count * config.width * sum(map(len, works)) if self._tokens else 0

        async def run_copies() -> Step:
            """Return the step of the copies, which begin in states of the inputs' results."""
            self.made, unused = [[] for _ in works], iter([template for template, _ in templates])
            made = (
                (i, copy) for i, work in enumerate(works) for copy in self._copies_of(work, unused)
            )
            async for index, copy in in_turns(made):
                self.made[index].append(copy)
            return Step([copy for copies in self.made for copy in copies])

        return Step(works, run_copies, templates, NUMBER_BYTES * (vectors + rows))

    def _copies_of(self, work: Work, templates: Iterator[Work]) -> Iterator[Work]:
        """Yield a copy of an input for each head to scale, from the next template of its layer."""
        sequence = work.sequence
        for layer, heads in self.heads.items():
            template, entry = next(templates), work.result.kept[layer]
            above = {i: scales for i, scales in sequence.gates.items() if i > layer}
            patches = {i: values for i, values in sequence.patches.items() if i > layer}
            for head in heads:
                gates = {layer: {head: self._scale}, **above}
                changed = replace(sequence, gates=gates, patches=patches, entry=entry)
                yield replace(template, sequence=changed)

    def by_head(self, numbers: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Return values in the order of heads as a dict by layer, then head."""
        remaining = iter(numbers)
        return {
            str(layer): {str(head): next(remaining) for head in heads}
            for layer, heads in self.heads.items()
        }

    def moved(self, index: int, whole: Result) -> dict[str, Any]:
        """Return the sweep of one input as POST /v1/encode answers it, by layer, then head.

        cosine  of the vector with the head scaled and the unchanged vector
        logits  of each class with the head scaled, less the unchanged ones

        Args:
            index: number of the input.
            whole: its result without a scaled head.
        """
        fields, copies = dict[str, Any](), [copy.result for copy in self.made[index]]
        if whole.pooled is not None:
            vectors = _pooled_vectors(copies)
            unchanged = np.broadcast_to(whole.pooled.astype(np.float64), vectors.shape)
            fields["cosine"] = self.by_head(_row_cosines(vectors, unchanged).tolist())
        if "logits" in whole.task:
            logits = np.stack([copy.task["logits"] for copy in copies]).astype(np.float64)
            fields["logits"] = self.by_head((logits - whole.task["logits"]).tolist())
        return fields

    def changed(self, left: Result, right: Result, index: int) -> dict[str, Any]:
        """Return the sweep of a pair as POST /v1/similarity answers it, by layer, then head.

        change  of the score, when the head is scaled in both texts

        Args:
            left, right: results of both texts without a scaled head.
            index: number of the right text's work; the left one's is 0.
        """
        score = _row_cosines(_pooled_vectors([left]), _pooled_vectors([right]))
        sides = ([copy.result for copy in self.made[number]] for number in (0, index))
        scores = _row_cosines(*map(_pooled_vectors, sides))
        return {"change": self.by_head((scores - score).tolist())}


def _classifiers(outputs: Outputs) -> tuple[Classifier, ...]:
    """Return the classifiers among the task heads, whose logits a sweep compares."""
    return tuple(head for head in outputs.task_heads if isinstance(head, Classifier))


def _pooled_vectors(copies: Sequence[Result]) -> Array:
    """Return the pooled vectors of copies, (copies, width) float64."""
    return np.stack([copy.pooled for copy in copies if copy.pooled is not None]).astype(np.float64)


def _row_cosines(left: Array, right: Array) -> Array:
    """Return the cosine of each pair of rows of two matrices, (rows,); 0 if a row is zero."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = (left * right).sum(axis=1)
    cosines: Array = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return cosines
