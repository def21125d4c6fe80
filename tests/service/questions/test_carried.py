"""Shares of the tokens that enter the model, through POST /v1/similarity by input."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.maps.units import divide_into_units
from model.packing import Sequence
from model.pooling import Pooling
from model.probes import Sources
from service.pipeline.find.resolver import Resolver
from service.pipeline.replica import Replica
from service.questions import carried
from service.shapes.work import Outputs, Work
from tests.conftest import application, connected, posted
from tests.replica_internals import pooled_by
from tests.service.api.exact_arrays import array

TEXTS = (Path(__file__).parents[2] / "model" / "texts.txt").read_text("utf-8").splitlines()
DOG, CAT = "A dog ate the food because it was hungry", "Unbelievable headlights"
IDS = {"token_ids": [101, 2035, 2003, 102]}
FILE = "application/vnd.safetensors"
CLOSE = 1e-5  # of a score and the sum of its shares


async def ask(client: httpx.AsyncClient, left: Any, *right: Any, **fields: Any) -> dict[str, Any]:
    """What POST /v1/similarity answers by input."""
    body = {"left": left, "right": right, "by": "input", **fields}
    return await posted(client, "/v1/similarity", body)


@pytest.mark.parametrize("level", ["token", "word"])
async def test_a_matrix_and_its_rest_sum_to_the_score(
    client: httpx.AsyncClient, level: str
) -> None:
    """Which is the same to the bit as without shares; the rest is what biases carry."""
    rights = [text for text in TEXTS if text.strip() and len(text) < 200][:12]
    plain = await client.post("/v1/similarity", json={"left": DOG, "right": rights})

    told = await ask(client, DOG, *rights, level=level, encoding="base64")

    for one, other in zip(told["right"], plain.json()["right"], strict=True):
        matrix = array(one["matrix"]).astype(np.float64)
        left, right = (array(one[name]).sum() for name in ("left_bias", "right_bias"))
        total = matrix.sum() + left + right + one["rest"]
        assert one["score"] == other["score"]
        assert abs(total - one["score"]) < CLOSE
        assert one["gap"] == pytest.approx(one["score"] - total, abs=1e-6)
        assert one["bias"] == pytest.approx(one["rest"] + left + right, abs=1e-6)
        for side, axis in (("left", 1), ("right", 0)):
            share = array(one[f"{side}_share"])
            np.testing.assert_allclose(share, matrix.sum(axis), rtol=0, atol=1e-6)
            assert abs(array(one[f"{side}_bias"]).sum()) > 1e-3


async def test_a_token_that_makes_texts_differ_has_less_of_their_likeness(
    client: httpx.AsyncClient,
) -> None:
    """Last-layer shares give 'not' as much as any word, since each vector holds the whole text."""
    pair = "The film was not good", "The film was good"
    left = (await ask(client, *pair))["left"]["tokens"]

    inside, last = [
        dict(zip(left, (await ask(client, *pair, by=by))["right"][0]["left_share"], strict=True))
        for by in ("input", "layer")
    ]

    assert inside["not"] < 0.04 < 0.07 < last["not"]
    assert inside["good"] > 7 * inside["not"]


async def test_what_is_left_out_is_in_the_rest(client: httpx.AsyncClient) -> None:
    """Special tokens that are dropped, and pairs that are not listed."""
    (whole,) = (await ask(client, DOG, CAT))["right"]
    (bare,) = (await ask(client, DOG, CAT, specials="drop"))["right"]
    (best,) = (await ask(client, DOG, CAT, specials="drop", form="top", k=3))["right"]
    matrix = np.array(whole["matrix"])[1:-1, 1:-1]

    biases = sum(bare["left_bias"]) + sum(bare["right_bias"])

    np.testing.assert_allclose(bare["matrix"], matrix, rtol=0, atol=1e-6)
    assert bare["left_bias"] == pytest.approx(whole["left_bias"][1:-1], abs=1e-6)
    assert bare["rest"] == pytest.approx(bare["score"] - matrix.sum() - biases, abs=CLOSE)
    assert bare["bias"] == pytest.approx(whole["bias"], abs=1e-6)
    shares = sorted(matrix.flatten(), key=abs, reverse=True)[:3]
    assert [share for *_, share in best["pairs"]] == pytest.approx(shares, abs=1e-6)
    assert best["rest"] == pytest.approx(best["score"] - sum(shares) - biases, abs=CLOSE)


async def test_a_text_is_divided_the_same_among_others(client: httpx.AsyncClient) -> None:
    """To the bit, in one work or in several; and gates hold on both sides."""
    long = {"token_ids": [1000 + 7 * place for place in range(60)]}
    for fields in ({}, {"gates": [{"layer": 5, "head": 11, "scale": 0.0}]}):
        alone = await ask(client, DOG, long, **fields)
        among = await ask(client, DOG, "Yes", IDS, long, CAT, **fields)

        assert among["right"][2] == alone["right"][0]
        matrix = np.array(alone["right"][0]["matrix"])
        told = alone["right"][0]
        total = matrix.sum() + sum(told["left_bias"]) + sum(told["right_bias"]) + told["rest"]
        assert total == pytest.approx(told["score"], abs=CLOSE)


async def test_where_one_vector_is_the_texts_a_refusal_names_shares_by_input(
    replica: Replica,
) -> None:
    """And where a vector is a maximum, these are refused by its name as well."""
    client, body = connected(application(replica)), {"left": DOG, "right": [CAT]}
    with pooled_by(replica, "cls"):
        named = (await client.post("/v1/similarity", json=body)).json()
    with pooled_by(replica, "max"):
        refused = await client.post("/v1/similarity", json={**body, "by": "input"})

    assert 'pooling "cls"; "by": "input" is answered' in named["detail"]
    assert ', and "by": "head"; ' in named["detail"]
    assert (refused.status_code, refused.json()["code"]) == (422, "similarity_not_explainable")
    assert 'pooling "max"; "form": "occlusion" is answered' in refused.json()["detail"]


async def test_its_price_is_known_before(
    client: httpx.AsyncClient, served: Callable[..., httpx.AsyncClient]
) -> None:
    """To the byte; each token carried counts as the work of the text, and too much is refused."""
    body = {"left": DOG, "right": [CAT, IDS]}
    plain = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    body["by"] = "input"
    dry = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    answer = await client.post("/v1/similarity", json=body, headers={"accept": FILE})
    async with served(max_request_tokens=150) as few:
        refused = await few.post("/v1/similarity", json=body)
    async with served(max_held_bytes=1 << 20) as small:
        full = await small.post("/v1/similarity", json=body)

    assert dry["answer_bytes"] == sum(each.nbytes for each in load(answer.content).values())
    assert dry["flops"] > 8 * plain["flops"]
    assert refused.status_code == 413 and refused.json()["code"] == "too_many_tokens"
    assert carried.CARRYING_TAKES[1:] in refused.json()["detail"]
    assert (full.status_code, full.json()["code"]) == (429, "overloaded")


async def test_works_hold_no_more_memory_than_is_counted() -> None:
    """Apart from what they make."""
    config, pooling = SimpleNamespace(width=0, feed_forward=0), Pooling(("mean",), normalize=True)
    model = SimpleNamespace(config=config)
    resolver = cast(Resolver, SimpleNamespace(model=model, check_tokens=lambda *told: None))
    works = [Work(Sequence([*range(1000, 1200)]), Outputs(pooling), length=200)]
    tracemalloc.start()
    owners = [carried.number_sources(divide_into_units(200))]
    (tiles,) = await carried.carry_works(
        works, owners, resolver, lambda n, sources: Sources(owners[n], sources, pooling.modes)
    )
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert [number for tile in tiles for number in of(tile).numbers] == [*range(201)]
    assert max(len(of(tile)) * 200 for tile in tiles) <= carried.TILE_ROWS
    assert used < await carried.weigh_probes(tiles, model.config) < 2 * used


def of(tile: Work) -> Sources:
    """What a work carries."""
    sources = tile.outputs.probe(Sources)
    assert sources is not None
    return sources
