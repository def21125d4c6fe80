"""What a request changes in passes: gates and patches of each input, and its sweep.

Works follow from what others leave:

    1  inputs without patches                      keep what patches and copies take
    2  patched inputs                              with values of 1
    3  a copy for each input and head of a sweep   from inside that head's layer on, of 1 and 2

What lies below a copy's head is the untouched pass's, and is not computed again.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from model import packing
from model.config import EncoderConfig
from model.task_heads import Classifier
from service.encode.indices import gate_scales, heads_by_layer, patch_sources
from service.encode.request import Likeness, Request
from service.engine.work import Outputs, Result, Work
from service.refusals import Refused

NUMBER_BYTES = 4  # of a float32
MOST_COPIES = 4096  # of a request, which take a lane some 50 us each on top of their tokens

NOTHING = (
    'a sweep answers how vectors or classes move, and this request has "pooled": false '
    'and no "classify"'
)

BOTH = "a head of this input is both gated and patched: choose one"
ITSELF = "an input cannot be its own source"
CHAIN = "its source is patched itself: take values from an input without patches"

Value = TypeVar("Value")
ByHead = Mapping[int, Mapping[int, Value]]  # by layer and head
Heads = Mapping[int, Sequence[int]]  # by layer
CheckTokens = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Edits:
    """What is done to the heads of one input.

    Args:
        gates: factors.
        patches: the inputs that values are taken from.
    """

    gates: ByHead[float] = field(default_factory=dict)
    patches: ByHead[int] = field(default_factory=dict)

    def apply(self, work: Work) -> None:
        """Give a work its gates, and count its patches, whose values are not known yet."""
        if self.gates or self.patches:
            work.sequence = replace(work.sequence, gates=self.gates)
            work.edited = sum(map(len, (*self.gates.values(), *self.patches.values())))

    @property
    def sources(self) -> Iterator[tuple[int, int]]:
        """Return the layer of each patch, and the input that its values are taken from."""
        for layer, heads in self.patches.items():
            yield from ((layer, source) for source in heads.values())


class Outcome(NamedTuple):
    """What came out of a course: for each input, and for each of its copies, in their order."""

    inputs: list[Result]
    copies: list[list[Result]]


Submit = Callable[[Sequence[Work]], Awaitable[Sequence[Result]]]  # runs works


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
        held: bytes that are kept of all, without the answer.
    """

    works: Sequence[Work]
    edits: Sequence[Edits]
    head: int
    heads: Heads
    scale: float
    copies: Sequence[Work]
    held: int

    @property
    def every(self) -> list[Work]:
        """Return all works, in the order in which the steps take them."""
        by_turn = sorted(zip(self.works, self.edits, strict=True), key=lambda one: _late(one[1]))
        return [*(work for work, _ in by_turn), *self.copies]

    async def run(self, submit: Submit) -> Outcome:
        """Run all works, one step after the other."""
        sequences = [work.sequence for work in self.works]
        free = [index for index, one in enumerate(self.edits) if not _late(one)]
        results = dict(zip(free, await submit([self.works[index] for index in free]), strict=True))
        if patched := [index for index, one in enumerate(self.edits) if _late(one)]:
            for index in patched:
                patches = self._values(self.edits[index], results)
                sequences[index] = replace(sequences[index], patches=patches)
            works = [replace(self.works[index], sequence=sequences[index]) for index in patched]
            results |= zip(patched, await submit(works), strict=True)
        inputs = [results[index] for index in range(len(sequences))]
        if not self.heads:
            return Outcome(inputs, [])
        entered = (
            sequence
            for one, result in zip(sequences, inputs, strict=True)
            for sequence in self._entered(one, result)
        )
        copies = await submit(
            [
                replace(copy, sequence=sequence)
                for copy, sequence in zip(self.copies, entered, strict=True)
            ]
        )
        count = len(copies) // len(inputs)
        return Outcome(inputs, [list(copies[i * count :][:count]) for i in range(len(inputs))])

    def _values(self, edits: Edits, results: Mapping[int, Result]) -> dict[int, dict[int, Tensor]]:
        """Return what replaces the heads of a patched input, (tokens, head) each."""
        size = self.head
        return {
            layer: {
                head: results[source].kept[layer].mixed[:, head * size : (head + 1) * size]
                for head, source in heads.items()
            }
            for layer, heads in edits.patches.items()
        }

    def _entered(self, sequence: packing.Sequence, result: Result) -> Iterator[packing.Sequence]:
        """Return a copy of an input per scaled head, from inside the head's layer on."""
        for layer, heads in self.heads.items():
            above = {i: scales for i, scales in sequence.gates.items() if i > layer}
            patches = {i: values for i, values in sequence.patches.items() if i > layer}
            for head in heads:
                gates = {layer: {head: self.scale}, **above}
                entry = result.kept[layer]
                yield replace(sequence, gates=gates, patches=patches, entry=entry)


