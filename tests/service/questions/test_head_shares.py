"""Shares of heads, through POST /v1/similarity by head."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from model.packing import Sequence
from model.pooling import Pooling, pool_sequence
from model.probes.head_shares import Targets, share_heads
from model.similarity import LinearPooling
from service.pipeline.find.resolver import Resolver
from service.pipeline.replica import Replica
from service.questions import carried
from service.questions.similarity import NOT_BY_HEAD, heads
from service.questions.similarity.heads import HeadShares
from service.shapes.work import Outputs, Result, Work, cosine
from tests.conftest import application, connected, posted
from tests.model.lessons.test_explain import drawn
from tests.model.test_similarity import dense
from tests.replica_internals import pooled_by

TEXTS = (Path(__file__).parents[2] / "model" / "texts.txt").read_text("utf-8").splitlines()
DOG, CAT = "A dog ate the food because it was hungry", "Unbelievable headlights"
IDS = {"token_ids": [101, 2035, 2003, 102]}
FILE = "application/vnd.safetensors"
SIDES = ("left", "right")
CLOSE = 1e-5  # of a score and the sum of its shares


async def ask(client: httpx.AsyncClient, left: Any, *right: Any, **fields: Any) -> list[Any]:
    """What POST /v1/similarity answers by head, of each text on the right."""
    body = {"left": left, "right": right, "by": "head", **fields}
    return (await posted(client, "/v1/similarity", body))["right"]


def sums(told: Any) -> list[float]:
    """The heads of each layer, and what passes them, on either side."""
    return [
        sum(heads) + rest
        for side in SIDES
        for heads, rest in zip(told[f"{side}_heads"], told[f"{side}_rest"], strict=True)
    ]


async def test_each_layers_heads_and_its_rest_sum_to_the_score(client: httpx.AsyncClient) -> None:
    """On both sides; the score is the same to the bit as without shares."""
    rights = TEXTS[3:9]
    plain = await client.post("/v1/similarity", json={"left": DOG, "right": rights})

    told = await ask(client, DOG, *rights)

    for one, other in zip(told, plain.json()["right"], strict=True):
        assert one["score"] == other["score"] and np.shape(one["left_heads"]) == (6, 12)
        np.testing.assert_allclose(sums(one), one["score"], rtol=0, atol=CLOSE)


async def test_a_texts_heads_have_the_same_shares_on_either_side(
    client: httpx.AsyncClient,
) -> None:
    """Of a text and itself no head is worth anything, as it makes both vectors longer."""
    (one,), (other,), (same,) = [
        await ask(client, *pair) for pair in ((DOG, CAT), (CAT, DOG), (DOG, DOG))
    ]

    np.testing.assert_allclose(one["left_heads"], other["right_heads"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(one["right_rest"], other["left_rest"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(one["worth"], other["worth"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(same["worth"], 0, rtol=0, atol=1e-6)
    assert np.abs(one["worth"]).max() > 0.01


async def test_worth_is_how_the_score_falls_as_a_head_writes_less(replica: Replica) -> None:
    """As differences of cosines have it: of the vectors less a little of what each head adds."""
    model, ids = replica.lanes.model, ([101, 2035, 2003, 2092, 102], IDS["token_ids"])
    every, step = Targets(torch.eye(model.config.width), ("mean",)), 1e-4
    with torch.inference_mode():
        u, v = (share_heads(model.encoder, Sequence(each), every).double() for each in ids)

    texts = [{"token_ids": each} for each in ids]
    (told,) = await ask(connected(application(replica)), *texts)

    whole = [each[0].sum(0) for each in (u, v)]
    score = torch.cosine_similarity(*whole, dim=0)
    assert float(score) == pytest.approx(told["score"], abs=CLOSE)
    less = (all_of - step * each[:, :-1] for each, all_of in zip((u, v), whole, strict=True))
    expected = (score - torch.cosine_similarity(*less, dim=2)) / step
    np.testing.assert_allclose(told["worth"], expected, rtol=0, atol=1e-4)


async def test_of_the_last_layer_worth_foretells_what_gates_do(client: httpx.AsyncClient) -> None:
    """Only norms and one feed-forward block follow: the order of heads is nearly the same."""
    rights = TEXTS[10:14]
    told = await ask(client, DOG, *rights)
    body = {"left": DOG, "right": rights, "form": "score", "sweep": {"layers": [5]}}
    swept = (await client.post("/v1/similarity", json=body)).json()["right"]

    agreement = []
    for one, other in zip(told, swept, strict=True):
        lost = [-change for change in other["sweep"]["change"]["5"].values()]
        ranks = [np.argsort(np.argsort(each)) for each in (one["worth"][5], lost)]
        agreement.append(np.corrcoef(*ranks)[0, 1])
    assert np.mean(agreement) > 0.75


async def test_a_text_is_divided_the_same_among_others(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one work or in several, and where a gated head adds nothing."""
    monkeypatch.setattr(heads, "TILE_ROWS", 120)
    long = {"token_ids": [1000 + 7 * place for place in range(40)]}
    for fields in ({}, {"gates": [{"layer": 5, "head": 11, "scale": 0.0}]}):
        (alone,) = await ask(client, long, CAT, **fields)
        among = (await ask(client, long, "Yes", IDS, DOG, CAT, **fields))[3]

        for name in ("left_heads", "right_heads", "left_rest", "right_rest", "worth"):
            np.testing.assert_allclose(among[name], alone[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(sums(alone), alone["score"], rtol=0, atol=CLOSE)
    assert alone["left_heads"][5][11] == alone["right_heads"][5][11] == 0


async def test_where_a_vector_is_a_maximum_they_are_refused_by_its_name(replica: Replica) -> None:
    """With what is answered."""
    client, body = connected(application(replica)), {"left": DOG, "right": [CAT], "by": "head"}
    with pooled_by(replica, "max"):
        refused = await client.post("/v1/similarity", json=body)

    assert (refused.status_code, refused.json()["code"]) == (422, "similarity_not_explainable")
    assert 'pooling "max"; "form": "occlusion" is answered' in refused.json()["detail"]


async def test_the_bias_of_a_dense_layer_is_part_of_the_rest() -> None:
    """Its product with the other text's vector, as it adds that to each."""
    encoder, pooling = drawn("bert"), Pooling(("mean",), True, layers=(dense(30, 3),))
    works = [Work(Sequence(ids), Outputs(pooling)) for ids in ([1, 2, 3], [4, 5, 6, 7])]
    model = SimpleNamespace(config=encoder.config, pooling=pooling)
    resolver = cast(Resolver, SimpleNamespace(model=model, check_tokens=lambda *told: None))
    shares = HeadShares(works, resolver, LinearPooling(pooling))
    with torch.inference_mode():
        for work in works:
            packed = encoder.pack([work.sequence])
            vector = pool_sequence(encoder(packed).last[packed.rows(0)], pooling)
            work.result = Result(pooled=vector.numpy())
        then = (await shares.step()).then
        step = await then() if then else None
        for work in step.works if step else ():
            targets = work.outputs.probe(Targets)
            made = share_heads(encoder, work.sequence, targets) if targets else torch.empty(0)
            work.result = Result(made={"shares": made.numpy()})

    score = cosine(*(work.result.vector for work in works))
    told, gap = shares.share(1, score)

    assert step and len(step.works) == 2
    for side in SIDES:
        sums = told[f"{side}_heads"].sum(1) + told[f"{side}_rest"]
        assert float((score - sums).abs().max()) <= abs(gap) < CLOSE
        np.testing.assert_allclose(sums, score, rtol=0, atol=CLOSE)


async def test_fields_that_would_be_ignored_are_refused(client: httpx.AsyncClient) -> None:
    """Those of a matrix, and of other passes."""
    for fields in (
        {"form": "top"},
        {"form": "score"},
        {"level": "word"},
        {"specials": "drop"},
        {"sweep": "heads"},
    ):
        body = {"left": DOG, "right": [CAT], "by": "head", **fields}
        answer = await client.post("/v1/similarity", json=body)
        assert answer.status_code == 422 and NOT_BY_HEAD in answer.json()["detail"], fields


async def test_its_price_is_known_before(
    client: httpx.AsyncClient, served: Callable[..., httpx.AsyncClient]
) -> None:
    """To the byte; each vector carried counts as the work of the text, and too much is refused."""
    body = {"left": DOG, "right": [CAT, IDS], "dtype": "float16"}
    plain = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    body["by"] = "head"
    dry = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    answer = await client.post("/v1/similarity", json=body, headers={"accept": FILE})
    async with served(max_request_tokens=60) as few:
        refused = await few.post("/v1/similarity", json=body)
    async with served(max_held_bytes=1 << 20) as small:
        full = await small.post("/v1/similarity", json=body)

    arrays = load(answer.content)
    assert dry["answer_bytes"] == sum(each.nbytes for each in arrays.values()) == 2 * 2 * 6 * 38
    assert 4 * plain["flops"] < dry["flops"] < 12 * plain["flops"]
    assert refused.status_code == 413 and refused.json()["code"] == "too_many_tokens"
    assert heads.SHARING_TAKES[1:] in refused.json()["detail"]
    assert (full.status_code, full.json()["code"]) == (429, "overloaded")


async def test_works_hold_no_more_memory_than_is_counted() -> None:
    """Apart from what they make; no lane is held by more rows at a time than by input."""
    config = SimpleNamespace(width=0, feed_forward=0, layers=0, heads=0)
    pooling = Pooling(("mean",), normalize=True)
    model = SimpleNamespace(config=config, pooling=pooling)
    resolver = cast(Resolver, SimpleNamespace(model=model, check_tokens=lambda *told: None))
    texts = [Work(Sequence([*range(1000, 1200)]), Outputs(pooling), length=200) for _ in range(257)]
    shares = HeadShares(texts, resolver, LinearPooling(pooling))
    tracemalloc.start()
    step = await shares.step()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    carried_rows = [len(work) * len(work.outputs.probe(Targets) or ()) for work, _ in step.follow]
    assert max(carried_rows) <= carried.TILE_ROWS
    assert sum(carried_rows) == 200 * (257 + 2 * 256)
    assert used < step.held < 2 * used
