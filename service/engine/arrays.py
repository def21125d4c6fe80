"""What a pass computed, copied to the host as arrays, and refused where it is not finite."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from model import packing
from model.encoder import Encoded, Encoder
from model.probes.probe import Made
from service.shapes.work import Array, Outputs


class NonFiniteOutput(Exception):
    """The forward pass produced NaN or infinity.

    Args:
        layer: the first hidden state that has one: 0 = embeddings, i = after i layers.
    """

    def __init__(self, layer: int) -> None:
        super().__init__(f"hidden state {layer} is not finite")
        self.layer = layer


def _first_non_finite(encoder: Encoder, packed: packing.Packed) -> int:
    """Encode a batch whose last state is not finite again; return its first state that is not."""
    last = encoder.config.layers
    hidden = encoder(packed, hidden=frozenset(range(last + 1))).hidden
    non_finite = (state for state in sorted(hidden) if not is_finite(hidden[state]))
    return next(non_finite, last)


def is_finite(rows: torch.Tensor) -> bool:
    """Tell whether no number is NaN or infinity."""
    return bool(_extremes(rows).isfinite().all())


def _extremes(rows: torch.Tensor) -> torch.Tensor:
    """Return the least and the largest number, (2,) float32, which show any NaN or infinity."""
    return torch.stack(rows.aminmax()).float()


def copy_finite(encoder: Encoder, encoded: Encoded, made: Sequence[torch.Tensor]) -> list[Array]:
    """Return what was made of a batch as arrays, of a GPU in the same copy as its extremes.

    Raises:
        NonFiniteOutput: the last state, or what was made of it, has NaN or infinity.
    """
    extremes = [_extremes(encoded.last)] if encoded.finite is None else []
    arrays = to_arrays([*made, *extremes])
    finite = [bool(np.isfinite(array).all()) for array in arrays]
    if encoded.finite is False or not all(finite[len(made) :]):
        raise NonFiniteOutput(_first_non_finite(encoder, encoded.packed))
    if not all(finite):
        raise NonFiniteOutput(encoder.config.layers)
    return arrays[: len(made)]


def copy_states(encoded: Encoded, outputs: Sequence[Outputs]) -> dict[int | None, dict[int, Array]]:
    """Return the hidden states to answer, (tokens, width), by state (None: last) and sequence."""
    shown: dict[int | None, list[bool]] = {None: [each.tokens for each in outputs]}
    shown |= {layer: [layer in each.hidden for each in outputs] for layer in encoded.hidden}
    found = {}
    for layer, flags in shown.items():
        state = encoded.last if layer is None else encoded.hidden[layer]
        indices = [index for index, is_shown in enumerate(flags) if is_shown]
        rows = [state[encoded.packed.rows(index)] for index in indices]
        found[layer] = dict(zip(indices, to_arrays(rows), strict=True))
    return found


def to_arrays(tensors: Sequence[torch.Tensor]) -> list[Array]:
    """Return tensors of one device as arrays, as `to_array` does; see `copy_together`."""
    if not tensors or tensors[0].device.type == "cpu":
        return [to_array(tensor) for tensor in tensors]
    return copy_together(tensors)


def copy_together(tensors: Sequence[torch.Tensor]) -> list[Array]:
    """Copy tensors from a GPU, all of one dtype at once, since each copy waits for it."""
    by_dtype = defaultdict[torch.dtype, list[int]](list)
    for index, tensor in enumerate(tensors):
        by_dtype[tensor.dtype].append(index)
    arrays: dict[int, Array] = {}
    for indices in by_dtype.values():
        whole = to_array(torch.cat([tensors[index].flatten() for index in indices]))
        ends = list(accumulate(tensors[index].numel() for index in indices))
        for index, part in zip(indices, np.split(whole, ends[:-1]), strict=True):
            arrays[index] = part.reshape(tensors[index].shape)
    return [arrays[index] for index in range(len(tensors))]


def name_arrays(made: Made) -> Any:
    """Return what a probe made with each tensor as an array of the same dtype."""
    if isinstance(made, torch.Tensor):
        return made.cpu().numpy()
    return {name: name_arrays(each) for name, each in made.items()}


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array; floating-point numbers as float32."""
    numbers = tensor.float() if tensor.is_floating_point() else tensor
    return numbers.cpu().numpy()