def _late(one: Edits) -> bool:
    """Tell whether an input waits for the values of others."""
    return bool(one.patches)


@dataclass(frozen=True, slots=True)
class Interventions:
    """What a request changes.

    Args:
        edits: of each input.
        heads: that its sweep scales; empty without a sweep.
        scale: by which.
        tokens: whether copies keep their tokens' vectors, of which a pair's share is made.
    """

    config: EncoderConfig
    edits: Sequence[Edits]
    heads: Heads = field(default_factory=dict)
    scale: float = 0.0
    tokens: bool = False

    @classmethod
    def of(cls, request: Request, outputs: Outputs, config: EncoderConfig) -> "Interventions":
        """Return those of a request, before any input is read.

        Args:
            outputs: of each of its inputs.

        Raises:
            Refused: a head or an input that does not exist, more copies than may be, or a sweep
                of nothing.
        """
        each = edits(request, config)
        if (sweep := request.sweep) is None:
            return cls(config, each)
        if not _swept(outputs):
            raise Refused.at("out_of_range", "sweep", detail=NOTHING)
        limits = {"layers": config.layers, "heads": config.heads}
        try:
            heads = heads_by_layer(sweep, **limits)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", "sweep", detail=detail, **limits) from None
        copies = sum(map(len, heads.values())) * len(request.inputs)
        if copies > MOST_COPIES:
            detail = f"it takes {copies:,} copies of inputs, and the limit is {MOST_COPIES:,}"
            raise Refused.at("batch_too_large", "sweep", detail=detail, limit=MOST_COPIES)
        ending = request.ending
        paired = isinstance(ending, Likeness) and ending.pair is not None
        return cls(config, each, heads, sweep.scale, paired)

    def check(self, inputs: Sequence[Work], check_tokens: CheckTokens) -> None:
        """Refuse values of an input of another length, and more work or memory than may be.

        Args:
            check_tokens: refuses too many tokens of a request; told what holds them.
        """
        check_lengths(self.edits, inputs)
        lengths, layers = [len(one) for one in inputs], self.config.layers
        passes = sum(len(heads) * (layers - layer) for layer, heads in self.heads.items()) / layers
        tokens = math.ceil((1 + passes) * sum(lengths))
        check_tokens(tokens, "with its sweep it takes the work of")
        kept = zip(self._kept(), lengths, strict=True)
        check_tokens(sum(len(each) * length for each, length in kept), "it keeps the states of")

    def apply(self, works: Sequence[Work]) -> None:
        """Give works their gates, and ask them for what the course takes of them."""
        for work, one, kept in zip(works, self.edits, self._kept(), strict=True):
            one.apply(work)
            if kept:
                work.outputs = replace(work.outputs, kept=kept, swept=self._numbers(work.outputs))

    def course(self, works: Sequence[Work]) -> Course | None:
        """Return how works follow from each other; None where they do not.

        Args:
            works: as `apply` leaves them.
        """
        if not self.heads and not any(one.patches for one in self.edits):
            return None
        width, copied = self.config.width, _swept(works[0].outputs) or Outputs()
        copied = replace(copied, tokens=self.tokens)
        copies = [
            copy
            for work in works
            for layer, heads in self.heads.items()
            for copy in [replace(work, outputs=copied, entered=layer, edited=1 + work.edited)]
            * len(heads)
        ]
        states = (width + self.config.mixed_width) * sum(
            len(work) * len(work.outputs.kept) for work in works
        )
        vectors = len(copies) * (copied.pooling.size(width) if copied.pooling else 0)
        tokens = width * sum(map(len, copies)) if self.tokens else 0
        held = NUMBER_BYTES * (states + vectors + tokens)
        head = self.config.head_dim
        return Course(works, self.edits, head, self.heads, self.scale, copies, held)

    def _kept(self) -> list[frozenset[int]]:
        """Return the layers of each input that copies enter, or that values are taken from."""
        kept = [set(self.heads) for _ in self.edits]
        for one in self.edits:
            for layer, source in one.sources:
                kept[source].add(layer)
        return list(map(frozenset, kept))

    def _numbers(self, outputs: Outputs) -> int:
        """Count the numbers answered for one input's copies."""
        copied = _swept(outputs) or Outputs()
        heads = [head for head in copied.task_heads if isinstance(head, Classifier)]
        classes = sum(len(head.labels) for head in heads)
        return sum(map(len, self.heads.values())) * (bool(copied.pooling) + classes + self.tokens)


