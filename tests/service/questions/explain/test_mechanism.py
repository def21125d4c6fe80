"""POST /v1/attend: the bare mechanism over HTTP."""

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from model.lessons import attention_probabilities, mix_values, score_keys
from service.pipeline import worker
from service.pipeline.replica import Replica
from service.questions.explain.mechanism import mixed_arrays, read_mixture
from tests.replica_internals import occupied

HEADS, QUERIES, KEYS, D_K, D_V = 2, 3, 5, 7, 11
ROUTE = "/v1/attend"
WELL = {"scores": [[0.6, 0.4]], "probabilities": True, "value": [[10.0, 0.0], [0.0, 10.0]]}


def numbers(*shape: int, seed: int) -> Any:
    """Normally distributed numbers, the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape).tolist()


def parts() -> dict[str, Any]:
    """A request with a different prime on every axis."""
    return {
        "query": numbers(QUERIES, HEADS * D_K, seed=1),
        "key": numbers(KEYS, HEADS * D_K, seed=2),
        "value": numbers(KEYS, HEADS * D_V, seed=3),
        "heads": HEADS,
    }


async def answered(client: httpx.AsyncClient, body: Any) -> dict[str, Any]:
    """The arrays of an answer that must be one."""
    answer = await client.post(ROUTE, json=body)
    assert answer.status_code == 200, answer.text
    return {name: np.array(array) for name, array in answer.json().items()}


def by_hand(asked: dict[str, Any], bias: Any = 0.0) -> list[Any]:
    """Each head's map, by the formula."""
    query, key = (np.array(asked[name]) for name in ("query", "key"))
    maps = []
    for i in range(HEADS):
        channels = slice(i * D_K, (i + 1) * D_K)
        scores = query[:, channels] @ key[:, channels].T / D_K**0.5
        shares = np.exp(scores + (bias[i] if np.ndim(bias) == 3 else bias))
        maps.append(shares / shares.sum(-1, keepdims=True))
    return maps


async def test_the_width_is_split_evenly_among_the_heads(client: httpx.AsyncClient) -> None:
    """softmax(Q_i K_i^T / sqrt(d/h)) V_i for each head, then side by side; d_v may differ."""
    answer = await answered(client, parts())

    maps, value = by_hand(parts()), np.split(np.array(parts()["value"]), HEADS, axis=1)
    np.testing.assert_allclose(answer["probabilities"], maps, rtol=0, atol=1e-15)
    mixed = [p @ v for p, v in zip(maps, value, strict=True)]
    np.testing.assert_allclose(answer["heads"], mixed, rtol=0, atol=1e-14)
    assert np.array_equal(answer["concat"], np.concatenate(answer["heads"], axis=1))


async def test_one_head_is_the_default(client: httpx.AsyncClient) -> None:
    """Then all of the width is one head's."""
    one = {name: part for name, part in parts().items() if name != "heads"}

    answer = await answered(client, one)

    assert answer["heads"].shape == (1, QUERIES, HEADS * D_V)
    assert np.array_equal(answer["heads"][0], answer["concat"])


async def test_what_a_mask_hides_has_no_share_and_an_empty_row_is_zero(
    client: httpx.AsyncClient,
) -> None:
    """True may attend; no row is ever NaN."""
    mask = [[True, False, True, True, False], [False] * KEYS, [True] * KEYS]

    answer = await answered(client, {**parts(), "mask": mask})

    seen = np.array([mask] * HEADS)
    assert np.array_equal(seen, answer["probabilities"] > 0)
    assert (answer["heads"][:, 1] == 0).all() and (answer["concat"][1] == 0).all()
    np.testing.assert_allclose(answer["probabilities"].sum(-1), [[1, 0, 1]] * HEADS, atol=1e-15)


async def test_a_bias_is_added_to_the_scores_of_all_heads_or_of_each(
    client: httpx.AsyncClient,
) -> None:
    """(query, key) for every head alike, or (heads, query, key)."""
    for shape in ((QUERIES, KEYS), (HEADS, QUERIES, KEYS)):
        bias = numbers(*shape, seed=4)

        answer = await answered(client, {**parts(), "bias": bias})

        expected = by_hand(parts(), np.array(bias))
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-15)


