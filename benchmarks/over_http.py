"""Encodings per second as a user gets them: Headlight over HTTP beside other servers, in one run.

    python benchmarks/over_http.py [--rounds 5] [--seconds 4] [--servers ..] [--workloads ..]

Each server runs as its makers start it, with its own number of threads, on the bundled model. In
each round every workload goes to every server in turn, the same texts to all, and none of them
twice; the others are stopped meanwhile. The load comes from this process, on the same cores.

Prints a table of medians over the rounds and writes it, with every turn, as JSON. The first run
makes the peers' environments under build/peers/.
"""

import argparse
import importlib.metadata
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop
from served.engine import MATCHES, Engine
from served.load import Answers, Closed, Failed, Open, Request, prepared, written
from served.processes import busy_seconds
from served.servers import (
    BARE,
    BUILT,
    OURS,
    ROOT,
    SERVERS,
    Absent,
    Running,
    Server,
    export,
    install,
)
from served.table import Turn, cosine, document, markdown, noise, quantile, rows
from served.texts import BATCHES, CAPACITY, POISSON, WORKLOADS, Texts, Workload, sized, tokens_of

from service.engine.weights import BUNDLED, locate

# What was stopped catches up first: an HAProxy that missed a check takes our replica for dead, and
# for up to 4 s sends requests by Ray's Python proxy, which does a third as many
WARM_SECONDS = 5.0
LOAD = 0.6  # of what the slower of ours and the bare server takes, in the open loop
CORES = len(os.sched_getaffinity(0))


@dataclass
class Bench:
    """The servers that run, and what was measured."""

    seconds: float
    sizes: dict[str, int]  # word -> its tokens
    running: dict[str, Running] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    rate: float = 0.0  # requests a second of the open loop

    def start(self, servers: list[Server], index: str, stack: ExitStack) -> None:
        """Start servers together, then stop each where it stands; what fails is reported."""
        started = []
        for server in servers:
            with self.reporting(server.name):
                install(server, index)
                started.append(Running.start(server))
                stack.callback(started[-1].stop)
        for running in started:
            with self.reporting(running.server.name):
                running.wait()
                self.warm(running)
                self.running[running.server.name] = running
            running.pause()

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Keep a server's failure, which is a result too."""
        try:
            yield
        except (Absent, Failed, OSError, TimeoutError) as error:
            self.absent[what] = str(error)
            print(f"{what}: {error}", file=sys.stderr)

    def warm(self, running: Running, tries: int = 3) -> None:
        """A second of the mix; a proxy that is set up anew behind its first answer loses some."""
        running.settle()
        try:
            self.ask(running, CAPACITY, f"start {tries}", 1.0)
        except Failed:
            if tries == 1:
                raise
            self.warm(running, tries - 1)
        running.settle()

    def requests(self, server: Server, load: Workload, seed: str, ahead: int) -> Iterator[Request]:
        """Yield requests of a workload as a server takes them; the same texts for the same seed."""
        texts = Texts(self.sizes, random.Random(seed))

        def make() -> tuple[int, bytes]:
            every = load.request(texts)
            return len(every), written(server.path, server.body(every))

        return prepared(make, ahead)

    def ask(self, running: Running, load: Workload, seed: str, seconds: float) -> Answers:
        """Send a workload for so long."""
        ahead = int(load.ahead * seconds) + 1
        requests = self.requests(running.server, load, f"{seed}, {load.name}", ahead)

        async def run() -> Answers:
            if load.connections:
                return await Closed(running.port, requests, load.connections).run(seconds)
            return await Open(running.port, requests, self.rate, seed=len(self.turns)).run(seconds)

        return uvloop.run(run())

    def pace(self) -> None:
        """Set the open loop's rate by what the slower of ours and the bare server does."""
        able = []
        for name in self.running.keys() & {OURS, BARE}:
            running = self.running[name]
            running.resume()
            self.ask(running, CAPACITY, "warm", WARM_SECONDS)
            answers = self.ask(running, CAPACITY, "pace", self.seconds)
            able.append(len(answers.milliseconds) / answers.seconds)
            running.pause()
        self.rate = LOAD * min(able, default=10.0)

    def turn(self, number: int, load: Workload, running: Running) -> tuple[Turn, Answers]:
        """Measure one server with one workload in one round, and stop it."""
        running.resume()
        clean = False
        try:
            warm = load if load.connections else CAPACITY
            self.ask(running, warm, f"warm {number}", WARM_SECONDS)
            turn, answers = self.measured(number, load, running)
            clean = not answers.missing
            return turn, answers
        finally:
            if not clean:
                running.settle()
            running.pause()

    def measured(self, number: int, load: Workload, running: Running) -> tuple[Turn, Answers]:
        """Return the part of a turn that counts."""
        running.forget_peak()
        here, wall = time.process_time(), time.perf_counter()
        everyone, own = busy_seconds(), running.cpu_seconds()
        answers = self.ask(running, load, str(number), self.seconds)
        used = running.cpu_seconds() - own
        others = busy_seconds() - everyone - used - (time.process_time() - here)
        wall = time.perf_counter() - wall
        if not answers.milliseconds:
            raise Failed("no answer in time")
        turn = Turn(
            round=number,
            workload=load.name,
            server=running.server.name,
            sentences=answers.sentences / answers.seconds,
            p50=quantile(answers.milliseconds, 0.5),
            p99=quantile(answers.milliseconds, 0.99),
            cpu_ms=used * 1000 / answers.sentences,
            peak_mib=running.peak_mib(),
            cosine=None,
            missing=answers.missing,
            generator=answers.generator_seconds / answers.seconds,
            others=max(0.0, others) / wall / CORES,
        )
        return turn, answers

    def round(self, number: int, load: Workload, engine: Engine | None) -> None:
        """One workload to every server in turn, another first each time; then in process."""
        names = [
            name
            for name, running in self.running.items()
            if load is BATCHES or not running.server.batches_only
        ]
        first = number % max(1, len(names))
        done = {}
        for name in names[first:] + names[:first]:
            with self.reporting(f"{name}, {load.name}, round {number}"):
                done[name] = self.turn(number, load, self.running[name])
        for name in names:
            if name in done:
                turn, answers = done[name]
                ours = done[OURS][1].kept if OURS in done else {}
                self.turns.append(replace(turn, cosine=cosine(answers.kept, ours)))
        if engine and load.name in MATCHES:
            self.turns.append(engine.turn(number, load.name, self.seconds))


