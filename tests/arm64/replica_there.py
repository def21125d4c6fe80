"""Starts a replica in this process, asks it for texts together and alone, and prints its answers.

On an arm64 and on x86, whose answers test_arm64.py compares; without Ray.
"""

import asyncio
import json

import httpx

from service.door.door import Door
from service.pipeline.replica import Replica
from service.tables.settings import Settings

TEXTS = ["All is well", "A dog ate the food because it was hungry", "Yes"]
ROW = {"layers": [0], "heads": [5], "form": "rows", "rows": [3]}  # README's, of 'well'


async def scrape(_: object) -> bytes:
    """No other process has metrics."""
    return b""


async def main() -> None:
    """Print each answer as a line of JSON."""
    replica = await Replica.start(Settings(threads=1, device="cpu"), "arm64-1")
    transport = httpx.ASGITransport(Door(replica, scrape))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for body in ({"inputs": TEXTS}, {"inputs": TEXTS[:1], "attention": ROW}):
            answer = await client.post("/v1/encode", json=body, timeout=None)
            print(json.dumps(answer.raise_for_status().json()), flush=True)
    await replica.close()


asyncio.run(main())
