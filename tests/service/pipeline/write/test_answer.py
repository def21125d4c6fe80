"""Arrays become answers without losing a bit."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from safetensors.numpy import load

from service.pipeline.write.answer import (
    to_json,
    write_numbers,
    write_pieces,
    write_safetensors,
    write_whole,
)
from service.questions.encode.question import cast_array
from service.shapes.answer import PIECE_BYTES, Answer, AnswerItem, Each, Records
from service.shapes.price import ARRAY_BYTES, NAMED_BYTES
from service.tables.refusals import Refused

HEAD, USAGE = {"model": "m"}, {"tokens": 5}


def item(tokens: int) -> AnswerItem:
    """One sequence with every kind of array."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((tokens, 7), dtype=np.float32)
    maps = {"2": {"3": random.random((tokens, tokens), dtype=np.float32)}}
    facts = {"length": tokens, "words": [None, 1]}
    shown = {"maps": maps}
    return AnswerItem(tokens, facts, vectors[0], vectors, {3: vectors}, {"form": "full"}, shown)


@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_pieces_join_to_what_one_dump_would_give(tokens: int) -> None:
    """Cut or whole, the JSON is the same; a large array comes in several pieces."""
    one = item(tokens)
    told = {
        **one.facts,
        "pooled": one.pooled,
        "token_vectors": one.tokens,
        "layers": {"3": one.tokens},
        "attention": {"form": "full", **one.maps},
    }
    expected = {**HEAD, "data": [told, told], "usage": USAGE}

    pieces = list(write_pieces(to_json(Answer(HEAD, [one, one], USAGE))))

    assert b"".join(pieces) == orjson.dumps(expected, option=orjson.OPT_SERIALIZE_NUMPY)
    assert max(map(len, pieces)) < 8 * PIECE_BYTES


@pytest.mark.parametrize("encoding", ["json", "base64"])
def test_a_small_answer_has_the_bytes_of_one_in_pieces(encoding: str) -> None:
    """Whatever an answer holds: arrays in any order, rows, lists in lists, and nothing."""
    array = np.random.default_rng(0).standard_normal((5, 7), dtype=np.float32)
    rows = Records({"token": np.arange(5, dtype=np.int32), "share": array[:, 0]}, named=False)
    arrays = [array, array.T, array[:, 1], array.astype(np.float16), array[:0], np.inf * array]

    def answer() -> dict[str, Any]:
        each = Each({"facts": (1, None), "array": one} for one in arrays)
        return {"each": each, "rows": rows, "none": Each([]), "plain": Each([{"a": "é"}])}

    assert write_whole(answer(), encoding) == b"".join(write_pieces(answer(), encoding))


def test_a_single_map_is_cut_too() -> None:
    """However long the row of its first axis: what is made at once and sent at once is a piece."""
    maps = np.random.default_rng(0).random((2, 1, 307, 311))

    pieces = list(write_numbers(maps))

    assert b"".join(pieces) == orjson.dumps(maps, option=orjson.OPT_SERIALIZE_NUMPY)
    assert max(map(len, pieces)) < 4 * PIECE_BYTES


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_an_array_of_nothing_is_json_too(shape: tuple[int, ...]) -> None:
    """Its lists stand there, empty."""
    nothing = np.zeros(shape, np.float32)

    assert orjson.loads(b"".join(write_numbers(nothing))) == nothing.tolist()


def test_the_safetensors_library_reads_what_is_written() -> None:
    """Names, shapes, types and bits; wide numbers before narrow ones; in pieces."""
    one, random = item(300), np.random.default_rng(1)
    odd = {"maps.half": random.random((3, 5)).astype(np.float16), "keys": np.arange(7, dtype=">i4")}
    items = [replace(one, arrays={**odd, "none": np.zeros((0, 4), np.float32)}), item(1)]

    pieces = list(write_safetensors(Answer(HEAD, items, USAGE)))
    read = load(b"".join(pieces))

    expected = {"0.pooled": one.pooled, "0.tokens": one.tokens, "0.layers.3": one.tokens}
    expected |= {f"0.{name}": array for name, array in items[0].arrays.items()}
    expected |= {"1.pooled": items[1].pooled, "1.tokens": items[1].tokens}
    expected |= {"1.layers.3": items[1].tokens}
    assert read.keys() == expected.keys()
    for name, array in expected.items():
        assert array is not None and np.array_equal(read[name], array)
        assert read[name].shape == array.shape and read[name].dtype.name == array.dtype.name
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_an_item_is_made_when_its_turn_has_come() -> None:
    """So that the loop can serve others while the pieces are joined."""
    made: list[int] = []

    def items() -> Iterator[AnswerItem]:
        for number in range(2):
            made.append(number)
            yield item(5)

    pieces = write_pieces(to_json(Answer(HEAD, items(), USAGE)))

    assert [list(made) for _ in pieces if len(made) < 2][-1] == [0]
    assert made == [0, 1]


def test_what_float16_cannot_hold_is_refused() -> None:
    """An infinity never takes a number's place."""
    with pytest.raises(Refused, match="nonfinite_output"):
        cast_array(np.array([1e6], np.float32), "float16")


def test_a_file_takes_the_memory_that_its_price_counts_for_each_array() -> None:
    """In its header and in objects, which of many small arrays are more than their numbers."""
    maps = np.zeros((300, 24, 2, 2), np.float32)
    names = [f"attention.{layer}.{head}" for layer in range(2) for head in range(12)]
    items = (AnswerItem(3, {}, arrays=dict(zip(names, each, strict=True))) for each in maps)

    tracemalloc.start()
    written = list(write_safetensors(Answer(HEAD, items, USAGE)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    count = len(names) * len(maps)
    assert sum(map(len, written)) <= maps.nbytes + count * NAMED_BYTES
    assert most <= maps.nbytes + count * (NAMED_BYTES + ARRAY_BYTES)


def test_a_file_is_begun_in_turns() -> None:
    """Its header is made a bounded piece at a time: what it names may be many arrays."""
    items = [
        AnswerItem(1, {"tokens": ["a"]}, arrays={str(n): np.zeros(1, np.float32) for n in range(9)})
    ] * 7

    pieces = list(write_safetensors(Answer(HEAD, items, USAGE)))

    assert pieces.index(next(filter(None, pieces))) >= 2 * 7 * 9


def test_a_large_item_of_a_file_is_a_turn_of_its_own() -> None:
    """As its arrays were made when it was asked for: those of sparse vectors have many words."""
    items = (
        AnswerItem(1, {}, arrays={"a": np.zeros(PIECE_BYTES // 4, np.float32)}) for _ in range(3)
    )

    pieces = list(write_safetensors(Answer(HEAD, items, USAGE)))

    assert pieces.index(next(filter(None, pieces))) >= 3 * PIECE_BYTES // 1024
