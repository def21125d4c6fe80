"""Two keys of one service: one floods or is busy, the other asks; either is measured.

`python -m tests.ray.tenants URL KEY COUNT SIZE` is the flood, in a process of its own behind all
others, so that who measures does not feel the client of it.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.metric_samples import samples

if TYPE_CHECKING:
    from tests.ray.conftest import Service

ROOT = Path(__file__).parent.parent.parent
NICE = 10
AGAIN_SECONDS = 0.5  # after a refusal
PATIENCE_SECONDS = 30.0  # until a flood is one
EVERY_SECONDS = 0.1
ASKED = {"inputs": ["All is well"]}
LARGE = {"inputs": [{"token_ids": [2035] * 200}] * 64, "encoding": "base64"}  # 12,800 tokens
MIDDLE = {**LARGE, "inputs": LARGE["inputs"][:16]}  # 3,200, in time on a slow machine too
SIZES = {"small": ASKED, "middle": MIDDLE, "large": LARGE}


@contextmanager
def flooded(
    service: "Service", key: str, connections: int, begun: str = "429", size: str = "small"
) -> Iterator[Counter[str]]:
    """A flood with a key, of which one was answered so; what all were is known at its end."""
    command = [sys.executable, "-m", __name__, service.url, key, str(connections), size]
    codes: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while begun not in codes:  # it says so after every hundred answers
            assert time.monotonic() < until, f"{connections} connections are no flood here: {codes}"
            codes = Counter(json.loads(process.stdout.readline()))
        yield codes
        process.kill()
        codes.update(json.loads(process.stdout.read().splitlines()[-1]))


def ask(
    service: "Service", key: str, seconds: float, every: float = EVERY_SECONDS
) -> tuple[list[float], Counter[int]]:
    """Ask ten times a second, or so often, for so long; milliseconds of each, and the statuses."""
    taken, codes = list[float](), Counter[int]()
    bearer = {"authorization": f"Bearer {key}"}
    until = time.monotonic() + seconds
    with httpx.Client(base_url=service.url, headers=bearer, timeout=60) as client:
        while (begun := time.monotonic()) < until:
            codes[client.post("/v1/encode", json=ASKED).status_code] += 1
            taken.append((time.monotonic() - begun) * 1000)
            time.sleep(max(0.0, begun + every - time.monotonic()))
    return taken, codes


def speed(service: "Service", name: str, key: str, over: Callable[[], None]) -> float:
    """Requests of a key's name that are answered a second, while something runs."""

    def answered() -> float:
        bearer = {"authorization": f"Bearer {key}"}
        page = httpx.get(f"{service.url}/metrics", headers=bearer, timeout=60).text
        return sum(
            value
            for metric, labels, value in samples(page)
            if metric == "headlight_requests_total"
            and (labels["key"], labels["code"]) == (name, "200")
        )

    before, begun = answered(), time.monotonic()
    over()
    return (answered() - before) / (time.monotonic() - begun)


async def connection(url: httpx.URL, key: str, body: bytes, codes: Counter[int]) -> None:
    """Ask without end on one connection, which is kept."""
    head = (
        "POST /v1/encode HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    tls = url.scheme == "https" or None
    reader, writer = await asyncio.open_connection(url.host, url.port, ssl=tls)
    while True:
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if "content-length" not in headers:
            raise ValueError(lines, await reader.read(300))  # none of ours
        await reader.readexactly(int(headers["content-length"]))
        codes[int(lines[0].split()[1])] += 1
        if codes.total() % 100 == 0 or len(body) > len(json.dumps(ASKED)):
            print(json.dumps(codes), flush=True)
        if lines[0].split()[1] != "200":
            await asyncio.sleep(AGAIN_SECONDS)


async def flood(url: str, key: str, count: int, size: str) -> None:
    """So many connections at once."""
    codes, body = Counter[int](), json.dumps(SIZES[size]).encode()
    await asyncio.gather(*(connection(httpx.URL(url), key, body, codes) for _ in range(count)))


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
