"""Encodings per second as a user gets them: Headlight over HTTP next to other servers, in one run.

    python benchmarks/over_http.py [--rounds 5] [--seconds 1.2] [--servers ..] [--workloads ..]

Each server runs as its makers start it, with its own number of threads, on the bundled model. In
each round every server in turn gets every workload, the same texts as the others, and none of them
twice; the others are stopped meanwhile. The load comes from this process, on the same cores.

Prints medians over the rounds with least and most, what Headlight is to each of the others, and
p50, p90 and p99 of a request; writes them with every turn, the processor and the versions as JSON.
With all servers that takes a quarter of an hour of two cores. The first run makes the peers'
environments under build/peers/.
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
from served.engine import MATCHES, ServedEngine
from served.load import Answers, Closed, Failed, Open, Request, prepare_requests, write_request
from served.machine import CORES
from served.processes import busy_seconds
from served.servers import (
    BARE,
    BUILT,
    OURS,
    PEERS,
    ROOT,
    SERVERS,
    PeerAbsent,
    RunningServer,
    Server,
    export_model,
    install,
)
from served.table import (
    Turn,
    describe_noise,
    format_both_ratios,
    format_table,
    quantile,
    smallest_cosine,
    summarise,
    to_json,
)
from served.texts import (
    CAPACITY,
    POISSON,
    WORKLOADS,
    Texts,
    Workload,
    make_counter,
    words_with_tokens,
)

from service.files.weights import BUNDLED_MODEL, locate_model

LEAD_SECONDS = 0.3  # of a turn's own load, before what counts
LOAD = 0.6  # of what the slower of ours and the bare server takes, in the open loop
OPEN_TURNS = 2  # of the open loop, as long as so many others: few requests come in one
# Of whose versions the result tells
THEIRS = (
    *("onnxruntime", "openvino", "nncf", "starlette", "uvicorn", "infinity-emb"),
    *("optimum-onnx", "fastapi"),
    *("sentence-transformers", "transformers", "litserve", "tokenizers", "numpy"),
)


@dataclass
class Bench:
    """The servers that run, and what was measured."""

    seconds: float
    sizes: dict[str, int]  # word -> its tokens
    running: dict[str, RunningServer] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    rate: float = 0.0  # requests a second of the open loop

    def start(self, servers: list[Server], index: str, stack: ExitStack) -> None:
        """Start servers together, then stop each where it stands; what fails is reported."""
        started = []
        for server in servers:
            with self.report_failure(server.name):
                install(server, index)
                started.append(RunningServer.start(server))
                stack.callback(started[-1].stop_all)
        for running in started:
            with self.report_failure(running.server.name):
                running.wait_until_ready()
                self.warm(running)
                self.running[running.server.name] = running
            running.pause()

    @contextmanager
    def report_failure(self, what: str) -> Iterator[None]:
        """Keep a server's failure, which is a result too."""
        try:
            yield
        except (PeerAbsent, Failed, OSError, TimeoutError) as error:
            self.absent[what] = str(error)
            print(f"{what}: {error}", file=sys.stderr)

    def warm(self, running: RunningServer, tries: int = 3) -> None:
        """Send a second of the mix; a proxy set up anew behind its first answer loses some."""
        running.settle()
        try:
            self.send_workload(running, CAPACITY, f"start {tries}", 1.0)
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
            return len(every), write_request(server.path, server.body(every))

        return prepare_requests(make, ahead)

    def send_workload(
        self, running: RunningServer, load: Workload, seed: str, seconds: float, lead: float = 0.0
    ) -> Answers:
        """Send a workload for so long, which counts, and before that for `lead` seconds."""
        ahead = int(load.ahead * (lead + seconds)) + 1
        requests = self.requests(running.server, load, f"{seed}, {load.name}", ahead)

        async def run() -> Answers:
            if load.connections:
                return await Closed(running.port, requests, load.connections).run(seconds, lead)
            return await Open(running.port, requests, self.rate, seed).run(seconds, lead)

        return uvloop.run(run())

    def set_open_rate(self) -> None:
        """Set the open loop's rate by what the slower of ours and the bare server does."""
        able = []
        for name in self.running.keys() & {OURS, BARE}:
            running = self.running[name]
            running.resume()
            self.send_workload(running, CAPACITY, "warm", running.server.warm_seconds)
            answers = self.send_workload(running, CAPACITY, "pace", 2 * self.seconds)
            able.append(len(answers.milliseconds) / answers.seconds)
            running.pause()
        self.rate = LOAD * min(able, default=10.0)

    def run_server(
        self, number: int, running: RunningServer, loads: list[Workload]
    ) -> dict[str, Answers]:
        """Let one server go on for a round's workloads; return its answers by workload."""
        name, answers = running.server.name, dict[str, Answers]()
        running.resume()
        try:
            with self.report_failure(f"{name}, round {number}"):
                self.send_workload(running, CAPACITY, f"warm {number}", running.server.warm_seconds)
            for load in loads:
                with self.report_failure(f"{name}, {load.name}, round {number}"):
                    answers[load.name] = self.measure_turn(number, load, running)
        finally:
            running.pause()
        return answers

    def measure_turn(self, number: int, load: Workload, running: RunningServer) -> Answers:
        """Return one turn's answers, and keep its figures."""
        seconds = self.seconds * (1 if load.connections else OPEN_TURNS)
        running.forget_peak()
        here, wall = time.process_time(), time.perf_counter()
        everyone, own = busy_seconds(), running.cpu_seconds()
        answers = None
        try:
            answers = self.send_workload(running, load, str(number), seconds, LEAD_SECONDS)
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
                p90=quantile(answers.milliseconds, 0.9),
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

    def run_round(self, number: int, loads: list[Workload], engine: ServedEngine | None) -> None:
        """Give every server in turn every workload, another first each time; then in process."""
        every = list(self.running.values())
        first, answers = number % max(1, len(every)), dict[str, dict[str, Answers]]()
        for running in every[first:] + every[:first]:
            its = [each for each in loads if running.server.is_measured_with(each)]
            answers[running.server.name] = self.run_server(number, running, its)
        self.compare(number, answers)
        for load in loads:
            if engine and load.name in MATCHES:
                self.turns.append(engine.run_turn(number, load.name, self.seconds))

    def compare(self, number: int, answers: dict[str, dict[str, Answers]]) -> None:
        """Say of a round's turns whether their answers are ours."""
        ours = answers.get(OURS, {})
        for place, turn in enumerate(self.turns):
            load = turn.workload
            if turn.round == number and load in ours:
                kept = answers[turn.server][load].kept
                self.turns[place] = replace(turn, cosine=smallest_cosine(kept, ours[load].kept))


