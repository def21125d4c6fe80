"""POST /v1/explain: every step of one text through one layer, recomputed from the answer."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from model.packing import Sequence
from model.probes import Steps
from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.pipeline.write import answer
from service.shapes.work import Outputs, Result, Work
from tests.replica_internals import bound

ROUTE = "/v1/explain"
DOG = "A dog ate the food because it was hungry"
# absolute; or of the number, where it is so large that a float32 has no digits left for that:
# the bundled model's first layer reaches 194, where neighbours are 1.5e-5 apart
CLOSE, CLOSE_TO_LARGE = 1e-5, 1e-6
EPS = 1e-12  # of the bundled model's norms
STEPS = ["x", "q", "k", "v", "scores", "probabilities", "z"]
STEPS += ["concat", "projected", "normed", "feed_forward", "output"]

Array = NDArray[np.float32]
Affine = tuple[Array, Array]


async def explained(client: httpx.AsyncClient, body: Any) -> dict[str, Any]:
    """An answer that must be one, its steps as arrays."""
    told = await client.post(ROUTE, json=body)
    assert told.status_code == 200, told.text
    decoded: dict[str, Any] = told.json()
    return decoded | {name: np.array(decoded[name], np.float32) for name in decoded["shapes"]}


def close(expected: Any, actual: Any) -> None:
    """Nothing differs by more than 1e-5, or by 1e-6 of itself."""
    np.testing.assert_allclose(actual, expected, rtol=CLOSE_TO_LARGE, atol=CLOSE)


def stored(layer: int) -> dict[str, Affine]:
    """The bundled model's weights of one layer, from its file, by what they do."""
    tensors = load_file(locate_model(BUNDLED_MODEL).folder / "model.safetensors")
    names = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "projected": "attention.output.dense",
        "normed": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "output": "output.LayerNorm",
    }
    prefix = f"encoder.layer.{layer}"
    return {
        what: (tensors[f"{prefix}.{name}.weight"], tensors[f"{prefix}.{name}.bias"])
        for what, name in names.items()
    }


def linear(x: Array, affine: Affine) -> Array:
    """x W^T + b."""
    return x @ affine[0].T + affine[1]


def norm(x: Array, affine: Affine) -> Array:
    """LayerNorm over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(centred.var(-1, keepdims=True) + EPS) * affine[0] + affine[1]


def gelu(x: Array) -> Array:
    """The exact one, with erf."""
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))).astype(np.float32) / 2


@pytest.mark.parametrize("layer", [0, 5])
async def test_every_step_follows_from_the_one_before_and_the_weights(
    client: httpx.AsyncClient, layer: int
) -> None:
    """In numpy, with the weights as they lie in the bundled model's file."""
    told, weights = await explained(client, {"text": DOG, "layer": layer}), stored(layer)

    for name in "qkv":
        by_head = linear(told["x"], weights[name]).reshape(-1, 12, 32).transpose(1, 0, 2)
        close(by_head, told[name])
    close(told["q"] @ told["k"].transpose(0, 2, 1) / np.sqrt(32), told["scores"])
    shares = np.exp(told["scores"])
    close(shares / shares.sum(-1, keepdims=True), told["probabilities"])
    close(told["probabilities"] @ told["v"], told["z"])
    close(np.concatenate(told["z"], axis=1), told["concat"])
    close(linear(told["concat"], weights["projected"]), told["projected"])
    close(norm(told["x"] + told["projected"], weights["normed"]), told["normed"])
    inner = gelu(linear(told["normed"], weights["up"]))
    close(linear(inner, weights["down"]), told["feed_forward"])
    close(norm(told["normed"] + told["feed_forward"], weights["output"]), told["output"])


