"""What it costs that HAProxy chooses the model, and that a replica sends a large body on.

    python benchmarks/choice.py [--rounds 5] [--quick] > benchmarks/choice.json

The choice: HAProxy on the configuration that a service gives it, with one model, with two but
without the rules that choose, and with them, in turns, at 1 and 64 connections. Behind it a second
HAProxy stands in for a replica and answers at once. The processor time of a request is HAProxy's
own; requests a second are those of the client, which takes most of a core itself.

The pass-on: `headlight serve` with the bundled model under two names; a body of 1.5 MiB whose
`model` comes last, which the first one's replica sends on, next to the same body asked of the
second one at its prefix.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from served import machine
from served.processes import cpu_seconds, free_port, parse_kilobytes, read_proc

from service.cluster import choose_model, haproxy

CONNECTIONS = (1, 64)
SIZES = (1 << 10, 100 << 10)  # of a body whose `model` comes last
SECONDS = 2.0  # of a measurement
LARGE = 3 << 19
PIECE = 200_000  # characters of a text
PASSES = 20  # of a round
FIRST, SECOND = "all-MiniLM-L6-v2", "second"
MODEL = {"one model": FIRST, "two, no rules": FIRST, "two, chosen": SECOND}

HEAD = """\
global
    maxconn 1024
    tune.bufsize 131072
    nbthread 1
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 5s
"""
STAND_IN = """\
frontend replica
    bind 127.0.0.1:{port}
    http-request wait-for-body time 10s if METH_POST
    acl asks path {path}
    http-request return status 200 content-type application/json string '{names}' if asks
    http-request return status 200 content-type application/json string '{{}}'
"""
ONE = """\
frontend http_frontend
    bind 127.0.0.1:{port}
    acl is_first path_beg /
    acl is_first path /
    use_backend first if is_first
    default_backend default_backend
backend default_backend
backend first
    server a 127.0.0.1:{first} check
"""
TWO = """\
frontend http_frontend
    bind 127.0.0.1:{port}
    acl is_second path_beg /second/
    acl is_second path /second
    acl is_first path_beg /
    acl is_first path /
    use_backend second if is_second
    use_backend first if is_first
    default_backend default_backend
backend default_backend
backend second
    server b 127.0.0.1:{second} check
backend first
    server a 127.0.0.1:{first} check
"""


@contextmanager
def run_haproxy(config: Path, port: int) -> Iterator[int]:
    """Run HAProxy on a configuration; yields its process once it takes connections."""
    command = [haproxy.find_haproxy(), "-db", "-f", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_answered(f"http://127.0.0.1:{port}/", 30)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def wait_until_answered(url: str, seconds: float) -> None:
    """Wait until something answers there."""
    end = time.monotonic() + seconds
    while True:
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def write_body(size: int, model: str) -> bytes:
    """Return a body of so many bytes, the model's name last."""
    texts, rest = [], size - len(model) - 40
    while rest > 0:
        texts.append("a" * min(rest, PIECE))
        rest -= PIECE
    return json.dumps({"inputs": texts, "model": model}).encode()


async def load_front(port: int, body: bytes, connections: int, seconds: float) -> int:
    """Ask again and again on some connections; return how many were answered."""
    sent = f"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sent, end, count = sent + body, time.monotonic() + seconds, 0

    async def ask() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            count += 1
        writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    return count


