"""One input, one digest: alone, in batches, from many clients at once."""

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING

import httpx
import orjson
import pytest

if TYPE_CHECKING:
    from tests.ray.conftest import Service

pytestmark = pytest.mark.ray

CLIENTS, MOST = 16, 64  # inputs of a batch


@pytest.mark.parametrize(
    ("count", "groups"), [(29, 3), pytest.param(500, 20, marks=pytest.mark.prove)]
)
def test_every_input_has_one_digest_however_it_is_sent(
    running: "Service", count: int, groups: int
) -> None:
    """Random sequences each alone, and in random batches, from 16 clients."""
    draw = random.Random(0)
    inputs = [
        [draw.randrange(1000, 30000) for _ in range(draw.randint(1, 256))] for _ in range(count)
    ]
    batches = [draw.sample(range(count), draw.randint(2, min(count, MOST))) for _ in range(groups)]
    requests = [[index] for index in range(count)] + batches
    once = requests[:]
    draw.shuffle(requests)

    digests: dict[int, set[str]] = {index: set() for index in range(count)}

    async def send(client: httpx.AsyncClient, indices: list[int]) -> None:
        body = {"inputs": [{"token_ids": inputs[i]} for i in indices], "encoding": "base64"}
        answer = await client.post("/v1/encode", json={**body, "tokens": True})
        assert answer.status_code == 200, answer.text
        for i, item in zip(indices, orjson.loads(answer.content)["data"], strict=True):
            numbers = item["pooled"]["data"] + item["token_vectors"]["data"]
            digests[i].add(hashlib.sha256(numbers.encode()).hexdigest())

    async def drill() -> None:
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            for indices in once[:count:5]:  # one at a time, nobody else
                await send(client, indices)
            waiting = iter(requests)

            async def worker() -> None:
                for indices in waiting:
                    await send(client, indices)

            await asyncio.gather(*(worker() for _ in range(CLIENTS)))

    asyncio.run(drill())

    assert {index for index, found in digests.items() if len(found) != 1} == set()
