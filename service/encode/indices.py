"""The layers and heads that a request names -> those of the model, counted from 0."""

import re
from collections.abc import Sequence

from service.encode.request import Attention, EncodeRequest

LAYER = re.compile("0|-?[1-9][0-9]{0,8}", re.ASCII)  # as JSON names a layer


def hidden_states(request: EncodeRequest, layers: int) -> frozenset[int]:
    """The hidden states asked for: 0 = embeddings, i = after i layers; -1 is the last.

    Raises:
        IndexError: one that does not exist, or is named twice; the message says which.
    """
    return frozenset(_from_last(request.layers, layers + 1, "entry {}", "hidden state"))


def heads_by_layer(attention: Attention, layers: int, heads: int) -> dict[int, tuple[int, ...]]:
    """The heads asked for, by layer, in the order of the model; of layers, -1 is the last.

    Raises:
        IndexError: one that does not exist, or is named twice; the message says which.
    """
    numbers: Sequence[int] = range(layers)
    if attention.layers != "all":
        numbers = _from_last(attention.layers, layers, "layers[{}]", "layer")
    if isinstance(attention.heads, dict):
        keys = list(map(_index, attention.heads))
        own = _from_last(keys, layers, "key {} of heads", "layer")
        if attention.layers != "all" and set(own) != set(numbers):
            raise IndexError("layers and the keys of heads name different layers")
        by_layer = dict(zip(own, attention.heads.values(), strict=True))
    else:
        every = list(range(heads)) if attention.heads == "all" else attention.heads
        by_layer = dict.fromkeys(numbers, every)
    resolved = {
        layer: tuple(_ordered(by_layer[layer], heads, "heads[{}]", "head"))
        for layer in sorted(by_layer)
    }
    if not resolved or not all(resolved.values()):
        raise IndexError(f"no head is named; this model has {layers} layers of {heads} heads")
    return resolved


def gate_scales(request: EncodeRequest, layers: int, heads: int) -> dict[int, dict[int, float]]:
    """What heads are multiplied by, by layer and head.

    Raises:
        IndexError: a head that does not exist, or is named twice; the message says which.
    """
    scales: dict[int, dict[int, float]] = {}
    for index, gate in enumerate(request.gates):
        _ordered([gate.layer], layers, f"gates[{index}].layer", "layer")
        _ordered([gate.head], heads, f"gates[{index}].head", "head")
        of_layer = scales.setdefault(gate.layer, {})
        if gate.head in of_layer:
            raise IndexError(f"gates[{index}] names the head of an earlier one")
        of_layer[gate.head] = gate.scale
    return scales


def _index(key: str) -> int:
    if not LAYER.fullmatch(key):
        raise IndexError('each key of heads is the number of a layer, such as "5"')
    return int(key)


def _from_last(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """The indices asked for, as they stand; negative ones count from the last."""
    known = f"{noun} of this model: 0 to {count - 1}, or -1 to -{count} from the last"
    _check(indices, range(-count, count), place, known)
    resolved = [index % count for index in indices]
    _check(resolved, range(count), place, known)
    return resolved


def _ordered(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """The indices asked for, in order."""
    _check(indices, range(count), place, f"{noun} of this model: 0 to {count - 1}")
    return sorted(indices)


def _check(indices: Sequence[int], known: range, place: str, noun: str) -> None:
    """Refuse an index that does not exist, or stands twice.

    Args:
        place: of an index, for its number.
        noun: what an index is one of.
    """
    if all(index in known for index in indices) and len(set(indices)) == len(indices):
        return
    seen: set[int] = set()
    for number, index in enumerate(indices):
        if index not in known:
            raise IndexError(f"{place.format(number)} is not a {noun}")
        if index in seen:
            raise IndexError(f"{place.format(number)} stands twice")
        seen.add(index)
