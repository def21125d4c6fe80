"""What parts of a text are worth, through POST /v1/similarity with the form occlusion."""

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import torch
from safetensors.numpy import load

from model import packing
from model.maps.units import divide_into_units
from model.pooling import Pooling
from service.pipeline.find.resolver import Resolver
from service.questions.similarity.occlusion import occlude_works
from service.shapes.work import Outputs, Work
from tests.conftest import posted

DOG, CAT = "A dog ate the food because it was hungry", "Unbelievable headlights"
IDS = [101, 2035, 2003, 102]
GATES = [{"layer": 5, "head": 11, "scale": 0.0}]
FILE = "application/vnd.safetensors"
WIDTH = 384


async def ask(client: httpx.AsyncClient, *right: Any, status: int = 200, **fields: Any) -> Any:
    """What POST /v1/similarity answers."""
    body = {"left": DOG, "right": right, "form": "occlusion", **fields}
    return await posted(client, "/v1/similarity", body, status=status)


async def score(client: httpx.AsyncClient, left: Any, right: Any, **fields: Any) -> float:
    """The cosine alone."""
    told = await ask(client, right, left=left, form="score", **fields)
    value: float = told["right"][0]["score"]
    return value


async def test_a_model_that_has_shares_tells_worth_too(client: httpx.AsyncClient) -> None:
    """With gates on both sides and special tokens kept whole, whatever stands next to it."""
    fields = {"gates": GATES, "level": "word", "specials": "drop"}
    among = await ask(client, "Yes", CAT, {"token_ids": IDS}, **fields | {"level": "token"})
    told = await ask(client, "Yes", CAT, **fields)

    left, one = told["left"], told["right"][1]
    assert left["axis"] == [*range(1, 10)] and one["axis"] == [1, 2]
    assert among["right"][1]["left_worth"] == one["left_worth"]
    ids, own = left["token_ids"], one["token_ids"]
    whole = await score(client, {"token_ids": ids}, {"token_ids": own}, gates=GATES)
    lost = [
        await score(client, {"token_ids": ids[:i] + ids[i + 1 :]}, {"token_ids": own}, gates=GATES)
        for i in left["axis"]
    ]
    assert one["score"] == whole
    np.testing.assert_array_equal(np.float32(one["left_worth"]), np.float32(whole - np.array(lost)))


async def test_a_row_of_embeddings_is_left_out_as_a_token_is(client: httpx.AsyncClient) -> None:
    """And a token with its type."""
    rows = np.random.default_rng(5).standard_normal((3, WIDTH)).astype(np.float32).tolist()
    typed = {"token_ids": IDS, "token_type_ids": [0, 1, 1, 0]}
    (one,) = (await ask(client, typed, left={"embeddings": rows}))["right"]

    whole = await score(client, {"embeddings": rows}, typed)
    fewer = await score(client, {"embeddings": rows[1:]}, typed)
    first = {"token_ids": IDS[1:], "token_type_ids": [1, 1, 0]}
    other = await score(client, {"embeddings": rows}, first)
    assert np.float32(one["left_worth"][0]) == np.float32(whole - fewer)
    assert np.float32(one["right_worth"][0]) == np.float32(whole - other)


async def test_its_price_is_known_before(
    client: httpx.AsyncClient, served: Callable[..., httpx.AsyncClient]
) -> None:
    """To the byte; copies count as the work they are, and what is too much is refused."""
    body = {"left": DOG, "right": [CAT, {"token_ids": IDS}], "form": "occlusion"}
    dry = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    plain = await client.post("/v1/similarity?dry_run=true", json={**body, "form": "score"})
    answer = await client.post("/v1/similarity", json=body, headers={"accept": FILE})
    async with served(max_answer_bytes=50) as few:
        await ask(few, CAT, status=413)
    long = await ask(client, *[{"token_ids": [7] * 250}] * 5, status=413)
    many = await ask(client, *[{"token_ids": [7] * 17}] * 256, status=422)

    arrays = load(answer.content)
    assert dry["answer_bytes"] == sum(each.nbytes for each in arrays.values())
    assert sorted(arrays) == [f"{i}.{side}_worth" for i in (0, 1) for side in ("left", "right")]
    assert dry["flops"] > 5 * plain.json()["flops"]
    assert long["code"] == "too_many_tokens" and "each part left out once" in long["detail"]
    assert many["code"] == "batch_too_large" and "4,096" in many["detail"]


async def test_a_text_of_one_part_is_refused(client: httpx.AsyncClient) -> None:
    """Since without it there is nothing, and that has no vector."""
    nothing = await ask(client, CAT, {"token_ids": [7]}, status=422)

    assert nothing["code"] == "nothing_left" and nothing["errors"][0]["loc"] == ["right", 1]


async def test_copies_hold_no_more_memory_than_is_counted() -> None:
    """Of token ids with types, and of embeddings."""
    outputs = Outputs(Pooling(("mean",), normalize=True))
    model = SimpleNamespace(config=SimpleNamespace(width=64))
    resolver = cast(Resolver, SimpleNamespace(model=model, check_tokens=lambda *told: None))
    ids = packing.Sequence([*range(1000, 1200)], [0] * 200)
    rows = packing.Sequence(embeddings=torch.zeros(200, 64))
    for sequence in (ids, rows):
        works = [Work(sequence, outputs, length=200)]
        tracemalloc.start()
        ((copies,), held) = await occlude_works(works, [divide_into_units(200)], resolver, [])
        used = tracemalloc.get_traced_memory()[0] + sum(
            work.sequence.embeddings.nbytes
            for work in copies
            if work.sequence.embeddings is not None
        )
        tracemalloc.stop()
        vectors = 4 * 64 * len(copies)
        assert used < held - vectors < 1.5 * used