@pytest.mark.parametrize("layer", [pytest.param(0, marks=pytest.mark.prove), 5])
async def test_with_its_weights_an_answer_is_enough_to_recompute_it(
    client: httpx.AsyncClient, layer: int
) -> None:
    """In numpy, all but the feed-forward block; and no step is another than without them."""
    body = {"text": DOG, "layer": layer}
    told = await explained(client, {**body, "weights": True})
    parts = {
        name: {part: np.array(value, np.float32) for part, value in of.items()}
        for name, of in told["parameters"].items()
        if name != "eps"
    }

    for name in "qkv":
        weight, bias = parts[name]["weight"], parts[name]["bias"]
        close(told["x"] @ weight + bias[:, None], told[name])
    out = parts["projected"]
    close(told["concat"] @ out["weight"] + out["bias"], told["projected"])
    affine = {name: (parts[name]["weight"], parts[name]["bias"]) for name in ("normed", "output")}
    assert told["parameters"]["eps"] == EPS
    close(norm(told["x"] + told["projected"], affine["normed"]), told["normed"])
    close(norm(told["normed"] + told["feed_forward"], affine["output"]), told["output"])
    plain = await explained(client, body)
    assert list(told["shapes"]) == STEPS and "parameters" not in plain
    assert all(np.array_equal(told[name], plain[name]) for name in STEPS)


