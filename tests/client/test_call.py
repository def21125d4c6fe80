"""Both clients over real HTTP, against the real replica."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from headlight_client import (
    AsyncClient,
    Client,
    HeadlightError,
    NoAnswer,
    RequestRefused,
    errors,
)
from service.pipeline.replica import Replica
from service.tables.refusals import Refused

WORDS = "all is well and the dog ate the food because it was hungry".split()
# of many lengths, in no order
TEXTS = [" ".join(WORDS[: 1 + i * 7 % 13]) + f" {i}" for i in range(41)]


LITTLE = {"max_sequences": 5, "max_request_tokens": 64}


async def test_every_text_is_answered_in_order_as_alone(
    encode: Any, alone: Any, address: str
) -> None:
    """Bit for bit; each third is looked at."""
    told = await encode(address, TEXTS)

    assert told.pooled.shape == (41, 384) and told.pooled.dtype == np.float32
    for text, row in zip(TEXTS[::3], told.pooled[::3], strict=True):
        np.testing.assert_array_equal(row, await alone(text), strict=True)
    assert [item.length > 2 for item in told.items] == [True] * 41


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machines_service(
    encode: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another machine, or knows of no service here; here nothing answers at its address."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert (await encode(address, ["All is well"])).pooled.shape == (1, 384)


async def test_a_job_of_many_requests_is_joined_in_order_and_never_more_than_asked_at_once(
    alone: Any, failing: Any, listen: Any
) -> None:
    """Split by tokens and by the service's limits, three in flight."""
    layer, seen = failing(seconds=0.02, limits=LITTLE), []
    async with listen(layer) as url, AsyncClient(url, concurrency=3) as client:
        told = await client.encode(TEXTS, progress=lambda *done: seen.append(done))

    sizes = [len(body["inputs"]) for body in layer.bodies]
    assert sum(sizes) == 41 and len(sizes) > 8 and max(sizes) <= 5
    assert layer.most == 3
    assert seen[-1] == (41, 41) and seen == sorted(seen) and len(seen) == len(sizes)
    for text, row in zip(TEXTS, told.pooled, strict=True):
        np.testing.assert_array_equal(row, await alone(text))
    assert told.usage.tokens == sum(item.length for item in told.items)


async def test_inputs_of_every_kind_are_encoded(encode: Any, alone: Any, address: str) -> None:
    """A text, a pair, token ids and embeddings, in one call."""
    vectors = np.random.default_rng(3).normal(size=(5, 384)).astype(np.float32)
    given = ["All is well", ("a dog", "a cat"), [101, 2035, 102], np.array([101, 102]), vectors]
    wire = [
        "All is well",
        {"text": "a dog", "pair": "a cat"},
        {"token_ids": [101, 2035, 102]},
        {"token_ids": [101, 102]},
        {"embeddings": vectors.tolist()},
    ]

    told = await encode(address, given)

    for item, row in zip(wire, told.pooled, strict=True):
        np.testing.assert_array_equal(row, await alone(item))
    assert [item.length for item in told.items][2:] == [3, 2, 5]


async def test_what_is_asked_for_comes_typed(encode: Any, address: str, replica: Replica) -> None:
    """Tokens, layers, maps and what made them."""
    told = await encode(
        address,
        ["All is well"],
        tokens=True,
        layers=[0, -1],
        attention={"layers": [5], "heads": [11, 2]},
        gates=[{"layer": 0, "head": 1, "scale": 0.5}],
    )

    item = told.items[0]
    assert item.tokens == ["[CLS]", "all", "is", "well", "[SEP]"]
    assert item.offsets[1] == (0, 3) and item.words == [None, 0, 1, 2, None]
    assert item.token_vectors.shape == (5, 384)
    np.testing.assert_array_equal(item.layers[6], item.token_vectors)
    assert item.layers.keys() == {0, 6}
    assert list(item.attention.maps) == [(5, 2), (5, 11)]
    np.testing.assert_allclose(item.attention.maps[5, 11].sum(axis=1), np.ones(5), atol=1e-6)
    assert told.origin == {
        name: replica.identity.preamble("float32")[name]
        for name in ("model", "weights", "numerics")
    }
    assert told.usage.tokens == 5 and told.usage.attention_bytes == 2 * 5 * 5 * 4


