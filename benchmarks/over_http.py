"""Encodings per second as a user gets them: Headlight over HTTP next to other servers, in one run.

    python benchmarks/over_http.py [--rounds 5] [--seconds 1.2] [--servers ..] [--workloads ..]

Each server runs as its makers start it, with its own number of threads, on the bundled model. In
each round every server in turn gets every workload, the same texts as the others, and none of them
twice; the others are stopped meanwhile. The load comes from this process, on the same cores.

Prints medians over the rounds with least and most, and what Headlight is to each of the others;
writes them with every turn, the processor and the versions as JSON. With five servers that takes
some nine minutes of two cores. The first run makes the peers' environments under build/peers/.
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop
from served import machine
from served.engine import MATCHES, Engine
from served.load import Answers, Closed, Failed, Open, Request, prepared, written
from served.machine import CORES
from served.processes import busy_seconds
from served.servers import (
    BARE,
    BUILT,
    OURS,
    PEERS,
    ROOT,
    SERVERS,
    Absent,
    Running,
    Server,
    export,
    install,
)
from served.table import Turn, cosine, document, markdown, noise, quantile, rows, summary
from served.texts import CAPACITY, POISSON, WORKLOADS, Texts, Workload, sized, tokens_of

from service.engine.weights import BUNDLED_MODEL, locate_model

LEAD_SECONDS = 0.3  # of a turn's own load, before what counts
LOAD = 0.6  # of what the slower of ours and the bare server takes, in the open loop
OPEN_TURNS = 2  # of the open loop, as long as so many others: few requests come in one
# Of whose versions the result tells
PACKAGES = ("headlight", "ray", "torch", "numpy", "tokenizers")
THEIRS = (
    *("onnxruntime", "starlette", "uvicorn", "infinity-emb", "optimum-onnx", "fastapi"),
    *("sentence-transformers", "transformers", "litserve", "tokenizers", "numpy"),
)


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
        """Send a second of the mix; a proxy set up anew behind its first answer loses some."""
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

    def ask(
        self, running: Running, load: Workload, seed: str, seconds: float, lead: float = 0.0
    ) -> Answers:
        """Send a workload for so long, which counts, and before that for `lead` seconds."""
        ahead = int(load.ahead * (lead + seconds)) + 1
        requests = self.requests(running.server, load, f"{seed}, {load.name}", ahead)

        async def run() -> Answers:
            if load.connections:
                return await Closed(running.port, requests, load.connections).run(seconds, lead)
            return await Open(running.port, requests, self.rate, seed).run(seconds, lead)

        return uvloop.run(run())

    def pace(self) -> None:
        """Set the open loop's rate by what the slower of ours and the bare server does."""
        able = []
        for name in self.running.keys() & {OURS, BARE}:
            running = self.running[name]
            running.resume()
            self.ask(running, CAPACITY, "warm", running.server.warm_seconds)
            answers = self.ask(running, CAPACITY, "pace", 2 * self.seconds)
            able.append(len(answers.milliseconds) / answers.seconds)
            running.pause()
        self.rate = LOAD * min(able, default=10.0)

    def visit(self, number: int, running: Running, loads: list[Workload]) -> dict[str, Answers]:
        """Let one server go on for a round's workloads; return its answers by workload."""
        name, answers = running.server.name, dict[str, Answers]()
        running.resume()
        try:
            with self.reporting(f"{name}, round {number}"):
                self.ask(running, CAPACITY, f"warm {number}", running.server.warm_seconds)
            for load in loads:
                with self.reporting(f"{name}, {load.name}, round {number}"):
                    answers[load.name] = self.measured(number, load, running)
        finally:
            running.pause()
        return answers

    def measured(self, number: int, load: Workload, running: Running) -> Answers:
        """Return one turn's answers, and keep its figures."""
        seconds = self.seconds * (1 if load.connections else OPEN_TURNS)
        running.forget_peak()
        here, wall = time.process_time(), time.perf_counter()
        everyone, own = busy_seconds(), running.cpu_seconds()
        answers = None
        try:
            answers = self.ask(running, load, str(number), seconds, LEAD_SECONDS)
        finally:
            if answers is None or answers.missing:
                running.settle()  # the next turn is not to pay for what this one left
        used = running.cpu_seconds() - own
        others = busy_seconds() - everyone - used - (time.process_time() - here)
        wall = time.perf_counter() - wall
        if not answers.milliseconds:
            raise Failed("no answer in time")
        self.turns.append(
            Turn(
                round=number,
                workload=load.name,
                server=running.server.name,
                sentences=answers.rate,
                p50=quantile(answers.milliseconds, 0.5),
                p99=quantile(answers.milliseconds, 0.99),
                cpu_ms=used * 1000 / answers.sentences,
                peak_mib=running.peak_mib(),
                cosine=None,
                missing=answers.missing,
                generator=answers.generator_seconds / answers.seconds,
                others=max(0.0, others) / wall / CORES,
            )
        )
        return answers

    def round(self, number: int, loads: list[Workload], engine: Engine | None) -> None:
        """Give every server in turn every workload, another first each time; then in process."""
        every = list(self.running.values())
        first, answers = number % max(1, len(every)), dict[str, dict[str, Answers]]()
        for running in every[first:] + every[:first]:
            its = [each for each in loads if running.server.takes(each)]
            answers[running.server.name] = self.visit(number, running, its)
        self.compare(number, answers)
        for load in loads:
            if engine and load.name in MATCHES:
                self.turns.append(engine.turn(number, load.name, self.seconds))

    def compare(self, number: int, answers: dict[str, dict[str, Answers]]) -> None:
        """Say of a round's turns whether their answers are ours."""
        ours = answers.get(OURS, {})
        for place, turn in enumerate(self.turns):
            load = turn.workload
            if turn.round == number and load in ours:
                kept = answers[turn.server][load].kept
                self.turns[place] = replace(turn, cosine=cosine(kept, ours[load].kept))


