"""Measure the processor time of a request without the model, of this tree next to another.

    python benchmarks/front.py --against ../before

Each request passes the whole application in process, from the parsed HTTP head to the bytes of its
answer; the lanes answer at once with zeros. What is printed is the processor time of the thread
that runs the event loop, uvloop as in a replica, and the Python calls of one request; trees take
turns, round by round, and the least of a round counts.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import uvloop

TEXT = "The quick brown fox jumps over the lazy dog"
REQUESTS: dict[str, tuple[str, dict[str, Any], int]] = {  # path, body, requests of a repeat
    "encode": ("/v1/encode", {"inputs": [TEXT]}, 20),
    "embeddings": ("/v1/embeddings", {"input": TEXT}, 20),
    "embed": ("/embed", {"inputs": TEXT}, 20),
    "similarity": ("/v1/similarity", {"left": TEXT, "right": [TEXT, "A cat"]}, 10),
    "encode 64": ("/v1/encode", {"inputs": [TEXT] * 64, "encoding": "base64"}, 2),
    "encode 512": ("/v1/encode", {"inputs": [TEXT] * 512, "encoding": "base64"}, 1),
}
REPEATS = 60


async def measure(repeats: int = REPEATS) -> dict[str, tuple[float, int]]:
    """Return the microseconds and the Python calls of each kind of request, here."""
    from service.door.door import Door
    from service.pipeline.replica import Replica
    from service.shapes.work import Result
    from service.tables.settings import Settings

    replica = await Replica.start(Settings(threads=1, device="cpu"), "front-1")

    run = replica.batcher._launch

    async def launch(lane: int, works: Sequence[Any], threads: int) -> Sequence[Any]:
        if works[0].outputs.tokens:  # the canary, whose answer is known
            return await run(lane, works, threads)
        return [Result(np.zeros(384, dtype=np.float32)) for _ in works]

    replica.batcher._launch = launch

    async def scrape(openmetrics: bool) -> bytes:
        return b""

    door = Door(replica, scrape)
    took = {}
    for name, (path, asked, count) in REQUESTS.items():
        body = json.dumps(asked).encode()
        least = float("inf")
        for _ in range(repeats):
            start = time.thread_time()
            for _ in range(count):
                await _answer(door, path, body)
            least = min(least, (time.thread_time() - start) / count)
        took[name] = least * 1e6, await _count_calls(door, path, body)
    await replica.close()
    return took


async def _count_calls(door: Any, path: str, body: bytes) -> int:
    """Count the calls of a request during which no timer ran: the least of a few."""
    return min([await _count_once(door, path, body) for _ in range(9)])


async def _count_once(door: Any, path: str, body: bytes) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename != __file__

    sys.setprofile(note)
    await _answer(door, path, body)
    sys.setprofile(None)
    return calls


async def _answer(door: Any, path: str, body: bytes) -> None:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", b"%d" % len(body)))
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await door(scope, receive, send)
    if sent[0]["status"] != 200:
        raise RuntimeError(sent[1]["body"].decode())


def main() -> None:
    """Measure both trees in turns, and print what each takes and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="the folder of another checkout with .venv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(uvloop.run(measure())))
        return
    here = Path(__file__).resolve().parent.parent
    trees = [*([options.against.resolve()] if options.against else []), here]
    rounds = [[_run(tree) for tree in trees] for _ in range(options.rounds)]
    for name in REQUESTS:
        figures = [
            [min(each[i][name][j] for each in rounds) for j in (0, 1)] for i in range(len(trees))
        ]
        line = "  ".join(f"{took:9.1f} us {calls:6,} calls" for took, calls in figures)
        print(f"{name:12} {line}  {figures[-1][0] / figures[0][0]:.3f}")


def _run(tree: Path) -> dict[str, list[float]]:
    command = [tree / ".venv/bin/python", __file__, "--once"]
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    took: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return took


if __name__ == "__main__":
    main()