async def test_options_reach_the_service(encode: Any, alone: Any, address: str) -> None:
    """float16, another pooling, a text cut on the left; a gate changes the answer."""
    long = "well " * 400
    how = {"mode": "mean", "dimensions": 7, "normalize": False}

    half = await encode(address, [long, "short"], dtype="float16", pooled=how, truncate="left")

    assert half.pooled.shape == (2, 7) and half.pooled.dtype == np.float16
    assert [item.truncated for item in half.items] == [True, False]
    whole = await alone(long, pooled=how, truncate="left")
    np.testing.assert_array_equal(half.pooled[0], whole.astype(np.float16))
    assert (await encode(address, ["a"], pooled=False)).pooled is None


FAILURES = [
    (429, {"retry-after": "1"}),
    (503, {}),
    None,
    (502, {"content-type": "text/html"}),
    (504, {}),
    (404, {"content-type": "text/plain"}),
]


async def test_what_may_pass_is_tried_again_until_it_does(
    encode: Any, alone: Any, failing: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy, not ready, a broken connection, a proxy's errors and 404; Retry-After is waited for."""
    monkeypatch.setattr(errors, "FIRST_SECONDS", 0.001)  # test_errors.py holds how it grows
    layer = failing(*FAILURES)

    async with listen(layer) as url:
        told = await encode(url, ["All is well"])

    assert len(layer.came) == len(FAILURES) + 1
    assert layer.came[1] - layer.came[0] >= 1.0
    assert layer.came[-1] - layer.came[1] < 6.0
    np.testing.assert_array_equal(told.pooled[0], await alone("All is well"))


async def test_the_time_left_is_sent_with_each_try(encode: Any, failing: Any, listen: Any) -> None:
    """So that the service starts nothing that would come too late."""
    layer = failing((429, {"retry-after": "1"}))

    async with listen(layer) as url:
        await encode(url, ["All is well"], deadline=5.0)

    first, second = (int(headers["x-headlight-deadline-ms"]) for headers in layer.headers)
    assert 4000 < first <= 5000
    assert first - second >= 1000


async def test_a_deadline_is_sent_only_where_the_caller_gave_one(
    encode: Any, failing: Any, listen: Any
) -> None:
    """Patience is the client's own: a service that heard of it would judge requests by it."""
    layer = failing(Refused("overloaded"))

    async with listen(layer) as url:
        await encode(url, ["All is well"])

    assert len(layer.headers) == 2
    assert not any("x-headlight-deadline-ms" in headers for headers in layer.headers)


BUSY = "The service is busy; the request was not started."
NO_TIME = Refused("deadline_unreachable", estimate_ms=9, deadline_ms=3, sequences=0)


async def test_patience_ends_with_the_last_refusal_and_how_long_the_service_was_busy(
    encode: Any, failing: Any, listen: Any
) -> None:
    """Not with a refusal of the request, which was in order."""
    layer = failing(*[Refused("overloaded")] * 99)

    async with listen(layer) as url:
        with pytest.raises(RequestRefused) as refused:
            await encode(url, ["All is well"], {"patience_seconds": 0.7})

    told = re.fullmatch(rf"busy for 0\.\d s, in (\d+) tries: {BUSY}", refused.value.detail)
    assert told and int(told[1]) == len(layer.came) > 1
    assert (refused.value.status, refused.value.code) == (429, "overloaded")


@pytest.mark.parametrize("last", [NO_TIME, None], ids=["refused as late", "hangs"])
async def test_a_last_try_for_which_no_time_was_left_does_not_hide_that_the_service_was_busy(
    encode: Any, failing: Any, listen: Any, last: Refused | None
) -> None:
    """The rest of a deadline is too short for the service, or for its answer."""
    layer, left = failing(Refused("overloaded"), *([last] if last else [])), asyncio.Event()
    ours = layer.app

    async def hanging(scope: Any, receive: Any, send: Any) -> None:
        await (left.wait() if scope["path"] == "/v1/encode" else ours(scope, receive, send))

    layer.app = hanging
    async with listen(layer) as url:
        try:
            with pytest.raises(RequestRefused, match=rf"^429 overloaded: busy for .* s, .*{BUSY}"):
                await encode(url, ["All is well"], deadline=1.0)
        finally:
            left.set()

    assert len(layer.came) == 2


async def test_a_deadline_ends_the_tries_with_the_last_refusal(
    encode: Any, failing: Any, listen: Any
) -> None:
    """At once when the service asks for more time than is left."""
    layer = failing(*[(429, {"retry-after": "60"})] * 3)

    async with listen(layer) as url:
        with pytest.raises(RequestRefused) as refused:
            await encode(url, ["All is well"], deadline=2.0)

    assert len(layer.came) == 1
    assert refused.value.status == 429 and refused.value.code is None


async def test_a_service_that_hangs_is_left_at_the_deadline(
    encode: Any, failing: Any, listen: Any
) -> None:
    """With an error of our own."""
    layer, left = failing(), asyncio.Event()

    async def hanging(scope: Any, receive: Any, send: Any) -> None:
        await left.wait()

    layer.app = hanging
    async with listen(layer) as url:
        try:
            with pytest.raises(NoAnswer, match="the time for it is up"):
                await encode(url, ["All is well"], deadline=0.5)
        finally:
            left.set()


async def test_a_service_that_is_not_there_is_said_after_some_tries(encode: Any) -> None:
    """With the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(
        NoAnswer, match=f"no answer from http://127.0.0.1:{port}: (Connection refused|the time)"
    ):
        await encode(f"http://127.0.0.1:{port}", ["All is well"], deadline=0.5)


@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_no_other_error_is_tried_again(
    encode: Any, failing: Any, listen: Any, status: int
) -> None:
    """It would end the same way."""
    layer = failing((status, {}))

    async with listen(layer) as url:
        with pytest.raises(RequestRefused) as refused:
            await encode(url, ["All is well"])

    assert refused.value.status == status and len(layer.came) == 1


async def test_a_refusal_says_what_and_where_in_the_callers_own_counting(
    encode: Any, failing: Any, listen: Any
) -> None:
    """Also when the input was sent in a later request than the first."""
    inputs = [*TEXTS, "", "fine"]

    async with listen(failing(limits=LITTLE)) as url:
        with pytest.raises(RequestRefused) as refused:
            await encode(url, inputs)

    told = refused.value
    assert (told.status, told.code) == (422, "sequence_empty")
    assert told.errors[0].loc == ("inputs", 41, "text")
    assert len(told.request_id or "") == 32
    assert told.detail.startswith("inputs[41].text: ")
    assert str(told) == f"422 sequence_empty: {told.detail}"


async def test_numbers_that_help_come_with_a_refusal(encode: Any, address: str) -> None:
    """How long the text was, and how long it may be."""
    with pytest.raises(RequestRefused) as refused:
        await encode(address, ["well " * 400])

    assert refused.value.facts == {"length": 402, "limit": 256}


async def test_a_request_too_large_as_a_whole_is_sent_in_halves(
    alone: Any, failing: Any, served: Any, listen: Any
) -> None:
    """The maps of two texts fit, of four they do not; callers need not know how many do."""
    layer = failing()
    layer.app = served(max_answer_bytes=3 << 20).app
    texts = [f"{i} " + "well " * 60 for i in range(8)]

    async with listen(layer) as url, AsyncClient(url) as client:
        told = await client.encode(texts, attention={})

    assert [len(body["inputs"]) for body in layer.bodies] == [8, 4, 2, 2, 4, 2, 2]
    assert all(len(item.attention.maps) == 72 for item in told.items if item.attention)
    np.testing.assert_array_equal(told.pooled[5], await alone(texts[5]))  # type: ignore[index]


async def test_no_inputs_are_refused_by_the_service(encode: Any, address: str) -> None:
    """Not answered with nothing."""
    with pytest.raises(RequestRefused, match="batch_empty"):
        await encode(address, [])


async def test_a_key_goes_as_a_bearer_token(encode: Any, failing: Any, listen: Any) -> None:
    """And nowhere without one."""
    layer = failing()

    async with listen(layer) as url:
        await encode(url, ["a"], {"key": "secret-1"})
        await encode(url, ["a"])

    assert layer.headers[0]["authorization"] == "Bearer secret-1"
    assert "authorization" not in layer.headers[1]


async def test_vectors_of_another_space_than_expected_are_refused(
    address: str, client: httpx.AsyncClient
) -> None:
    """Each request says which one; GET /info is answered whatever it is."""
    space = (await client.get("/info")).json()["space"]

    async with AsyncClient(address, expect=space) as ours:
        assert len((await ours.encode(["a"])).items) == 1
    async with AsyncClient(address, expect="s1-0123456789abcdef") as theirs:
        assert (await theirs.info())["space"] == space
        with pytest.raises(RequestRefused, match=f"this model gives {space}") as refused:
            await theirs.encode(["a"])

    assert (refused.value.status, refused.value.code) == (409, "space_changed")
    with pytest.raises(ValueError, match="is not the name of a space"):
        Client(expect="s1\n")


async def test_any_request_may_be_asked_for_its_json(
    address: str, failing: Any, listen: Any, client: Any
) -> None:
    """With a body a POST, tried again as others are."""
    body = {"inputs": ["All is well"], "pooled": {"dimensions": 7}}

    async with listen(failing((503, {}))) as url, AsyncClient(url) as ours:
        told = await ours.ask("/v1/encode", body)
        info = await ours.ask("/info")

    expected = (await client.post("/v1/encode", json=body)).json()
    assert told["data"] == expected["data"] and info["model"] == "all-MiniLM-L6-v2"

    def ask_nowhere() -> None:
        with Client(address) as waiting:
            waiting.ask("/nowhere")

    with pytest.raises(RequestRefused, match="404 not_found"):
        await asyncio.to_thread(ask_nowhere)


@pytest.mark.parametrize("key", ["", "two words", "line\nfeed", "caf\u00e9"])
async def test_a_key_that_no_header_can_carry_is_refused_without_repeating_it(key: str) -> None:
    """Here, not by a library whose message would hold it."""
    for client in (Client, AsyncClient):
        with pytest.raises(ValueError) as refused:
            client(key=key)
        assert not key or key not in str(refused.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:b", ""])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="is not an address"):
        Client(url)


@pytest.mark.parametrize(
    ("inputs", "options", "line"),
    [
        ("one text", {}, "inputs must be a list"),
        (["a", 7], {}, "input 1: <class 'int'> is not a text"),
        ([np.zeros((2, 3, 4))], {}, "input 0"),
        ([["a", "b", "c"]], {}, "input 0"),
        (["a", {"embeddings": [[float("nan")]]}], {}, "input 1: "),
        (["a"], {"pooling": "mean"}, "unknown option: pooling"),
    ],
    ids=["a text", "a number", "three axes", "three texts", "no number", "unknown option"],
)
async def test_what_is_no_input_or_option_is_refused_here(
    encode: Any, address: str, inputs: Any, options: Any, line: str
) -> None:
    """A text alone would otherwise be taken for a list of letters."""
    with pytest.raises(TypeError, match=line):
        await encode(address, inputs, **options)


async def test_another_program_at_the_address_is_noticed(encode: Any, listen: Any) -> None:
    """Whatever it answers."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>hello</html>"})

    async with listen(hello) as url:
        with pytest.raises(NoAnswer, match="is not a Headlight service"):
            await encode(url, ["a"])