async def test_scores_go_through_a_softmax(client: httpx.AsyncClient) -> None:
    """One map for all heads, or one for each."""
    value = np.array(parts()["value"])
    for shape, more in (((QUERIES, KEYS), {"heads": HEADS}), ((HEADS, QUERIES, KEYS), {})):
        scores = numbers(*shape, seed=5)

        answer = await answered(client, {"scores": scores, "value": value.tolist(), **more})

        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        expected = np.broadcast_to(shares, (HEADS, QUERIES, KEYS))
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-15)
        assert answer["heads"].shape == (HEADS, QUERIES, D_V)


async def test_probabilities_are_used_as_they_are(client: httpx.AsyncClient) -> None:
    """To the bit: they come back as they went."""
    given = [[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]
    body = {"scores": given, "probabilities": True, "value": numbers(3, 2, seed=6)}

    answer = await answered(client, body)

    assert answer["probabilities"].tolist() == [given]


async def test_the_mechanism_is_the_models_own(client: httpx.AsyncClient) -> None:
    """model/lessons.py with the same numbers gives the same bits."""
    asked = parts()
    query, key, value = (
        torch.tensor(asked[name], dtype=torch.float64).unflatten(1, (HEADS, -1)).transpose(0, 1)
        for name in ("query", "key", "value")
    )

    answer = await answered(client, asked)

    probabilities = attention_probabilities(score_keys(query, key))
    assert np.array_equal(answer["probabilities"], probabilities.numpy())
    assert np.array_equal(answer["heads"], mix_values(probabilities, value).numpy())


def changed(**fields: Any) -> bytes:
    """The request with some fields replaced, or removed where None."""
    body = {**parts(), **fields}
    return json.dumps({name: part for name, part in body.items() if part is not None}).encode()


def shares(*rows: list[float]) -> bytes:
    """Probabilities of two keys."""
    return json.dumps({**WELL, "scores": list(rows)}).encode()


BAD = {
    "not JSON": (b"{", 400, "invalid_json", []),
    "a list": (b"[]", 422, "invalid_type", []),
    "nothing": (b"{}", 422, "missing_field", ["query"]),
    "no value": (changed(value=None), 422, "missing_field", ["value"]),
    "no key": (changed(key=None), 422, "missing_field", ["key"]),
    "scores and query": (changed(scores=[[1.0]], key=None), 422, "unknown_field", ["query"]),
    "a mask of probabilities": (
        json.dumps({**WELL, "mask": [[True, True]]}).encode(),
        422,
        "unknown_field",
        ["mask"],
    ),
    "unknown field": (changed(vlaue=1), 422, "unknown_field", []),
    "text": (changed(query=[["a"]]), 422, "invalid_type", ["query", 0, 0]),
    "a row that is none": (changed(query=[1.0]), 422, "invalid_type", ["query", 0]),
    "NaN": (changed(query=[[float("nan")] * 14]), 422, "non_finite", ["query", 0, 0]),
    "1e999": (b'{"scores":[[1e999]],"value":[[1]]}', 422, "non_finite", ["scores", 0, 0]),
    "an infinite bias": (
        changed(bias=[[-float("inf")] * KEYS] * QUERIES),
        422,
        "non_finite",
        ["bias", 0, 0],
    ),
    "a mask of numbers": (
        changed(mask=[[1] * KEYS] * QUERIES),
        422,
        "invalid_type",
        ["mask", 0, 0],
    ),
    "0 heads": (changed(heads=0), 422, "out_of_range", ["heads"]),
    "heads that do not divide": (changed(heads=3), 422, "shape_mismatch", ["heads"]),
    "no query": (changed(query=[]), 422, "sequence_empty", ["query"]),
    "no width": (changed(value=[[]] * KEYS), 422, "sequence_empty", ["value"]),
    "ragged": (changed(key=[[1.0], [1.0, 2.0]]), 422, "shape_mismatch", ["key"]),
    "keys of another width": (changed(key=[[1.0]] * KEYS), 422, "shape_mismatch", ["key"]),
    "a value too few": (changed(value=[[1.0, 2.0]]), 422, "shape_mismatch", ["value"]),
    "a narrow mask": (changed(mask=[[True]] * QUERIES), 422, "shape_mismatch", ["mask"]),
    "a bias of one head": (
        changed(bias=[[[0.0] * KEYS] * QUERIES]),
        422,
        "shape_mismatch",
        ["bias"],
    ),
    "scores of other keys": (shares([0.5, 0.25, 0.25]), 422, "shape_mismatch", ["scores"]),
    "shares beyond 1": (shares([0.6, 0.4], [0.6, 0.400002]), 422, "out_of_range", ["scores"]),
    "a share below 0": (shares([1.5, -0.5]), 422, "out_of_range", ["scores"]),
    "shares past any sum": (shares([1e308, 1e308]), 422, "out_of_range", ["scores"]),
}


@pytest.mark.parametrize(("body", "status", "code", "loc"), BAD.values(), ids=BAD.keys())
async def test_what_does_not_fit_is_refused_and_said_where(
    client: httpx.AsyncClient, body: bytes, status: int, code: str, loc: list[Any]
) -> None:
    """Before anything is computed."""
    answer = await client.post(ROUTE, content=body)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert problem["errors"][0]["loc"] == loc


async def test_scores_too_large_for_a_float_are_refused(client: httpx.AsyncClient) -> None:
    """Each number is finite, their product is not; NaN never leaves."""
    asked = {"query": [[1e200, 1e200]], "key": [[1e200, 1e200]], "value": [[1.0]]}

    answer = await client.post(ROUTE, json=asked)

    assert (answer.status_code, answer.json()["code"]) == (422, "out_of_range")


async def test_an_answer_too_large_is_refused_by_its_bytes(client: httpx.AsyncClient) -> None:
    """They are counted to the last one; of attention that alone is too much, its own."""
    rows = [[0.0, 1.0]] * 1031
    body = json.dumps({"query": rows, "key": rows, "value": rows}).encode()

    answer = await client.post(ROUTE, content=body)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (413, "attention_too_large")
    mixture = read_mixture(body, 2 * problem["bytes"])
    arrays = mixed_arrays(mixture)
    assert arrays["probabilities"].nbytes == problem["bytes"] > problem["limit"]
    assert sum(array.nbytes for array in arrays.values()) == mixture.price.total


async def test_requests_take_turns_and_too_many_are_refused(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Who gives up is out of the way when the thread is, and not before."""
    soon = {"x-headlight-deadline-ms": "50"}
    waits, count = replica.admission.lessons, worker.MOST_WAITING
    async with occupied(waits):
        late = await client.post(ROUTE, json=WELL, headers=soon)
        waiting = [asyncio.create_task(client.post(ROUTE, json=WELL)) for _ in range(count - 1)]
        while waits.waiting < count:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        refused = await client.post(ROUTE, json=WELL)
    answers = await asyncio.gather(*waiting[1:])
    while waits.waiting:
        await asyncio.sleep(0.01)

    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert {answer.status_code for answer in answers} == {200}


async def test_it_takes_one_core() -> None:
    """A second thread that opens a parallel region would slow the lanes' short sentences."""

    def cores() -> int:
        torch.set_num_threads(2)
        mixed_arrays(read_mixture(json.dumps(parts()).encode(), 1 << 20))
        return torch.get_num_threads()

    assert await asyncio.to_thread(cores) == 1


async def test_only_json_is_read(client: httpx.AsyncClient) -> None:
    """Another media type is refused."""
    answer = await client.post(ROUTE, content=b"{}", headers={"content-type": "text/plain"})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_the_arrays_of_a_request_are_counted_once_its_body_is_parsed() -> None:
    """As they wait: numbers of 8 bytes, of a mask one."""
    rows = HEADS * (QUERIES * D_K + KEYS * D_K + KEYS * D_V)
    mask = [[True] * KEYS] * QUERIES

    of_rows = read_mixture(json.dumps({**parts(), "mask": mask}).encode(), 10**6)
    of_scores = read_mixture(json.dumps(WELL).encode(), 10**6)

    assert of_rows.request_bytes == 8 * rows + QUERIES * KEYS
    assert of_scores.request_bytes == 8 * (2 + 4)
