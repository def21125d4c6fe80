"""Applies a request's gates and patches to the attention heads of its inputs.

A gate scales a head's output; a patch replaces it by that of another input. A patched input runs
after those that it takes values from, and its own values of that head are not computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from model.config import EncoderConfig
from service.engine.fair.turns import in_turns
from service.pipeline.find.heads import resolve_gates, resolve_patches
from service.pipeline.find.resolver import Resolver
from service.shapes.inputs import Gate, InputItem, numbered_items
from service.shapes.side import Side, place_of_work
from service.shapes.step import Step
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc

NUMBER_BYTES = 4  # bytes of a float32

# Details of refusals
GATED_AND_PATCHED = "a head of this input is both gated and patched: choose one"
PATCHED_FROM_ITSELF = "an input cannot be its own source"
PATCHED_SOURCE = "its source is patched itself: take values from an input without patches"

Value = TypeVar("Value")
ByHead = Mapping[int, Mapping[int, Value]]  # values by layer, then head


@dataclass(frozen=True, slots=True)
class HeadEdits:
    """The gates and patches of one input's heads."""

    gates: ByHead[float] = field(default_factory=dict)  # factor of each gated head
    patches: ByHead[int] = field(default_factory=dict)  # source input of each patched head

    def apply(self, work: Work) -> None:
        """Set a work's gates and its number of edited heads; values of patches come later."""
        if self.gates or self.patches:
            work.sequence = replace(work.sequence, gates=self.gates)
            work.edited_heads = sum(map(len, (*self.gates.values(), *self.patches.values())))

    @property
    def sources(self) -> Iterator[tuple[int, int]]:
        """Yield each patch's layer, and the number of the input that it takes values from."""
        for layer, heads in self.patches.items():
            yield from ((layer, source) for source in heads.values())


NO_EDITS = HeadEdits()


@dataclass(frozen=True, slots=True)
class Interventions:
    """The gates and patches of all inputs of a request."""

    config: EncoderConfig
    common: HeadEdits = NO_EDITS  # edits of texts that are made while the request is answered
    each: Sequence[HeadEdits] = ()  # edits of each input; empty if no head is changed

    @classmethod
    async def of(
        cls, gates: Sequence[Gate], sides: Sequence[Side], config: EncoderConfig
    ) -> "Interventions":
        """Resolve the gates and patches of a request, before any input is read.

        Args:
            gates: of the whole request, which apply to every input.

        Raises:
            Refused: a head or an input does not exist, or an input cannot be a source.
        """
        inputs = [item for side in sides for item in side.inputs]
        patched = {number for number, item in numbered_items(inputs) if item.patch}
        common = HeadEdits(_resolve_heads(resolve_gates, gates, config, ("gates",)))
        each = list[HeadEdits]()
        async for index, item in in_turns(enumerate(inputs)):
            if not isinstance(item, InputItem) or not (item.gates or item.patch):
                each.append(common)
                continue
            at = partial(place_of_work, sides, index)
            own = _resolve_heads(resolve_gates, item.gates or (), config, at("gates"))
            patches = _resolve_heads(resolve_patches, item.patch or (), config, at("patch"))
            _check_patches(own, patches, index, len(inputs), patched, at("patch"))
            each.append(HeadEdits(_merge_edits(common.gates, own, patches), patches))
        return cls(config, common, each)

    async def apply(self, works: Sequence[Work], sides: Sequence[Side]) -> None:
        """Set the gates of works, and have the sources of patches keep the layers needed.

        Raises:
            Refused: an input and a source of its patches have different numbers of tokens.
        """
        if not self.each:
            return
        changed = enumerate(zip(works, self.each, strict=False))
        async for index, (work, edits) in in_turns(changed):
            edits.apply(work)
            for layer, number in edits.sources:
                source = works[number]
                if len(source) != len(work):
                    detail = f"this input has {len(work):,} tokens, and its source has "
                    detail += f"{len(source):,}"
                    loc = place_of_work(sides, index, "patch")
                    raise Refused.at("patch_mismatch", *loc, detail=detail)
                kept = source.outputs.kept | {layer}
                source.outputs = replace(source.outputs, kept=kept)

    def ordered(self, step: Step, resolver: Resolver) -> Step:
        """Split a step in two if it has patches: first all sources, then the patched inputs.

        Raises:
            Refused: it keeps the states of more tokens than a request may have.
        """
        patched = [index for index, edits in enumerate(self.each) if edits.patches]
        if not patched and not step.follow:
            return step
        works = step.works
        states = sum(len(work) * len(work.outputs.kept) for work in works)
        resolver.check_tokens(states, "it keeps the states of")
        held = step.held + NUMBER_BYTES * (self.config.width + self.config.mixed_width) * states
        if not patched:
            return step._replace(held=held)

        async def run_patched() -> Step:
            """Return the step of the patched inputs, with values of their sources' results."""
            async for index in in_turns(patched):
                patches = self._patched_values(self.each[index], works)
                works[index].sequence = replace(works[index].sequence, patches=patches)
            return Step([works[index] for index in patched], step.then)

        waiting = {*patched}
        sources = [work for index, work in enumerate(works) if index not in waiting]
        follow = [*((works[index], 1) for index in patched), *step.follow]
        return Step(sources, run_patched, follow, held)

    def _patched_values(
        self, edits: HeadEdits, works: Sequence[Work]
    ) -> dict[int, dict[int, Tensor]]:
        """Return the values for each patched head of an input, (tokens, head width) each."""
        size = self.config.head_dim
        return {
            layer: {
                head: works[source].result.kept[layer].mixed[:, head * size : (head + 1) * size]
                for head, source in heads.items()
            }
            for layer, heads in edits.patches.items()
        }