def conditions(bench: Bench, rounds: int) -> dict[str, Any]:
    """Return what was measured, on what."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if "model name" in line), "")
    widest = next((flag for flag in ("avx512f", "avx2") if flag in " ".join(lines)), "")
    commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip(),
        "machine": f"{name or platform.machine()} {widest}, {CORES} cores",
        "torch": importlib.metadata.version("torch"),
        "rounds": rounds,
        "seconds": bench.seconds,
        "open_loop_requests_a_second": round(bench.rate, 1),
        "load_average_at_the_start": round(os.getloadavg()[0], 2),
        "absent": bench.absent,
    }


def main() -> None:
    """Install, start, measure round by round, stop; the figures so far are kept after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--torch-index", default="", help="another wheel index for torch")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "over_http.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended
    BUILT.mkdir(parents=True, exist_ok=True)
    folder = locate(BUNDLED).folder
    export(folder)
    bench = Bench(options.seconds, sized(tokens_of(folder)))
    with ExitStack() as stack:
        engine = stack.enter_context(Engine.started()) if "headlight" in options.servers else None
        bench.start([SERVERS[name] for name in options.servers], options.torch_index, stack)
        if not bench.running:
            raise SystemExit("no server started")
        if "poisson" in options.workloads:
            bench.pace()
        facts = conditions(bench, options.rounds)
        for number in range(options.rounds):
            for name in options.workloads:
                bench.round(number, WORKLOADS[name], engine)
            every = rows(bench.turns, OURS, POISSON.name)
            options.out.write_text(document(facts, bench.turns, every))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"{markdown(every)}\n\n{noise(bench.turns)}")


if __name__ == "__main__":
    main()
