"""What each input's heads are scaled by, and where their values come from; or a refusal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from model.config import EncoderConfig
from service.api.native.request import EncodeRequest
from service.encode.indices import gate_scales, patch_sources
from service.encode.inputs import ModelInput
from service.refusals import Refused

Value = TypeVar("Value")
ByHead = Mapping[int, Mapping[int, Value]]  # by layer and head

BOTH = "a head of this input is both gated and patched: choose one"
ITSELF = "an input cannot be its own source"
CHAIN = "its source is patched itself: take values from an input without patches"


@dataclass(frozen=True, slots=True)
class Edits:
    """What is done to the heads of one input.

    Args:
        gates: factors.
        patches: the inputs that values are taken from.
    """

    gates: ByHead[float] = field(default_factory=dict)
    patches: ByHead[int] = field(default_factory=dict)

    @property
    def sources(self) -> Iterator[tuple[int, int]]:
        """The layer, and the input that values of it are taken from, of each patch."""
        for layer, heads in self.patches.items():
            yield from ((layer, source) for source in heads.values())


def edits(request: EncodeRequest, config: EncoderConfig) -> list[Edits]:
    """Those of each input: its own, and the request's gates of all other heads.

    Raises:
        Refused: a head that does not exist or is named twice, or no input to take values from.
    """
    common = _resolved(gate_scales, request.gates, config, ("gates",))
    plain = Edits(common)
    each: list[Edits] = []
    for index, item in enumerate(request.items):
        if not item.gates and not item.patch:
            each.append(plain)
            continue
        place = "inputs", index
        gates = _resolved(gate_scales, item.gates or (), config, (*place, "gates"))
        patches = _resolved(patch_sources, item.patch or (), config, (*place, "patch"))
        _check_patches(request, index, gates, patches)
        each.append(Edits(_merged(common, gates, patches), patches))
    return each


def check_lengths(each: Sequence[Edits], inputs: Sequence[ModelInput]) -> None:
    """Refuse values of an input that has another number of tokens."""
    for index, one in enumerate(each):
        length = len(inputs[index].sequence)
        for _, source in one.sources:
            if (other := len(inputs[source].sequence)) != length:
                detail = f"this input has {length:,} tokens, and its source has {other:,}"
                raise Refused.at("patch_mismatch", "inputs", index, "patch", detail=detail)


def _resolved(
    resolve: Callable[..., Any], named: Sequence[Any], config: EncoderConfig, place: tuple[Any, ...]
) -> Any:
    """Heads as a request names them, by layer and head."""
    limits = {"layers": config.layers, "heads": config.heads}
    try:
        return resolve(named, **limits)
    except IndexError as error:
        detail = str(error)
        raise Refused.at("index_out_of_range", *place, detail=detail, **limits) from None


def _check_patches(
    request: EncodeRequest, index: int, gates: ByHead[float], patches: ByHead[int]
) -> None:
    """Refuse a head that is gated too, and a source that cannot be one."""
    place, count = ("inputs", index, "patch"), len(request.items)
    if any(gates.get(layer, {}).keys() & heads.keys() for layer, heads in patches.items()):
        raise Refused.at("index_out_of_range", *place, detail=BOTH)
    for _, source in Edits(patches=patches).sources:
        if not 0 <= source < count:
            detail = f'"from" is an input of this request: 0 to {count - 1}'
            raise Refused.at("index_out_of_range", *place, detail=detail)
        if source == index or request.items[source].patch:
            detail = ITSELF if source == index else CHAIN
            raise Refused.at("index_out_of_range", *place, detail=detail)


def _merged(
    common: ByHead[float], gates: ByHead[float], patches: ByHead[int]
) -> dict[int, dict[int, float]]:
    """The request's gates with an input's own gates and patches in place of them."""
    merged = {
        layer: {head: scale for head, scale in heads.items() if head not in patches.get(layer, {})}
        for layer, heads in common.items()
    }
    for layer, heads in gates.items():
        merged[layer] = {**merged.get(layer, {}), **heads}
    return {layer: heads for layer, heads in merged.items() if heads}