def _resolve_heads(
    resolve: Callable[..., Any], edits: Sequence[Any], config: EncoderConfig, loc: Loc
) -> Any:
    """Call `resolve_gates` or `resolve_patches`; turn its IndexError into a refusal at `loc`."""
    limits = {"layers": config.layers, "heads": config.heads}
    try:
        return resolve(edits, **limits)
    except IndexError as error:
        detail = str(error)
        raise Refused.at("index_out_of_range", *loc, detail=detail, **limits) from None


def _check_patches(
    gates: ByHead[float], patches: ByHead[int], index: int, count: int, patched: set[int], loc: Loc
) -> None:
    """Refuse a head that is both gated and patched, and an input that cannot be a source.

    Args:
        gates, patches: of one input.
        index, count: the number of that input, and how many there are.
        patched: numbers of all patched inputs, which cannot be sources.
    """
    if any(gates.get(layer, {}).keys() & heads.keys() for layer, heads in patches.items()):
        raise Refused.at("index_out_of_range", *loc, detail=GATED_AND_PATCHED)
    for _, source in HeadEdits(patches=patches).sources:
        if not 0 <= source < count:
            detail = f'"from" must be the number of an input of this request, 0 to {count - 1}'
            raise Refused.at("index_out_of_range", *loc, detail=detail)
        if source == index or source in patched:
            detail = PATCHED_FROM_ITSELF if source == index else PATCHED_SOURCE
            raise Refused.at("index_out_of_range", *loc, detail=detail)


def _merge_edits(
    common: ByHead[float], gates: ByHead[float], patches: ByHead[int]
) -> dict[int, dict[int, float]]:
    """Merge the request's gates with those of an input, which override them; drop patched heads."""
    merged = {
        layer: {head: scale for head, scale in heads.items() if head not in patches.get(layer, {})}
        for layer, heads in common.items()
    }
    for layer, heads in gates.items():
        merged[layer] = {**merged.get(layer, {}), **heads}
    return {layer: heads for layer, heads in merged.items() if heads}
