"""An answer of attention by words -> which words of a text look at which."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headlight_client import Item
from service.commands.bulk.lines import Texts

PAIRS = 3  # strongest of a text; as many keys of each row hold them


class Pair(NamedTuple):
    """A word, one that it looks at, and how much of its attention that gets."""

    query: str
    key: str
    value: float


def attention(layer: int, head: int) -> Mapping[str, Any]:
    """What to ask of a text that has a word."""
    heads = {str(layer): [head]}
    return {"heads": heads, "form": "top", "k": PAIRS, "level": "word", "specials": "drop"}


def strongest(item: Item, texts: Texts) -> list[Pair]:
    """The strongest pairs of words, strongest first, equal ones in the order of the text.

    Args:
        item: the answer to what `attention` asks.
    """
    if item.attention is None:
        raise RuntimeError("an answer without attention: this is a bug")
    (edges,) = item.attention.edges.values()
    spans = item.attention.facts.get("spans") or [(i, i + 1) for i in range(len(item.tokens or ()))]
    axis = item.attention.facts.get("axis", range(len(spans)))
    pairs = [
        (float(value), query, int(key))
        for query, keys, values in zip(axis, edges.keys, edges.values, strict=True)
        for key, value in zip(keys, values, strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[0])
    names = [_word(item, texts, *span) for span in spans]
    return [Pair(names[query], names[key], value) for value, query, key in pairs[:PAIRS]]


def _word(item: Item, texts: Texts, first: int, last: int) -> str:
    """The letters that some tokens stand for; of a prompt, which is no part of the text, those."""
    if item.tokens is None or item.offsets is None:
        raise RuntimeError("an answer of attention without tokens: this is a bug")
    segment = item.segments[first] if item.segments else 0
    text = texts if isinstance(texts, str) else texts[segment]
    start, end = item.offsets[first][0], item.offsets[last - 1][1]
    return text[start:end] or " ".join(token or "" for token in item.tokens[first:last])
