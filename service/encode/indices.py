"""The layers, heads and spans that a request names -> their numbers, counted from 0."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.core import Placer
from service.inputs import Attention, Gate, Patch, Sweep
from service.refusals import Refused

Heads = Mapping[int, tuple[int, ...]]  # by layer

LAYER = re.compile("0|-?[1-9][0-9]{0,8}", re.ASCII)  # as JSON names a layer


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a text.

    Args:
        characters: as the request has it, [start, end).
        tokens: those with a character in it, [first, last).
        extent: the characters of these tokens, which are more where an edge is inside of one, and
            fewer where the span begins or ends with spaces, or the text was cut.
    """

    characters: tuple[int, int]
    tokens: tuple[int, int]
    extent: tuple[int, int]

    def facts(self) -> dict[str, Any]:
        """Return what the answer says of it."""
        return {"characters": self.characters, "tokens": self.tokens, "extent": self.extent}


def chosen_hidden_states(asked: Sequence[int], layers: int) -> frozenset[int]:
    """Return the hidden states asked for: 0 = embeddings, i = after i layers, -1 = last.

    Raises:
        IndexError: one that does not exist, or is named twice; the message says which.
    """
    return frozenset(_count_from_last(asked, layers + 1, "entry {}", "hidden state"))


def chosen_heads(
    attention: Attention | Sweep, layers: int, heads: int
) -> dict[int, tuple[int, ...]]:
    """Return the heads asked for, by layer, in the model's order; of layers, -1 is the last.

    Raises:
        IndexError: one that does not exist, or is named twice; the message says which.
    """
    numbers: Sequence[int] = range(layers)
    if attention.layers != "all":
        numbers = _count_from_last(attention.layers, layers, "layers[{}]", "layer")
    if isinstance(attention.heads, Mapping):
        keys = list(map(_parse_layer, attention.heads))
        own = _count_from_last(keys, layers, "layer {index} of heads", "layer")
        if attention.layers != "all" and set(own) != set(numbers):
            raise IndexError(f"layers has {sorted(numbers)}, but heads names {sorted(own)}")
        by_layer = dict(zip(own, attention.heads.values(), strict=True))
    else:
        every = list(range(heads)) if attention.heads == "all" else attention.heads
        by_layer = dict.fromkeys(numbers, every)
    resolved = {
        layer: tuple(_sort_indices(by_layer[layer], heads, "heads[{}]", "head"))
        for layer in sorted(by_layer)
    }
    if not resolved or not all(resolved.values()):
        raise IndexError(f"no head is named; this model has {layers} layers of {heads} heads")
    return resolved


def resolve_gates(gates: Sequence[Gate], layers: int, heads: int) -> dict[int, dict[int, float]]:
    """Return what heads are multiplied by, by layer and head.

    Raises:
        IndexError: a head that does not exist, or is named twice; the message says which.
    """
    _check_heads([(gate.layer, gate.head) for gate in gates], layers, heads, "gates")
    scales: dict[int, dict[int, float]] = {}
    for gate in gates:
        scales.setdefault(gate.layer, {})[gate.head] = gate.scale
    return scales


def resolve_patches(patches: Sequence[Patch], layers: int, heads: int) -> dict[int, dict[int, int]]:
    """Return which input each head's values are taken from, by layer and head.

    Raises:
        IndexError: a head that does not exist, or is named twice; the message says which.
    """
    _check_heads([(patch.layer, patch.head) for patch in patches], layers, heads, "patch")
    sources: dict[int, dict[int, int]] = {}
    for patch in patches:
        sources.setdefault(patch.layer, {})[patch.head] = patch.source
    return sources


def _check_heads(named: Sequence[tuple[int, int]], layers: int, heads: int, field: str) -> None:
    """Refuse a layer and head that do not exist, or stand twice."""
    seen: set[tuple[int, int]] = set()
    for index, (layer, head) in enumerate(named):
        _sort_indices([layer], layers, f"{field}[{index}].layer", "layer")
        _sort_indices([head], heads, f"{field}[{index}].head", "head")
        if (layer, head) in seen:
            raise IndexError(f"{field}[{index}] names the head of an earlier one")
        seen.add((layer, head))


def locate_spans(
    spans: Sequence[Sequence[int]],
    text: str,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    at: Placer,
) -> list[Span]:
    """Return the tokens of each span of a text.

    Args:
        offsets: of each token, characters, [start, end); neither starts nor ends go back.
        special: whether each token is special; no span holds such a one.
        at: where the text's fields stand in the request.

    Raises:
        Refused: a span ends behind the text, or holds no token; `loc` says which.
    """
    places = [
        (token, start, end)
        for token, ((start, end), added) in enumerate(zip(offsets, special, strict=True))
        if end > start and not added
    ]
    starts, ends = [start for _, start, _ in places], [end for _, _, end in places]
    located = []
    for number, (first, last) in enumerate(spans):
        loc = at("spans", number)
        if last > len(text):
            detail = f"the text has {len(text):,} characters, and the span ends behind them"
            raise Refused.at("out_of_range", *loc, detail=detail)
        opening, closing = bisect_right(ends, first), bisect_left(starts, last)
        if opening >= closing:
            raise Refused.at("span_empty", *loc, detail="no token of the text is in it")
        (begin, start, _), (end, _, stop) = places[opening], places[closing - 1]
        located.append(Span((first, last), (begin, end + 1), (start, stop)))
    return located


def _parse_layer(key: str) -> int:
    if not LAYER.fullmatch(key):
        raise IndexError('each key of heads is the number of a layer, such as "5"')
    return int(key)


def _count_from_last(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """Return the indices asked for, as they stand; negative ones count from the last."""
    known = f"{noun} of this model: {noun}s are 0 to {count - 1}, or -1 to -{count} from the last"
    _check_indices(indices, range(-count, count), place, known)
    resolved = [index % count for index in indices]
    _check_indices(resolved, range(count), place, known)
    return resolved


def _sort_indices(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """Return the indices asked for, in order."""
    _check_indices(
        indices, range(count), place, f"{noun} of this model: {noun}s are 0 to {count - 1}"
    )
    return sorted(indices)


def _check_indices(indices: Sequence[int], known: range, place: str, noun: str) -> None:
    """Refuse an index that does not exist, or stands twice.

    Args:
        place: of an index, by its number and itself.
        noun: what an index is one of.
    """
    if all(index in known for index in indices) and len(set(indices)) == len(indices):
        return
    seen: set[int] = set()
    for number, index in enumerate(indices):
        if index not in known:
            raise IndexError(f"{place.format(number, index=index)} is not a {noun}")
        if index in seen:
            raise IndexError(f"{place.format(number, index=index)} stands twice")
        seen.add(index)
