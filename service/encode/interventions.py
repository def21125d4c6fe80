"""What a request changes in passes: the gates and patches of each input.

A patched input takes values of others, so it runs after them. What its heads had is not computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from model.config import EncoderConfig
from service.core import Side, Step, place_of_work
from service.encode.indices import resolve_gates, resolve_patches
from service.encode.resolver import Resolver
from service.engine.work import Work
from service.inputs import Gate, Item, numbered_items
from service.refusals import Refused
from service.wording.words import Loc

NUMBER_BYTES = 4  # of a float32

GATED_AND_PATCHED = "a head of this input is both gated and patched: choose one"
PATCHED_FROM_ITSELF = "an input cannot be its own source"
PATCHED_SOURCE = "its source is patched itself: take values from an input without patches"

Value = TypeVar("Value")
ByHead = Mapping[int, Mapping[int, Value]]  # by layer and head


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
            work.edited_heads = sum(map(len, (*self.gates.values(), *self.patches.values())))

    @property
    def sources(self) -> Iterator[tuple[int, int]]:
        """Return the layer of each patch, and the input that its values are taken from."""
        for layer, heads in self.patches.items():
            yield from ((layer, source) for source in heads.values())


NO_EDITS = Edits()


@dataclass(frozen=True, slots=True)
class Interventions:
    """What a request changes.

    Args:
        common: of every input, and of texts that are made on the way.
        each: of each input; empty where none is changed.
    """

    config: EncoderConfig
    common: Edits = NO_EDITS
    each: Sequence[Edits] = ()

    @classmethod
    def of(
        cls, gates: Sequence[Gate], sides: Sequence[Side], config: EncoderConfig
    ) -> "Interventions":
        """Return those of a request, before any input is read.

        Raises:
            Refused: a head or an input that does not exist.
        """
        inputs = [one for side in sides for one in side.inputs]
        common = Edits(_resolve_heads(resolve_gates, gates, config, ("gates",)))
        each = list[Edits]()
        for index, one in enumerate(inputs):
            if not isinstance(one, Item) or not (one.gates or one.patch):
                each.append(common)
                continue
            at = partial(place_of_work, sides, index)
            own = _resolve_heads(resolve_gates, one.gates or (), config, at("gates"))
            patches = _resolve_heads(resolve_patches, one.patch or (), config, at("patch"))
            patched = {number for number, other in numbered_items(inputs) if other.patch}
            _check_patches(own, patches, index, len(inputs), patched, at("patch"))
            each.append(Edits(_merge_edits(common.gates, own, patches), patches))
        return cls(config, common, each)

    def apply(self, works: Sequence[Work], sides: Sequence[Side]) -> None:
        """Give works their gates, and have the sources of patches keep those layers.

        Raises:
            Refused: values of an input that has another number of tokens.
        """
        for index, (work, one) in enumerate(zip(works, self.each, strict=False)):
            one.apply(work)
            for layer, source in one.sources:
                taken = works[source]
                if len(taken) != len(work):
                    detail = f"this input has {len(work):,} tokens, and its source has "
                    detail += f"{len(taken):,}"
                    loc = place_of_work(sides, index, "patch")
                    raise Refused.at("patch_mismatch", *loc, detail=detail)
                kept = taken.outputs.kept | {layer}
                taken.outputs = replace(taken.outputs, kept=kept)

    def ordered(self, step: Step, resolver: Resolver) -> Step:
        """Return a step in two: patched inputs run once those that they take values from have.

        Raises:
            Refused: it keeps the states of more tokens than a request may hold.
        """
        late = [index for index, one in enumerate(self.each) if one.patches]
        if not late and not step.follow:
            return step
        works = step.works
        states = sum(len(work) * len(work.outputs.kept) for work in works)
        resolver.check_tokens(states, "it keeps the states of")
        held = step.held + NUMBER_BYTES * (self.config.width + self.config.mixed_width) * states
        if not late:
            return step._replace(held=held)

        async def patched() -> Step:
            for index in late:
                patches = self._patched_values(self.each[index], works)
                works[index].sequence = replace(works[index].sequence, patches=patches)
            return Step([works[index] for index in late], step.then)

        free = [work for index, work in enumerate(works) if index not in {*late}]
        return Step(free, patched, [*((works[i], 1) for i in late), *step.follow], held)

    def _patched_values(self, edits: Edits, works: Sequence[Work]) -> dict[int, dict[int, Tensor]]:
        """Return what replaces the heads of a patched input, (tokens, head) each."""
        size = self.config.head_dim
        return {
            layer: {
                head: works[source].result.kept[layer].mixed[:, head * size : (head + 1) * size]
                for head, source in heads.items()
            }
            for layer, heads in edits.patches.items()
        }


def _resolve_heads(
    resolve: Callable[..., Any], named: Sequence[Any], config: EncoderConfig, loc: Loc
) -> Any:
    """Return heads as a request names them, by layer and head."""
    limits = {"layers": config.layers, "heads": config.heads}
    try:
        return resolve(named, **limits)
    except IndexError as error:
        detail = str(error)
        raise Refused.at("index_out_of_range", *loc, detail=detail, **limits) from None


def _check_patches(
    gates: ByHead[float],
    patches: ByHead[int],
    index: int,
    count: int,
    patched: set[int],
    loc: Loc,
) -> None:
    """Refuse a head that is gated too, and a source that cannot be one.

    Args:
        index: of the input, one of so many.
        patched: inputs that take values themselves.
    """
    if any(gates.get(layer, {}).keys() & heads.keys() for layer, heads in patches.items()):
        raise Refused.at("index_out_of_range", *loc, detail=GATED_AND_PATCHED)
    for _, source in Edits(patches=patches).sources:
        if not 0 <= source < count:
            detail = f'"from" is an input of this request: 0 to {count - 1}'
            raise Refused.at("index_out_of_range", *loc, detail=detail)
        if source == index or source in patched:
            detail = PATCHED_FROM_ITSELF if source == index else PATCHED_SOURCE
            raise Refused.at("index_out_of_range", *loc, detail=detail)


def _merge_edits(
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
