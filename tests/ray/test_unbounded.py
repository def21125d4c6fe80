"""A flood of what no admission bounds, on every kind of it, beside another key that asks little.

And beside a process of its own that asks the replica, on its own port, whether it lives.
"""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray.tenants import ask
from tests.ray.test_door import TRIES
from tests.ray.test_waits import WAIT_SECONDS, listening

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
CONNECTIONS, SECONDS = 32, 10.0
DRY = json.dumps({"inputs": ["a"] * 2048, "attention": {}}).encode()
FLOODS = {
    "dry runs": ("POST", "/v1/encode?dry_run=true", A, DRY),
    "heads": ("GET", "/v1/heads", A, b""),
    "wrong keys": ("POST", "/v1/encode", "wrong", DRY),
    "the document": ("GET", "/openapi.json", A, b""),
    "a page": ("GET", "/", A, b""),
}


async def flood(url: str, kind: str, until: float) -> Counter[int]:
    """Ask on CONNECTIONS connections; the statuses."""
    method, path, key, body = FLOODS[kind]
    codes = Counter[int]()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    limits = httpx.Limits(max_connections=CONNECTIONS)

    async def ask_on() -> None:
        while time.monotonic() < until:
            codes[(await client.request(method, path, content=body)).status_code] += 1

    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=60
    ) as client:
        await asyncio.gather(*(ask_on() for _ in range(CONNECTIONS)))
    return codes


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_that_nothing_admits_is_hardly_felt_by_others(
    start: "Start", tmp_path: Path, kind: str
) -> None:
    """Ten small texts a second of another key are all answered; its sender may be told to wait.

    As in tests/ray/test_waits.py, what the loop does comes again, and what the machine does not.
    """
    file = tmp_path / "keys"
    file.write_text(f"a:{A} metrics\nb:{B} metrics\n")
    waits = list[float]()
    with start("--api-keys-file", str(file)) as service, listening(service) as listener:
        while not waits or waits[-1] >= WAIT_SECONDS and len(waits) < TRIES:
            listener.worst()
            taken, theirs, ours = beside(service, kind)
            waits.append(listener.worst())
            live = ", ".join(f"{wait * 1000:.0f}" for wait in waits)
            middle, most = taken[len(taken) // 2], taken[-1]
            print(
                f"{kind}: GET /live {live} ms; quiet {middle:.0f}, {most:.0f} ms {ours}; {theirs}"
            )
            assert ours.keys() == {200}
            assert theirs.keys() <= {200, 401, 429}

    assert min(waits) < WAIT_SECONDS


def beside(service: "Service", kind: str) -> tuple[list[float], Counter[int], Counter[int]]:
    """What the quiet key's requests took, sorted, and the statuses of the flood's and its own."""
    until = time.monotonic() + SECONDS

    async def both() -> tuple[tuple[list[float], Counter[int]], Counter[int]]:
        quiet = asyncio.to_thread(ask, service, B, SECONDS)
        flooding = asyncio.to_thread(asyncio.run, flood(service.url, kind, until))
        mine, codes = await asyncio.gather(quiet, flooding)
        return mine, codes

    (taken, ours), theirs = asyncio.run(both())
    return sorted(taken), theirs, ours