def measure_choice(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return, for each size and number of connections, what each way takes in the middle."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fronts = start_fronts(stack, folder)
        rows = []
        for size in SIZES:
            for connections in CONNECTIONS:
                took: dict[str, list[tuple[float, float]]] = {way: [] for way in fronts}
                for turn in range(rounds):
                    order = list(fronts) if turn % 2 else list(fronts)[::-1]
                    for way in order:
                        port, pid = fronts[way]
                        body, before = write_body(size, MODEL[way]), cpu_seconds(pid)
                        begun = time.monotonic()
                        count = asyncio.run(load_front(port, body, connections, seconds))
                        rate = count / (time.monotonic() - begun)
                        took[way].append((rate, (cpu_seconds(pid) - before) / count * 1e6))
                rows.append({"bytes": size, "connections": connections} | _summarise(took))
    return rows


def _summarise(took: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return medians of each way, and of the quotients within a round to the first way."""
    first = next(iter(took))
    return {
        way: {
            "requests a second": round(statistics.median(rate for rate, _ in figures)),
            "haproxy us a request": round(statistics.median(cpu for _, cpu in figures), 1),
            "rate next to one model": round(
                statistics.median(a[0] / b[0] for a, b in zip(figures, took[first], strict=True)), 3
            ),
        }
        for way, figures in took.items()
    }


def start_fronts(stack: ExitStack, folder: Path) -> dict[str, tuple[int, int]]:
    """Start the stand-ins and an HAProxy for each way; return its port and process by the way."""
    behind = {}
    for name in (FIRST, SECOND):
        behind[name] = port = free_port()
        config = folder / f"{name}.cfg"
        names = json.dumps({kind: [name] if kind == "names" else [] for kind in choose_model.SAID})
        config.write_text(HEAD + STAND_IN.format(port=port, names=names, path=choose_model.NAMES))
        stack.enter_context(run_haproxy(config, port))
    fronts = {}
    for way, text in zip(MODEL, (ONE, TWO, TWO), strict=True):
        here = folder / str(len(fronts))  # HAProxy takes no comma in it
        here.mkdir()
        port = free_port()
        config = HEAD + text.format(port=port, first=behind[FIRST], second=behind[SECOND])
        rules = haproxy.choose_model(config, here) if way == "two, chosen" else ()
        flag, file = here / "stopping", here / "haproxy.cfg"
        flag.touch()
        file.write_text(haproxy.rewrite(config, flag, haproxy.max_descriptors(), choose=rules))
        fronts[way] = port, stack.enter_context(run_haproxy(file, port))
    return fronts


def measure_pass_on(rounds: int, passes: int) -> dict[str, Any]:
    """Return milliseconds of a large body sent on and asked directly, and the memory it takes."""
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / "models.yaml", free_port()
        models = [{"model": FIRST}, {"model": FIRST, "served_model_name": SECOND}]
        file.write_text(json.dumps({"models": models}))
        command = [sys.executable, "-m", "service.cli", "serve", "--config", str(file)]
        process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE)
        try:
            if process.stdout is None or not process.stdout.readline():
                raise SystemExit("the service did not start")
            return _pass_on(f"http://127.0.0.1:{port}", rounds, passes, process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _pass_on(url: str, rounds: int, passes: int, command: int) -> dict[str, Any]:
    body, took = write_body(LARGE, SECOND), dict[str, list[float]]()
    paths = {"direct": f"/{SECOND}/v1/encode", "sent on": "/v1/encode"}
    root = find_replica(command, "headlight")
    grown = dict[str, list[float]]()
    with httpx.Client(base_url=url, timeout=60) as client:
        for turn in range(rounds):
            for way, path in sorted(paths.items(), reverse=turn % 2 == 0):
                Path(f"/proc/{root}/clear_refs").write_text("5")  # forget its peak
                before = parse_kilobytes(read_proc(root, "status"))["VmRSS"]
                for _ in range(passes):
                    begun = time.monotonic()
                    answer = client.post(
                        path, content=body, headers={"content-type": "application/json"}
                    )
                    took.setdefault(way, []).append((time.monotonic() - begun) * 1000)
                    if answer.json()["model"] != SECOND:
                        raise RuntimeError(answer.text)
                peak = parse_kilobytes(read_proc(root, "status"))["VmHWM"]
                grown.setdefault(way, []).append((peak - before) / 1024)
    return {
        way: {
            "median ms": round(statistics.median(took[way]), 1),
            "first model's replica, peak MiB above": round(max(grown[way]), 1),
        }
        for way in paths
    }


def find_replica(command: int, application: str) -> int:
    """Return the process of an application's one replica, below a service's command."""
    title = f"ray::ServeReplica:{application}:".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and read_proc(int(path.name), "cmdline").startswith(title):
            pid = int(path.name)
            while pid > 1 and pid != command:
                pid = int(read_proc(pid, "stat").rpartition(b")")[2].split()[1])
            if pid == command:
                return int(path.name)
    raise SystemExit("the service has no such replica")


def main() -> None:
    """Measure, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the choice alone, a second in all")
    options = parser.parse_args()
    loads = machine.load_averages()
    told: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": machine.current_commit(),
        "processor": machine.describe_processor(),
        "load_averages_at_the_start": loads,
        "rounds": options.rounds,
        "choice": measure_choice(options.rounds, 0.1 if options.quick else SECONDS),
    }
    if not options.quick:
        told["a body of 1.5 MiB"] = measure_pass_on(options.rounds, PASSES)
    told["load_averages_at_the_end"] = machine.load_averages()
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