def describe_conditions(bench: Bench, rounds: int) -> dict[str, Any]:
    """Return what was measured, on what."""
    lists = sorted({PEERS / f"{each.needs}.txt" for each in SERVERS.values() if each.file})
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": machine.current_commit(),
        "processor": machine.describe_processor(),
        "versions": machine.package_versions() | {"peers": machine.pinned_versions(lists, THEIRS)},
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
    begun, busy = time.monotonic(), machine.load_averages()
    BUILT.mkdir(parents=True, exist_ok=True)
    folder = locate_model(BUNDLED_MODEL).folder
    export_model(folder)
    bench = Bench(options.seconds, words_with_tokens(make_counter(folder)))
    with ExitStack() as stack:
        engine = (
            stack.enter_context(ServedEngine.start()) if "headlight" in options.servers else None
        )
        bench.start([SERVERS[name] for name in options.servers], options.torch_index, stack)
        if not bench.running:
            raise SystemExit("no server started")
        print(f"all started, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        if "poisson" in options.workloads:
            bench.set_open_rate()
        facts = describe_conditions(bench, options.rounds) | {"load_averages_at_the_start": busy}
        for number in range(options.rounds):
            bench.run_round(number, [WORKLOADS[name] for name in options.workloads], engine)
            facts["minutes"] = round((time.monotonic() - begun) / 60, 1)
            every = summarise(bench.turns, OURS, POISSON.name)
            options.out.write_text(to_json(facts, bench.turns, every))
            passed = f"{facts['minutes']} minutes"
            print(f"round {number + 1} of {options.rounds}, {passed}", file=sys.stderr, flush=True)
    ratios = format_both_ratios(bench.turns, POISSON.name)
    print("\n\n".join([format_table(every), ratios, describe_noise(bench.turns)]))


if __name__ == "__main__":
    main()
