"""The layers and heads that a request names -> those of the model, counted from 0."""

import re
from collections.abc import Sequence

from service.encode.request import Attention, EncodeRequest

LAYER = re.compile("0|[1-9][0-9]{0,8}", re.ASCII)  # as JSON names a layer


def hidden_states(request: EncodeRequest, layers: int) -> frozenset[int]:
    """The hidden states asked for: 0 = embeddings, i = after i layers; -1 is the last.

    Raises:
        IndexError: one that does not exist, or is named twice.
    """
    states = [index + layers + 1 if index < 0 else index for index in request.layers]
    return frozenset(_ordered(states, layers + 1))


def heads_by_layer(attention: Attention, layers: int, heads: int) -> dict[int, tuple[int, ...]]:
    """The heads asked for, by layer, in the order of the model.

    Raises:
        IndexError: one that does not exist, or is named twice.
    """
    if isinstance(attention.heads, dict):
        by_layer = {_index(layer): indices for layer, indices in attention.heads.items()}
        numbers = list(by_layer) if attention.layers == "all" else attention.layers
        if set(numbers) != set(by_layer):
            raise IndexError("layers and the keys of heads differ")
    else:
        numbers = list(range(layers)) if attention.layers == "all" else attention.layers
        every = list(range(heads)) if attention.heads == "all" else attention.heads
        by_layer = dict.fromkeys(numbers, every)
    resolved = {i: tuple(_ordered(by_layer[i], heads)) for i in _ordered(numbers, layers)}
    if not resolved or not all(resolved.values()):
        raise IndexError("no head is named")
    return resolved


def gate_scales(request: EncodeRequest, layers: int, heads: int) -> dict[int, dict[int, float]]:
    """What heads are multiplied by, by layer and head.

    Raises:
        IndexError: a head that does not exist, or is named twice.
    """
    scales: dict[int, dict[int, float]] = {}
    for gate in request.gates:
        _ordered([gate.layer], layers)
        _ordered([*scales.get(gate.layer, ()), gate.head], heads)
        scales.setdefault(gate.layer, {})[gate.head] = gate.scale
    return scales


def _index(key: str) -> int:
    if not LAYER.fullmatch(key):
        raise IndexError("a layer is a number")
    return int(key)


def _ordered(indices: Sequence[int], count: int) -> list[int]:
    """The indices asked for, in order; each must exist and stand once."""
    if len(set(indices)) != len(indices) or not all(0 <= index < count for index in indices):
        raise IndexError(f"of {count}")
    return sorted(indices)
