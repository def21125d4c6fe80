"""Encodings per second in process: Headlight next to sentence-transformers, in the same run.

Text in, pooled vector out, tokenizing included; ours through the Lanes that serve. Each engine
lives in a process of its own and waits on its pipe while the other works, so that neither's
threads disturb the other's. They take turns; the figure is the median over the rounds. A
measurement during which other processes took more than a little of the machine is repeated.
"""

import argparse
import asyncio
import importlib.metadata
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

TEXTS = Path(__file__).parent.parent / "tests" / "model" / "texts.txt"
CORES = len(os.sched_getaffinity(0))
TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's CPU clocks, per second
LIMIT = 512  # tokens of the longest sequence, for both engines
WARM_UPS, ROUNDS = 1, 7
SECONDS = 2.0  # one workload of one engine in one round
PEER = "sentence-transformers"
CLOSE = 1e-5  # largest difference between the engines' vectors
QUIET = 0.05  # share of the machine that other processes may take during a measurement
PATIENCE = 300.0  # seconds in all to wait for that, then noise is accepted and reported

Texts = list[str]
Encode = Callable[[Texts], Any]  # a batch of texts -> their vectors, (texts, width)


def make_workloads() -> dict[str, list[Texts]]:
    """Return batches of texts by the name of what they are; each call takes the next batch."""
    chance = random.Random(7)
    sentences, essay = (part.splitlines() for part in TEXTS.read_text("utf-8").split("\n\n"))
    words = " ".join(essay).split()

    def passage(count: int) -> str:
        start = chance.randrange(len(words))
        return " ".join((words * 3)[start : start + count])

    def mixed() -> int:
        return min(110, max(6, round(chance.lognormvariate(2.9, 0.65))))

    return {
        "1 sentence": [[text] for text in sentences],
        "32 mixed texts": [[passage(mixed()) for _ in range(32)] for _ in range(5)],
        "8 x 512 tokens": [[passage(700) for _ in range(8)] for _ in range(2)],
    }


def make_our_encoder(threads: int) -> Encode:
    """Return an encoder of our tokenizer and Lanes, one batch at a time."""
    import numpy as np
    import torch

    from model.packing import Sequence
    from service.engine.lanes import Lanes
    from service.files.loading import load_model, use_compiled_pass
    from service.files.weights import BUNDLED_MODEL, locate_model
    from service.shapes.work import Outputs, Work

    loop = asyncio.new_event_loop()
    place, cpu = locate_model(BUNDLED_MODEL), torch.device("cpu")
    loading = partial(load_model, place, cpu, torch.float32)
    lanes = loop.run_until_complete(Lanes.start(loading, threads))
    use_compiled_pass(lanes.model)
    wanted = Outputs(pooling=lanes.model.pooling)

    def encode(texts: Texts) -> Any:
        cut = lanes.model.tokenizer([(text,) for text in texts], LIMIT, "right")
        works = [Work(Sequence(tokens.token_ids, tokens.types), wanted) for tokens in cut]
        done: Any = loop.run_until_complete(lanes.run_in_lane(0, works, threads))
        return np.stack([one.pooled for one in done])

    return encode


def make_their_encoder(threads: int) -> Encode:
    """Return sentence-transformers' encoder, as its users call it."""
    import torch
    from sentence_transformers import SentenceTransformer

    from service.files.weights import BUNDLED_MODEL, locate_model

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(locate_model(BUNDLED_MODEL)[0]), device="cpu")
    model.max_seq_length = LIMIT
    return lambda texts: model.encode(texts, show_progress_bar=False)


ENGINES = {"headlight": make_our_encoder, PEER: make_their_encoder}


def serve_engine(engine: str, threads: int) -> None:
    """Be one engine: print a vector or more of each workload, then, for each named, its speed."""
    encode, every = ENGINES[engine](threads), make_workloads()
    write_json_line({name: encode(batches[0]).tolist() for name, batches in every.items()})
    for line in sys.stdin:
        batches = every[line.strip()]
        calls, start = 0, time.perf_counter()
        while calls < 2 or time.perf_counter() - start < SECONDS:
            encode(batches[calls % len(batches)])
            calls += 1
        write_json_line(calls * len(batches[0]) / (time.perf_counter() - start))


