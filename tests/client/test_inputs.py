"""How inputs become requests."""

from typing import Any

import numpy as np
import orjson
import pytest

from headlight_client.inputs import Limits, Request, make_requests, read_limits

WIDE = Limits(100, 1000, 100_000, 64, 30.0, 72)


def sizes(inputs: Any, most: Limits, **options: Any) -> list[int]:
    """How many inputs each request holds."""
    return [len(request) for request in make_requests(inputs, most, options)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (WIDE, [10]),
        (Limits(3, 1000, 100_000, 64, 30.0, 72), [3, 3, 3, 1]),
        (Limits(100, 70, 100_000, 64, 30.0, 72), [2, 2, 2, 2, 2]),
        (Limits(100, 1000, 500, 64, 30.0, 72), [4, 4, 2]),
        (Limits(100, 70, 100_000, 5, 30.0, 72), [10]),
        (Limits(100, 1, 100_000, 64, 30.0, 72), [1] * 10),
    ],
    ids=["all fit", "sequences", "tokens", "bytes", "short sequences", "none fits"],
)
def test_a_request_is_full_by_whichever_limit_comes_first(
    most: Limits, expected: list[int]
) -> None:
    """Ten texts of 120 characters: about 32 tokens, or what a sequence may hold; 122 bytes."""
    assert sizes(["x" * 120] * 10, most) == expected


def test_every_input_is_in_one_request_in_order() -> None:
    """Each request knows the caller's number of its first input."""
    texts = [f"{i} " + "x" * (i * 37 % 211) for i in range(97)]
    made = list(make_requests(texts, Limits(7, 90, 600, 64, 30.0, 72), {}))

    assert [text for request in made for text in map(orjson.loads, request.items)] == texts
    assert [request.first for request in made] == [
        sum(map(len, made[:index])) for index in range(len(made))
    ]


def test_halves_hold_the_same_inputs() -> None:
    """Counted on."""
    left, right = Request(b"{", 10, [b"1", b"2", b"3"]).split_in_half()

    assert (left, right) == (Request(b"{", 10, [b"1"]), Request(b"{", 11, [b"2", b"3"]))


def test_no_inputs_make_one_empty_request() -> None:
    """Which the service refuses in its own words."""
    assert [request.body for request in make_requests([], WIDE, {})] == [b'{"inputs":[]}']


def test_a_body_holds_the_options_and_the_inputs() -> None:
    """numpy's numbers too."""
    inputs = ["a", ("b", "c"), np.array([1, 2]), (np.int64(3),)]
    (made,) = make_requests(inputs, WIDE, {"layers": [np.int64(3)], "truncate": "left"})

    assert orjson.loads(made.body) == {
        "layers": [3],
        "truncate": "left",
        "inputs": ["a", {"text": "b", "pair": "c"}, {"token_ids": [1, 2]}, {"token_ids": [3]}],
    }


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_embeddings_go_as_base64_in_the_format_the_service_reads(dtype: str) -> None:
    """Little-endian, in row order whatever the array's; float64 rounded to float32."""
    vectors = np.arange(6, dtype=dtype).reshape(3, 2).T

    (made,) = make_requests([vectors, {"embeddings": vectors}], WIDE, {})
    given, same = (orjson.loads(item)["embeddings"] for item in made.items)

    assert given == same and given["shape"] == [2, 3]
    assert given["dtype"] == ("float16" if dtype == "float16" else "float32")
    assert len(given["data"]) == (16 if dtype == "float16" else 32)


def test_arrays_and_ids_count_their_own_tokens() -> None:
    """Not their bytes."""
    most = Limits(100, 50, 10_000_000, 512, 30.0, 72)

    assert sizes([np.zeros((20, 384))] * 5, most) == [2, 2, 1]
    assert sizes([list(range(20))] * 5, most) == [2, 2, 1]
    assert sizes([{"embeddings": [[1.0]] * 20}] * 5, most) == [2, 2, 1]


def test_the_services_limits_bound_a_request_and_a_few_batches_do_too() -> None:
    """A slow replica is asked for little at once."""
    told = {"max_sequences": 7, "max_body_bytes": 2 << 20, "deadline_seconds": 30.0}

    def tokens(batch: int) -> int:
        said = {**told, "max_request_tokens": 65_536, "batch_tokens": batch}
        return read_limits({"limits": said, "max_tokens": 256, "layers": 6, "heads": 12}).tokens

    assert tokens(512) == 4096 and tokens(16_384) == 65_536


def test_a_sweep_takes_fewer_inputs_at_once() -> None:
    """Each comes with a copy for every head, which begins in its layer."""
    most = Limits(100, 72 * 32, 100_000, 64, 30.0, 72)

    assert sizes(["x" * 120] * 10, most) == [10]
    assert sizes(["x" * 120] * 10, most, sweep="heads") == [2, 2, 2, 2, 2]
    assert most.limits_of_sweep().limits_of_sweep().tokens == 1
