"""Resolves the layers, heads and spans that a request names to numbers counted from 0."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from model.maps.choices import MEAN
from service.shapes.inputs import Attention, Gate, Patch, Sweep
from service.shapes.side import Placer
from service.tables.refusals import Refused

Heads = Mapping[int, tuple[int, ...]]  # heads by layer

LAYER = re.compile("0|-?[1-9][0-9]{0,8}", re.ASCII)  # a layer's number as a key of a JSON object


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a text.

    Its tokens extend beyond it if a token crosses one of its edges, and not to its edges if it
    begins or ends with spaces, or the text was truncated.
    """

    characters: tuple[int, int]  # range of characters in the request, [start, end)
    tokens: tuple[int, int]  # range of the tokens with a character in it, [first, end)
    extent: tuple[int, int]  # range of characters of these tokens, [start, end)

    def facts(self) -> dict[str, Any]:
        """Return the fields by name, as the answer shows them."""
        return {"characters": self.characters, "tokens": self.tokens, "extent": self.extent}


def chosen_hidden_states(indices: Sequence[int], layers: int) -> frozenset[int]:
    """Return the hidden states that a request names: 0 = embeddings, i = after i layers, -1 = last.

    Args:
        layers: how many the model has.

    Raises:
        IndexError: one does not exist, or is named twice; the message says which.
    """
    return frozenset(_count_from_last(indices, layers + 1, "entry {}", "hidden state"))


def chosen_heads(
    attention: Attention | Sweep, layers: int, heads: int
) -> dict[int, tuple[int, ...]]:
    """Return the heads that a request names, by layer, in order; layer -1 is the last.

    Args:
        layers, heads: how many layers the model has, and heads in each.

    Raises:
        IndexError: one does not exist, or is named twice; the message says which.
    """
    numbers: Sequence[int] = range(layers)
    if attention.layers != "all":
        numbers = _count_from_last(attention.layers, layers, "layers[{}]", "layer")
    if isinstance(attention.heads, Mapping):
        keys = list(map(_parse_layer, attention.heads))
        keyed = _count_from_last(keys, layers, "layer {index} of heads", "layer")
        if attention.layers != "all" and set(keyed) != set(numbers):
            raise IndexError(f"layers has {sorted(numbers)}, but heads names {sorted(keyed)}")
        by_layer = dict(zip(keyed, attention.heads.values(), strict=True))
    else:
        every = "all" if attention.heads == MEAN else attention.heads
        by_layer = dict.fromkeys(numbers, every)
    resolved = {layer: _resolve_heads(by_layer[layer], heads) for layer in sorted(by_layer)}
    if not resolved or not all(resolved.values()):
        raise IndexError(f"no head is named; this model has {layers} layers of {heads} heads")
    return resolved


def resolve_gates(gates: Sequence[Gate], layers: int, heads: int) -> dict[int, dict[int, float]]:
    """Return the factors of a request's gates, by layer and head.

    Raises:
        IndexError: a head does not exist, or is named twice; the message says which.
    """
    places = [gate.place for gate in gates]
    _check_heads(places, layers, heads, "gates")
    scales: dict[int, dict[int, float]] = {}
    for (layer, head), gate in zip(places, gates, strict=True):
        scales.setdefault(layer, {})[head] = gate.scale
    return scales


def resolve_patches(patches: Sequence[Patch], layers: int, heads: int) -> dict[int, dict[int, int]]:
    """Return the number of the input whose values each patched head takes, by layer and head.

    Raises:
        IndexError: a head does not exist, or is named twice; the message says which.
    """
    places = [patch.place for patch in patches]
    _check_heads(places, layers, heads, "patch")
    sources: dict[int, dict[int, int]] = {}
    for (layer, head), patch in zip(places, patches, strict=True):
        sources.setdefault(layer, {})[head] = patch.source
    return sources