async def test_weights_that_an_answer_does_not_hold_are_refused(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """Before any is read: with their bytes and the limit."""
    body = {"text": "All is well", "layer": 0}

    async with served(max_answer_bytes=2**23) as client:
        refused = (await client.post(ROUTE, json={**body, "weights": True})).json()
        answered = await client.post(ROUTE, json=body)

    steps = 4 * (10 * 5 * 384 + 2 * 12 * 5**2)
    assert (refused["status"], refused["code"], refused["limit"]) == (
        413,
        "answer_too_large",
        2**20,
    )
    assert refused["bytes"] == steps + 4 * (4 * 384**2 + 10 * 384)
    assert answered.status_code == 200


@pytest.mark.parametrize("layer", [0, 5])
async def test_what_enters_and_leaves_are_the_hidden_states_that_are_served(
    client: httpx.AsyncClient, layer: int
) -> None:
    """x is hidden state i to the bit, output is i + 1."""
    told = await explained(client, {"text": DOG, "layer": layer})
    asked = {"inputs": [DOG], "layers": [layer, layer + 1]}
    states = (await client.post("/v1/encode", json=asked)).json()["data"][0]["layers"]

    assert np.array_equal(told["x"], np.array(states[str(layer)], np.float32))
    close(states[str(layer + 1)], told["output"])


async def test_an_answer_names_the_model_the_tokens_and_every_shape(
    client: httpx.AsyncClient,
) -> None:
    """The steps stand in their order."""
    told = await explained(client, {"text": "All is well", "layer": 2})

    assert told["model"] == "all-MiniLM-L6-v2" and told["weights"] == "sha256:5fc648cb18e4"
    assert told["numerics"].startswith("cpu-fp32")
    assert (told["layer"], told["truncated"], told["length"]) == (2, False, 5)
    assert told["tokens"] == ["[CLS]", "all", "is", "well", "[SEP]"]
    assert told["token_ids"] == [101, 2035, 2003, 2092, 102]
    assert list(told["shapes"]) == STEPS
    assert told["shapes"] == {name: list(told[name].shape) for name in STEPS}


async def test_a_pair_is_two_segments(client: httpx.AsyncClient) -> None:
    """As in /v1/encode; what enters layer 0 knows which is which."""
    told = await explained(client, {"text": "a", "pair": "b c", "layer": 0})

    assert told["segments"] == [0, 0, 0, 1, 1, 1]
    asked = {"inputs": [{"text": "a", "pair": "b c"}], "layers": [0]}
    states = (await client.post("/v1/encode", json=asked)).json()["data"][0]["layers"]
    assert np.array_equal(told["x"], np.array(states["0"], np.float32))


async def test_a_long_text_is_cut_only_when_asked(client: httpx.AsyncClient) -> None:
    """And then may still be too long for an answer of numbers, whose bytes are counted."""
    long = {"text": "dog " * 600, "layer": 0}

    refused = (await client.post(ROUTE, json=long)).json()
    large = (await client.post(ROUTE, json={**long, "truncate": "right"})).json()

    assert (refused["code"], refused["length"], refused["limit"]) == ("sequence_too_long", 602, 256)
    assert refused["errors"] == [{"loc": ["text"], "code": "sequence_too_long"}]
    assert (large["status"], large["code"], large["limit"]) == (413, "answer_too_large", 2**23)
    assert large["bytes"] == 4 * (10 * 256 * 384 + 2 * 12 * 256**2)


async def test_a_pre_norm_family_has_one_more_step_to_pay_for(replica: Replica) -> None:
    """What its projections read."""
    configs = [replace(replica.reader.config, pre_norm=pre_norm) for pre_norm in (False, True)]

    sizes = [Steps(0).bytes(config, 3) for config in configs]

    maps = 4 * 2 * 12 * 3**2
    assert sizes[0] == {"attention": maps, "steps": 4 * 10 * 3 * 384}
    assert sizes[1] == {"attention": maps, "steps": 4 * 11 * 3 * 384}


BAD = {
    "not JSON": (b"{", 400, "invalid_json", []),
    "no text": (b'{"layer":0}', 422, "missing_field", ["text"]),
    "no layer": (b'{"text":"a"}', 422, "missing_field", ["layer"]),
    "layer as text": (b'{"text":"a","layer":"0"}', 422, "invalid_type", ["layer"]),
    "layer 6 of 6": (b'{"text":"a","layer":6}', 422, "index_out_of_range", ["layer"]),
    "layer -1": (b'{"text":"a","layer":-1}', 422, "index_out_of_range", ["layer"]),
    "empty": (b'{"text":"","layer":0}', 422, "sequence_empty", ["text"]),
    "empty pair": (b'{"text":"a","pair":"","layer":0}', 422, "sequence_empty", ["pair"]),
    "unknown field": (b'{"text":"a","layer":0,"hat":1}', 422, "unknown_field", []),
    "how to cut": (b'{"text":"a","layer":0,"truncate":"up"}', 422, "out_of_range", ["truncate"]),
    "another model": (b'{"text":"a","layer":0,"model":"x"}', 404, "model_not_found", ["model"]),
    "several texts": (b'{"text":["a"],"layer":0}', 422, "invalid_type", ["text"]),
}


@pytest.mark.parametrize(("body", "status", "code", "loc"), BAD.values(), ids=BAD.keys())
async def test_what_cannot_be_explained_is_refused_and_said_where(
    client: httpx.AsyncClient, body: bytes, status: int, code: str, loc: list[Any]
) -> None:
    """Before anything is computed."""
    told = await client.post(ROUTE, content=body)

    problem = told.json()
    assert (told.status_code, problem["code"]) == (status, code)
    assert problem.get("errors", [{"loc": []}])[0]["loc"] == loc


async def test_it_waits_and_is_counted_like_any_text(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room, no place in the queue; its tokens and its route are in the metrics."""
    body = {"text": "All is well", "layer": 0}
    with monkeypatch.context() as full:
        bound(full, replica.batcher, requests=0)
        refused = await client.post(ROUTE, json=body)

    async def tokens() -> float:
        text = (await client.get("/metrics")).text
        series = 'headlight_tokens_total{model="all-MiniLM-L6-v2",replica="replica-1"} '
        return float(text.partition(f"\n{series}")[2].partition("\n")[0])

    before = await tokens()
    await client.post(ROUTE, json=body)

    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert await tokens() == before + 5
    counted = (
        'code="200",input="text",model="all-MiniLM-L6-v2",replica="replica-1",route="/v1/explain"'
    )
    assert counted in (await client.get("/metrics")).text


async def test_in_company_it_is_explained_the_same(replica: Replica) -> None:
    """Whatever else is in the batch: not one bit of any step moves, nor of the others."""
    ids = [101, 2035, 2003, 2092, 102]
    works = [
        Work(Sequence(ids), Outputs(probes=(Steps(3),))),
        Work(Sequence(ids * 7), Outputs(tokens=True)),
        Work(Sequence(ids), Outputs(probes=(Steps(1),), hidden=frozenset({4}))),
    ]
    run = replica.lanes.run_batch
    alone = [run([work], 1)[0] for work in works]

    together = await asyncio.to_thread(run, works, 1)

    for one, other in zip(alone, together, strict=True):
        assert isinstance(one, Result) and isinstance(other, Result)
        assert one.made.keys() == other.made.keys()
        for name, step in one.made.get("steps", {}).items():
            np.testing.assert_array_equal(other.made["steps"][name], step)
    assert [list(done.hidden) for done in together if isinstance(done, Result)] == [[], [], [4]]


async def test_a_score_beyond_a_window_is_null() -> None:
    """JSON has no infinity; every other number stays one."""
    pieces = answer.write_pieces({"scores": np.array([[0.5, -np.inf]], np.float32)})

    assert orjson.loads(b"".join(pieces)) == {"scores": [[0.5, None]]}
