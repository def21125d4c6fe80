"""Arrays become answers without losing a bit."""

from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from service.answer import PIECE_BYTES, Item, NotFinite, as_json, cast

HEAD, USAGE = {"model": "m"}, {"tokens": 5}


def item(tokens: int) -> Item:
    """One sequence with every kind of array."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((tokens, 7), dtype=np.float32)
    maps = {"2": {"3": random.random((tokens, tokens), dtype=np.float32)}}
    facts = {"length": tokens, "words": [None, 1]}
    shown = {"maps": maps}
    return Item(facts, vectors[0], vectors, {3: vectors}, {"form": "full"}, shown)


@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_pieces_join_to_what_one_dump_would_give(tokens: int) -> None:
    """Cut or whole, the JSON is the same; a large array comes in several pieces."""
    one = item(tokens)
    tree = {
        **one.facts,
        "pooled": one.pooled,
        "token_vectors": one.tokens,
        "layers": {"3": one.tokens},
        "attention": {"form": "full", **one.shown},
    }
    whole = {**HEAD, "data": [tree, tree], "usage": USAGE}

    pieces = list(as_json(HEAD, [one, one], USAGE, "json"))

    assert b"".join(pieces) == orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    assert max(map(len, pieces)) < 8 * PIECE_BYTES


def test_an_item_is_made_when_its_turn_has_come() -> None:
    """So that whoever joins the pieces can let others in between."""
    made: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(2):
            made.append(number)
            yield item(5)

    pieces = as_json(HEAD, items(), USAGE, "json")

    assert [list(made) for _ in pieces if len(made) < 2][-1] == [0]
    assert made == [0, 1]


def test_what_float16_cannot_hold_is_refused() -> None:
    """An infinity never takes a number's place."""
    with pytest.raises(NotFinite):
        cast(np.array([1e6], np.float32), "float16")