def _swept(outputs: Outputs) -> Outputs | None:
    """Return what of an input's outputs a sweep is about; None: nothing."""
    heads = tuple(head for head in outputs.task_heads if isinstance(head, Classifier))
    return Outputs(outputs.pooling, task_heads=heads) if outputs.pooling or heads else None


def edits(request: Request, config: EncoderConfig) -> list[Edits]:
    """Return those of each input: its own, and the request's gates of all other heads.

    Raises:
        Refused: a head that does not exist or is named twice, or no input to take values from.
    """
    common = _resolved(gate_scales, request.gates, config, ("gates",))
    plain = Edits(common)
    each: list[Edits] = []
    for index, item in enumerate(request.inputs):
        if not item.gates and not item.patch:
            each.append(plain)
            continue
        place = "inputs", index
        gates = _resolved(gate_scales, item.gates, config, (*place, "gates"))
        patches = _resolved(patch_sources, item.patch, config, (*place, "patch"))
        _check_patches(request, index, gates, patches)
        each.append(Edits(_merged(common, gates, patches), patches))
    return each


def check_lengths(each: Sequence[Edits], inputs: Sequence[Work]) -> None:
    """Refuse values of an input that has another number of tokens."""
    for index, one in enumerate(each):
        length = len(inputs[index])
        for _, source in one.sources:
            if (other := len(inputs[source])) != length:
                detail = f"this input has {length:,} tokens, and its source has {other:,}"
                raise Refused.at("patch_mismatch", "inputs", index, "patch", detail=detail)


def _resolved(
    resolve: Callable[..., Any], named: Sequence[Any], config: EncoderConfig, place: tuple[Any, ...]
) -> Any:
    """Return heads as a request names them, by layer and head."""
    limits = {"layers": config.layers, "heads": config.heads}
    try:
        return resolve(named, **limits)
    except IndexError as error:
        detail = str(error)
        raise Refused.at("index_out_of_range", *place, detail=detail, **limits) from None


def _check_patches(
    request: Request, index: int, gates: ByHead[float], patches: ByHead[int]
) -> None:
    """Refuse a head that is gated too, and a source that cannot be one."""
    place, count = ("inputs", index, "patch"), len(request.inputs)
    if any(gates.get(layer, {}).keys() & heads.keys() for layer, heads in patches.items()):
        raise Refused.at("index_out_of_range", *place, detail=BOTH)
    for _, source in Edits(patches=patches).sources:
        if not 0 <= source < count:
            detail = f'"from" is an input of this request: 0 to {count - 1}'
            raise Refused.at("index_out_of_range", *place, detail=detail)
        if source == index or request.inputs[source].patch:
            detail = ITSELF if source == index else CHAIN
            raise Refused.at("index_out_of_range", *place, detail=detail)


def _merged(
    common: ByHead[float], gates: ByHead[float], patches: ByHead[int]
) -> dict[int, dict[int, float]]:
    """Return the request's gates with an input's own gates and patches in place of them."""
    merged = {
        layer: {head: scale for head, scale in heads.items() if head not in patches.get(layer, {})}
        for layer, heads in common.items()
    }
    for layer, heads in gates.items():
        merged[layer] = {**merged.get(layer, {}), **heads}
    return {layer: heads for layer, heads in merged.items() if heads}