async def test_a_stream_takes_inputs_as_it_goes_and_may_be_left(failing: Any, listen: Any) -> None:
    """Of an endless iterator too; what is in flight is given up."""
    taken = []

    def endless() -> Iterator[str]:
        while True:
            taken.append("well " * 50)
            yield taken[-1]

    layer = failing(limits=LITTLE)

    async with listen(layer) as url, AsyncClient(url, concurrency=3) as client:
        stream = client.stream(endless())
        part = await anext(stream)
        await stream.aclose()

    assert part.pooled is not None and len(part.items) == 1
    assert len(taken) <= 5  # three requests of one text, the next, and one that filled it


async def test_a_waiting_stream_may_be_left_too(failing: Any, listen: Any) -> None:
    """The client serves the next call as before."""

    def leave(url: str) -> tuple[int, int]:
        with Client(url) as client:
            for part in client.stream(["a"] * 100):
                first = len(part.items)
                break
            return first, len(client.encode(["a", "b"]).items)

    async with listen(failing(limits=LITTLE)) as url:
        first, second = await asyncio.to_thread(leave, url)

    assert 0 < first < 100 and second == 2


async def test_threads_share_a_client(address: str, alone: Any) -> None:
    """Each gets its own answers."""
    with Client(address) as client:
        told = await asyncio.gather(
            *(asyncio.to_thread(client.encode, [text]) for text in TEXTS[:7])
        )

    for text, one in zip(TEXTS[:7], told, strict=True):
        np.testing.assert_array_equal(one.pooled[0], await alone(text))  # type: ignore[index]


async def test_a_closed_client_is_closed_once(address: str) -> None:
    """And its thread is gone."""
    client = Client(address)
    client.close()
    client.close()

    assert not any(thread.name == "headlight client" for thread in threading.enumerate())


async def test_a_closed_client_says_so(address: str) -> None:
    """Of either kind, whatever it is to do; no coroutine is left without an awaiter."""
    client, awaited = Client(address), AsyncClient(address)
    client.close()
    await awaited.close()

    for call in (lambda: client.encode(TEXTS), client.info, lambda: next(client.stream(TEXTS))):
        with pytest.raises(RuntimeError, match="client (is|has been) closed"):
            call()
    with pytest.raises(RuntimeError, match="client (is|has been) closed"):
        await awaited.info()


async def test_every_failure_has_one_ancestor() -> None:
    """So that a caller can catch them all."""
    assert issubclass(NoAnswer, HeadlightError) and issubclass(RequestRefused, HeadlightError)