def conditions(bench: Bench, rounds: int) -> dict[str, Any]:
    """Return what was measured, on what."""
    lists = sorted({PEERS / f"{each.needs}.txt" for each in SERVERS.values() if each.file})
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": machine.commit(),
        "processor": machine.processor(),
        "versions": machine.versions(PACKAGES) | {"peers": machine.pinned(lists, THEIRS)},
        "rounds": rounds,
        "seconds": bench.seconds,
        "open_loop_requests_a_second": round(bench.rate, 1),
        "absent": bench.absent,
    }


def main() -> None:
    """Install, start, measure round by round, stop; the figures so far are kept after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.2, help="of each turn")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--torch-index", default="", help="another wheel index for torch")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "over_http.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended
    begun, busy = time.monotonic(), machine.busy()
    BUILT.mkdir(parents=True, exist_ok=True)
    folder = locate_model(BUNDLED_MODEL).folder
    export(folder)
    bench = Bench(options.seconds, sized(tokens_of(folder)))
    with ExitStack() as stack:
        engine = stack.enter_context(Engine.started()) if "headlight" in options.servers else None
        bench.start([SERVERS[name] for name in options.servers], options.torch_index, stack)
        if not bench.running:
            raise SystemExit("no server started")
        print(f"all started, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        if "poisson" in options.workloads:
            bench.pace()
        facts = conditions(bench, options.rounds) | {"load_averages_at_the_start": busy}
        for number in range(options.rounds):
            bench.round(number, [WORKLOADS[name] for name in options.workloads], engine)
            facts["minutes"] = round((time.monotonic() - begun) / 60, 1)
            every = rows(bench.turns, OURS, POISSON.name)
            options.out.write_text(document(facts, bench.turns, every))
            passed = f"{facts['minutes']} minutes"
            print(f"round {number + 1} of {options.rounds}, {passed}", file=sys.stderr, flush=True)
    print("\n\n".join([markdown(every), summary(every, OURS), noise(bench.turns)]))


if __name__ == "__main__":
    main()