def write_json_line(value: object) -> None:
    """Print one line of JSON to the process that started this one."""
    print(json.dumps(value), flush=True)


@dataclass
class Engine:
    """One engine in a process of its own."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, name: str, threads: int) -> "Engine":
        """Start a process that loads, encodes each workload once, and waits."""
        command = [sys.executable, __file__, "--engine", name, "--threads", str(threads)]
        pipe, void = subprocess.PIPE, subprocess.DEVNULL
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=void, text=True))

    def read_json_line(self) -> Any:
        """Return the next thing that the engine says."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"{self.process.args!r} ended; run it by itself to see why")
        return json.loads(line)

    def rate(self, workload: str) -> tuple[float, float]:
        """Return texts per second of one workload, and what others took of the machine."""
        wall, everyone, own = time.perf_counter(), busy_seconds(), self.cpu_seconds()
        print(workload, file=self.process.stdin, flush=True)
        rate = self.read_json_line()
        others = (busy_seconds() - everyone) - (self.cpu_seconds() - own)
        return rate, max(0.0, others / CORES / (time.perf_counter() - wall))

    def cpu_seconds(self) -> float:
        """Return CPU seconds of the process, ever."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def busy_seconds() -> float:
    """Return CPU seconds of everyone, ever."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split(None, 9)[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS  # without idle and waiting for a disk


def measure(threads: int) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Return texts per second by workload and engine, one a round; what others took during each."""
    engines = {name: Engine.start(name, threads) for name in ENGINES}
    every, patience = make_workloads(), time.monotonic() + PATIENCE
    rates: dict[str, dict[str, list[float]]] = {
        workload: {name: [] for name in ENGINES} for workload in every
    }
    noise = []
    try:
        check_same_vectors(*(engine.read_json_line() for engine in engines.values()))
        for turn, workload in itertools.product(range(WARM_UPS + ROUNDS), every):
            for name in order_engines(turn):
                rate, others = engines[name].rate(workload)
                while others > QUIET and turn >= WARM_UPS and time.monotonic() < patience:
                    time.sleep(1)
                    rate, others = engines[name].rate(workload)
                if turn >= WARM_UPS:
                    rates[workload][name].append(rate)
                    noise.append(others)
        return rates, noise
    finally:
        for engine in engines.values():
            engine.process.kill()
            engine.process.wait()


def order_engines(turn: int) -> list[str]:
    """Return the engines, each first in every other round."""
    return list(ENGINES)[:: -1 if turn % 2 else 1]


def check_same_vectors(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Refuse engines that give different vectors."""
    for name, vectors in one.items():
        pairs = zip(sum(vectors, []), sum(other[name], []), strict=True)
        distance = max(abs(a - b) for a, b in pairs)
        if distance > CLOSE:
            raise SystemExit(f"{name}: the vectors differ by {distance}")


def print_table(rates: dict[str, dict[str, list[float]]]) -> None:
    """Print a table for people, and for benchmarks/results.md."""
    print(f"| texts/s, in process | headlight | {PEER} | ratio |\n|---|---|---|---|")
    for name, by_engine in rates.items():
        middle = [statistics.median(by_engine[engine]) for engine in ENGINES]
        cells = [
            f"{statistics.median(rate):.1f} ({min(rate):.1f} to {max(rate):.1f})"
            for rate in by_engine.values()
        ]
        print(f"| {name} | {' | '.join(cells)} | {middle[0] / middle[1]:.2f} |")


def describe_run() -> str:
    """Return the conditions of a run in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if "model name" in line), "")
    widest = next((flag for flag in ("avx512f", "avx2") if flag in " ".join(lines)), "")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", PEER)]
    parts = [f"{name or platform.machine()} {widest}", f"{CORES} cores", *versions]
    return ", ".join([*parts, f"load average {os.getloadavg()[0]:.2f} at the start"])


def main() -> None:
    """Measure and print, or be one of the engines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=CORES)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        serve_engine(arguments.engine, arguments.threads)
        return
    conditions = describe_run()
    rates, noise = measure(arguments.threads)
    print(f"{conditions}, {arguments.threads} threads; median of {ROUNDS} rounds (least to most);")
    print(f"others took {statistics.mean(noise):.0%} of the machine, {max(noise):.0%} at most\n")
    print_table(rates)


if __name__ == "__main__":
    main()
