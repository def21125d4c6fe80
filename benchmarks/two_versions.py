"""What a change costs a short request: this checkout's service next to another's, in one run.

    python benchmarks/two_versions.py OTHER [--rounds 60] [--requests 40]

OTHER is a second checkout with an environment of its own. Starts one replica of each on the
bundled model, then asks them in turns, a block of requests each, over one connection; the other
is stopped meanwhile (SIGSTOP), since what a service does unasked is part of what it costs. Which
goes first changes from round to round. Prints each one's median, and the ratio of the two medians
of each round: its median and its quartiles.
"""

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from idle import family
from served.processes import tell

HERE = Path(__file__).parent.parent
WORDS = "a dog ate the food because it was hungry and the night was cold".split()
WARM_REQUESTS = 200
SETTLE_SECONDS = 0.3  # after a stop, for what was put off meanwhile


def started(checkout: Path, stack: ExitStack) -> tuple[httpx.Client, int]:
    """Return a client of a service started from a checkout, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [".venv/bin/headlight", "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE)
    stack.callback(process.wait, 60)
    stack.callback(process.send_signal, signal.SIGINT)
    if process.stdout is None or not process.stdout.readline():
        raise SystemExit(f"the service of {checkout} did not start")
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    return stack.enter_context(client), process.pid


@contextmanager
def stopped(root: int) -> Iterator[None]:
    """Yield all processes of a service stand still while the block runs."""
    pids = family(root)
    for pid in pids:
        tell(pid, signal.SIGSTOP)
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        for pid in pids:
            tell(pid, signal.SIGCONT)


def block(client: httpx.Client, count: int) -> float:
    """Return median milliseconds of requests, each a text like no other."""
    taken = []
    for _ in range(count):
        text = " ".join(random.choices(WORDS, k=9))
        begun = time.perf_counter()
        client.post("/v1/encode", json={"inputs": [text]}).raise_for_status()
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def main() -> None:
    """Start both, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=40)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        services = [started(checkout, stack) for checkout in (HERE, arguments.other)]
        for client, _ in services:
            block(client, WARM_REQUESTS)
        rounds = []
        for number in range(arguments.rounds):
            turn = [0, 1] if number % 2 else [1, 0]
            taken = {}
            for index in turn:
                (client, _), (_, other) = services[index], services[1 - index]
                with stopped(other):
                    taken[index] = block(client, arguments.requests)
            rounds.append((taken[0], taken[1]))
    here, there = (statistics.median(column) for column in zip(*rounds, strict=True))
    low, middle, high = statistics.quantiles([mine / its for mine, its in rounds], n=4)
    print(f"here {here:.2f} ms, there {there:.2f} ms")
    print(f"here / there: {middle:.3f} ({low:.3f} to {high:.3f}) in {len(rounds)} rounds")


if __name__ == "__main__":
    main()
