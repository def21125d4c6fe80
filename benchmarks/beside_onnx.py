"""Encodings per second in process: Headlight next to ONNX Runtime, in the same run.

    python benchmarks/beside_onnx.py [--rounds 7]

Text in, vector out, tokenizing included, both with a thread a core. Each engine is a process that
waits on its pipe while another works. In a round every engine gets the same batches, of texts that
never come again, another first each time; the first round warms up. "sorted" runs a batch's texts
by length, eight at a time: it is the form to compare with where lengths differ. ONNX Runtime's
environment and its graph are those of `make bench-http`; they are made where they are missing.
"""

import argparse
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import piped
from piped import Batches, PipedEncoder
from served.processes import busy_seconds, cpu_seconds
from served.servers import BUILT, MODEL, PEERS, SERVERS, export_model, install
from served.texts import Texts, make_counter, words_with_tokens

from service.files.weights import BUNDLED_MODEL, locate_model

CORES = len(os.sched_getaffinity(0))
CLOSE = 1e-5  # largest difference between the engines' vectors
OURS = "Headlight"
GRAPH = [str(BUILT / "starlette_onnx" / "bin" / "python"), str(PEERS / "graph.py"), str(MODEL)]
ENGINES = {
    OURS: [sys.executable, __file__, "--engine"],
    "ONNX Runtime": GRAPH,
    "ONNX Runtime, sorted": [*GRAPH, "--sorted", "8"],
}
# Each with how many batches a round has, a second's worth
WORKLOADS: dict[str, tuple[int, Callable[[Texts], list[str]]]] = {
    "1 x 16 tokens": (100, lambda texts: [texts.unseen(16)]),
    "32 x 16 tokens": (8, lambda texts: [texts.unseen(16) for _ in range(32)]),
    "32 mixed texts": (4, lambda texts: [texts.mixed() for _ in range(32)]),
    "8 x 512 tokens": (1, lambda texts: [texts.long() for _ in range(8)]),
}


@dataclass
class Engine:
    """An encoder with its rates by workload, and what others took meanwhile."""

    piped: PipedEncoder
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WORKLOADS})
    noise: list[float] = field(default_factory=list)

    def encode(self, batches: Batches) -> tuple[float, list[list[float]]]:
        """Return texts per second over some batches, and the first one's vectors."""
        pid = self.piped.process.pid
        wall, everyone, own = perf_counter(), busy_seconds(), cpu_seconds(pid)
        seconds, vectors = self.piped.encode(batches)
        others = busy_seconds() - everyone - (cpu_seconds(pid) - own)
        self.noise.append(max(0.0, others / CORES / (perf_counter() - wall)))
        return sum(map(len, batches)) / sum(seconds), vectors


@contextmanager
def start_engine(command: list[str]) -> Iterator[Engine]:
    """Yield an engine that has loaded its model; it ends with the block."""
    with piped.start_encoder(command) as process:
        yield Engine(process)


def check_same_vectors(one: list[list[float]], other: list[list[float]]) -> None:
    """Refuse engines that give different vectors."""
    pairs = zip(sum(one, []), sum(other, []), strict=True)
    if (distance := max(abs(a - b) for a, b in pairs)) > CLOSE:
        raise SystemExit(f"the vectors differ by {distance}")


def measure(engines: dict[str, Engine], rounds: int) -> None:
    """Measure all workloads in turns."""
    sizes = words_with_tokens(make_counter(locate_model(BUNDLED_MODEL).folder))
    for number in range(1 + rounds):
        for name, (count, make) in WORKLOADS.items():
            texts = Texts(sizes, random.Random(f"{number} {name}"))
            batches = [make(texts) for _ in range(count if number else 1)]
            order = list(engines.values())
            first = number % len(order)
            vectors = []
            for engine in order[first:] + order[:first]:
                rate, seen = engine.encode(batches)
                vectors.append(seen)
                if number:
                    engine.rates[name].append(rate)
            for other in vectors[1:]:
                check_same_vectors(vectors[0], other)


def print_table(engines: dict[str, Engine]) -> None:
    """Print a table for benchmarks/results.md; a ratio is the median of the rounds' own."""
    ours = engines[OURS].rates
    print(f"| texts/s, in process | {' | '.join(engines)} | to ONNX Runtime | to sorted |")
    print("|---" * (len(engines) + 3) + "|")
    for name in WORKLOADS:
        rates = [engine.rates[name] for engine in engines.values()]
        cells = [f"{statistics.median(r):.1f} ({min(r):.1f} to {max(r):.1f})" for r in rates]
        for other in rates[1:]:
            ratios = [mine / its for mine, its in zip(ours[name], other, strict=True)]
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            cells.append(f"{statistics.median(ratios):.2f} {spread}")
        print(f"| {name} | {' | '.join(cells)} |")


def serve_ours() -> None:
    """Be our engine."""
    from in_process import make_our_encoder

    piped.answer_lines(make_our_encoder(CORES))


def main() -> None:
    """Measure and print, or be our engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        serve_ours()
        return
    BUILT.mkdir(parents=True, exist_ok=True)
    install(SERVERS["onnx"], "")
    export_model(Path(locate_model(BUNDLED_MODEL).folder))
    with ExitStack() as stack:
        engines = {name: stack.enter_context(start_engine(each)) for name, each in ENGINES.items()}
        measure(engines, arguments.rounds)
    noise = [share for engine in engines.values() for share in engine.noise]
    print(f"{CORES} cores, {arguments.rounds} rounds; others took {statistics.mean(noise):.0%} of")
    print(f"the machine, {max(noise):.0%} at most\n")
    print_table(engines)


if __name__ == "__main__":
    main()
