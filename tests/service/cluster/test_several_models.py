"""Several models at one address: who answers what, asked as clients ask. Ray is not needed."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from service.cluster.choose_model import MODEL_HEADER
from tests.several_models import (
    EMBEDDER,
    FIRST,
    LARGE,
    RERANKER,
    Address,
    texts,
)

NAMES = (FIRST, EMBEDDER, RERANKER)
ENCODE = {"inputs": ["All is well"]}
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["All is well"]}]}
RERANK = {"query": "Is it well?", "documents": ["All is well"]}


WAYS: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "its body": ("/v1/encode", ENCODE | {"model": EMBEDDER}, {}, EMBEDDER),
    "a body in capitals": ("/v1/encode", ENCODE | {"model": EMBEDDER.upper()}, {}, EMBEDDER),
    "latest": ("/v1/encode", ENCODE | {"model": f"{EMBEDDER}:latest"}, {}, EMBEDDER),
    "a header": ("/embed", {"inputs": "All is well"}, {MODEL_HEADER: EMBEDDER}, EMBEDDER),
    "a path": (f"/v2/models/{EMBEDDER}/infer", INFER, {}, EMBEDDER),
    "a prefix": (f"/{EMBEDDER}/embed", {"inputs": "All is well"}, {}, EMBEDDER),
    "a task": ("/v1/rerank", RERANK, {}, RERANKER),
    "nothing": ("/v1/encode", ENCODE, {}, FIRST),
    "the first": ("/v1/encode", ENCODE | {"model": FIRST}, {}, FIRST),
}


@pytest.mark.parametrize(("path", "body", "headers", "name"), WAYS.values(), ids=WAYS.keys())
async def test_a_request_is_answered_by_the_model_that_it_names(
    address: Address, path: str, body: dict[str, Any], headers: dict[str, str], name: str
) -> None:
    """By its body, a header, the path, a prefix or the task; the answer carries its weights."""
    await asyncio.to_thread(check_named, address, path, body, headers, name)


def check_named(
    address: Address, path: str, body: dict[str, Any], headers: dict[str, str], name: str
) -> None:
    """Hold one answer against the model that was named."""
    answer = httpx.post(address.url + path, json=body, headers=headers, timeout=60)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-headlight-weights"] == address.weights()[name]
    told = answer.json()
    if "model" in told:  # a list has none
        assert told["model"] == name


@pytest.mark.parametrize("size", [0, LARGE], ids=["", "1.5 MiB"])
async def test_an_unknown_name_is_refused_with_all_names(address: Address, size: int) -> None:
    """Also where only the replica that has read the whole body knows it."""
    await asyncio.to_thread(check_unknown, address, size)


def check_unknown(address: Address, size: int) -> None:
    """Hold the refusal of a name that no model has."""
    body = {"inputs": texts(size), "model": "nope"}

    answer = httpx.post(f"{address.url}/v1/encode", json=body, timeout=60)

    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    assert all(name in answer.text for name in NAMES)


@pytest.mark.parametrize("path", ["/embed", "/v1/encode", "/v1/models"])
@pytest.mark.parametrize("size", [0, LARGE], ids=["", "1.5 MiB"])
async def test_an_unknown_name_in_a_header_is_refused_with_all_names(
    address: Address, path: str, size: int
) -> None:
    """On GETs too, and where a long body names none; twice, none is taken."""
    await asyncio.to_thread(check_unknown_header, address, path, size)


def check_unknown_header(address: Address, path: str, size: int) -> None:
    """Hold the refusal of a header that names no model, or two."""
    method, body = ("GET", None) if path == "/v1/models" else ("POST", {"inputs": texts(size)})
    unknown, twice = [(MODEL_HEADER, "nope")], [(MODEL_HEADER, FIRST), (MODEL_HEADER, EMBEDDER)]

    answers = [
        httpx.request(method, address.url + path, json=body, headers=headers, timeout=60)
        for headers in (unknown, twice)
    ]

    assert [answer.status_code for answer in answers] == [404, 400]
    assert all(name in answers[0].text for name in NAMES)


@pytest.mark.parametrize("path", ["/embed", "/tokenize"])
@pytest.mark.parametrize("size", [0, LARGE], ids=["", "1.5 MiB"])
async def test_a_route_that_ignores_the_model_is_led_by_it_all_the_same(
    address: Address, size: int, path: str
) -> None:
    """Alike for every size: HAProxy cannot know which routes do."""
    body = {"inputs": texts(size), "model": EMBEDDER}

    await asyncio.to_thread(check_named, address, path, body, {}, EMBEDDER)


@pytest.mark.parametrize("size", [0, LARGE], ids=["", "1.5 MiB"])
@pytest.mark.parametrize("named", [FIRST, RERANKER, "nope"])
async def test_a_path_and_a_body_that_name_two_models_are_refused(
    address: Address, named: str, size: int
) -> None:
    """Whether HAProxy has read the body's or the path's; that of TEI's routes is the body's."""
    await asyncio.to_thread(check_two_names, address, named, size)


def check_two_names(address: Address, named: str, size: int) -> None:
    """Hold the refusal of a body of the Open Inference Protocol that names another model."""
    path = f"{address.url}/v2/models/{EMBEDDER}/infer"
    sent = json.dumps(INFER)[:-1] + " " * size + f', "model": "{named}"}}'

    answer = httpx.post(path, content=sent, timeout=60)

    assert (answer.status_code, "model_not_found" in answer.text) == (404, True), answer.text


async def test_a_body_whose_model_comes_last_is_sent_on_once(address: Address) -> None:
    """To the second model, under the client's id; counted there, and not where it came first."""
    await asyncio.to_thread(check_sent_on, address)


def check_sent_on(address: Address) -> None:
    """Hold the answer to a body beyond HAProxy's buffer, and what was counted."""
    body = json.dumps({"inputs": texts(LARGE), "model": EMBEDDER}).encode()
    headers = {"content-type": "application/json", "x-request-id": "of-the-client-1"}
    before = address.counted()

    answer = httpx.post(f"{address.url}/v1/encode", content=body, headers=headers, timeout=60)

    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == EMBEDDER
    assert answer.headers.get_list("x-headlight-weights") == [address.weights()[EMBEDDER]]
    assert answer.headers.get_list("x-request-id") == ["of-the-client-1"]
    counted = {of: count for of, count in (address.counted() - before).items() if "encode" in of[1]}
    assert counted == {(answer.headers["x-headlight-replica"], "/v1/encode", "200"): 1}