def _check_heads(pairs: Sequence[tuple[int, int]], layers: int, heads: int, field: str) -> None:
    """Raise IndexError for a pair of layer and head that does not exist, or is named twice.

    Args:
        field: name of the request's list of pairs, for the message.
    """
    seen: set[tuple[int, int]] = set()
    for index, (layer, head) in enumerate(pairs):
        _sort_indices([layer], layers, f"{field}[{index}].layer", "layer")
        _sort_indices([head], heads, f"{field}[{index}].head", "head")
        if (layer, head) in seen:
            raise IndexError(f"{field}[{index}] repeats the head of an earlier one")
        seen.add((layer, head))


def locate_spans(
    spans: Sequence[Sequence[int]],
    text: str,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    at: Placer,
) -> list[Span]:
    """Find the tokens of each span of a text.

    Args:
        spans: ranges of characters, [start, end).
        offsets: range of characters of each token, [start, end), in ascending order.
        special: whether each token is special; no span has such a token.
        at: returns where a field of the text stands in the request.

    Raises:
        Refused: a span ends beyond the text, or has no token in it; `loc` says which.
    """
    tokens = [
        (token, start, end)
        for token, ((start, end), is_special) in enumerate(zip(offsets, special, strict=True))
        if end > start and not is_special
    ]
    starts, ends = [start for _, start, _ in tokens], [end for _, _, end in tokens]
    located = []
    for number, (first, last) in enumerate(spans):
        loc = at("spans", number)
        if last > len(text):
            detail = f"the span ends after the text, which has {len(text):,} characters"
            raise Refused.at("out_of_range", *loc, detail=detail)
        opening, closing = bisect_right(ends, first), bisect_left(starts, last)
        if opening >= closing:
            raise Refused.at("span_empty", *loc, detail="no token of the text is in it")
        (first_token, start, _), (last_token, _, stop) = tokens[opening], tokens[closing - 1]
        located.append(Span((first, last), (first_token, last_token + 1), (start, stop)))
    return located


def _resolve_heads(named: Sequence[int] | Literal["all"], heads: int) -> tuple[int, ...]:
    """Resolve the heads that are named of one layer, in order."""
    if named == "all":
        return tuple(range(heads))
    return tuple(_sort_indices(named, heads, "heads[{}]", "head"))


def _parse_layer(key: str) -> int:
    """Parse a key of a JSON object that must be the number of a layer."""
    if not LAYER.fullmatch(key):
        raise IndexError('each key of heads is the number of a layer, such as "5"')
    return int(key)


def _count_from_last(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """Resolve negative indices from the last of `count`; check all as `_check_indices` does."""
    known = f"{noun} of this model: {noun}s are 0 to {count - 1}, or -1 to -{count} from the last"
    _check_indices(indices, range(-count, count), place, known)
    resolved = [index % count for index in indices]
    _check_indices(resolved, range(count), place, known)
    return resolved


def _sort_indices(indices: Sequence[int], count: int, place: str, noun: str) -> list[int]:
    """Return indices from 0 to below `count` in order, checked as `_check_indices` does."""
    known = f"{noun} of this model: {noun}s are 0 to {count - 1}"
    _check_indices(indices, range(count), place, known)
    return sorted(indices)


def _check_indices(indices: Sequence[int], known: range, place: str, noun: str) -> None:
    """Raise IndexError for an index that does not exist, or is named twice.

    Args:
        known: all indices that exist.
        place: format of where an index stands, with its position and `index` to fill in.
        noun: what an index is the number of, for the message.
    """
    if all(index in known for index in indices) and len(set(indices)) == len(indices):
        return
    seen: set[int] = set()
    for number, index in enumerate(indices):
        if index not in known:
            raise IndexError(f"{place.format(number, index=index)} is not a {noun}")
        if index in seen:
            kind = noun.partition(" of ")[0]
            raise IndexError(f"{place.format(number, index=index)} repeats an earlier {kind}")
        seen.add(index)
