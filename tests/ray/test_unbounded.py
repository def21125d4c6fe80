"""A flood of what no admission bounds, on every kind of it, beside another key that asks little."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray.tenants import ask

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
def test_a_flood_that_nothing_admits_has_no_request_of_another_key_refused(
    start: "Start", tmp_path: Path, kind: str
) -> None:
    """Ten small texts a second are all answered; the sender may be told to come later."""
    file = tmp_path / "keys"
    file.write_text(f"a:{A} metrics\nb:{B} metrics\n")
    with start("--api-keys-file", str(file)) as service:
        taken, theirs, ours = beside(service, kind)

    print(f"{kind}: median {taken[len(taken) // 2]:.0f} ms, most {taken[-1]:.0f}; {ours} {theirs}")
    assert ours.keys() == {200}
    assert theirs.keys() <= {200, 401, 429}


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
