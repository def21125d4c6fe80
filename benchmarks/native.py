"""What the compiled pass gives: the same lanes with it and with the loop, in turns.

    python benchmarks/native.py

One process, one model; every workload runs one way and then the other, round after round, each
round beginning with the way that the one before ended with. Token ids are drawn anew for every
batch and with them its lengths, so that no batch is repeated; only the lone sentence always has 16
tokens. `busy` is a Python thread that computes 30 % of the time, as a replica's event loop does.
"""

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from model.packing import Sequence
from service.engine.lanes import Lanes
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import BUNDLED_MODEL, locate_model
from service.shapes.work import Outputs, Work

CORES = len(os.sched_getaffinity(0))
ROUNDS, SECONDS = 7, 1.2
BUSY_SECONDS, IDLE_SECONDS = 0.003, 0.007
VOCABULARY = 30522
WAYS = ("loop", "native")


@dataclass(frozen=True)
class Workload:
    """A batch after the other in each of some lanes.

    Args:
        lengths: draws one batch's, in tokens.
        threads: cores of each lane.
        busy: whether another Python thread computes.
    """

    lengths: Callable[[random.Random], list[int]]
    lanes: int
    threads: int
    busy: bool = False


def draw_lone(chance: random.Random) -> list[int]:
    """Return one sentence of 16 tokens."""
    return [16]


def draw_short(chance: random.Random) -> list[int]:
    """Return eight sentences."""
    return [chance.randint(4, 26) for _ in range(8)]


def draw_mixed(chance: random.Random) -> list[int]:
    """Return thirty-two texts, few of them long."""
    return [min(256, 4 + int(chance.expovariate(1 / 24))) for _ in range(32)]


WORKLOADS = {
    "1 x 16 tokens, 1 thread": Workload(draw_lone, 1, 1),
    f"1 x 16 tokens, {CORES} threads": Workload(draw_lone, 1, CORES),
    f"1 x 16 tokens, {CORES} threads, busy": Workload(draw_lone, 1, CORES, busy=True),
    f"8 short, {CORES} lanes": Workload(draw_short, CORES, 1),
    f"8 short, {CORES} lanes, busy": Workload(draw_short, CORES, 1, busy=True),
    f"32 mixed, {CORES} threads": Workload(draw_mixed, 1, CORES),
    f"32 mixed, {CORES} lanes, busy": Workload(draw_mixed, CORES, 1, busy=True),
}


def make_batch(lengths: list[int], chance: random.Random, wanted: Outputs) -> list[Work]:
    """Return sequences of random tokens, of each of which one vector is wanted."""
    return [
        Work(Sequence([chance.randrange(1000, VOCABULARY) for _ in range(length)]), wanted)
        for length in lengths
    ]


def measure_rate(
    lanes: Lanes, pools: list[ThreadPoolExecutor], workload: Workload, seed: int
) -> float:
    """Return sentences per second of one workload; drawing the batches is not counted."""
    wanted = Outputs(pooling=lanes.model.pooling)

    def work(lane: int) -> float:
        chance, done, spent = random.Random(f"{seed} {lane}"), 0, 0.0
        while spent < SECONDS:
            works = [make_batch(workload.lengths(chance), chance, wanted) for _ in range(4)]
            start = time.perf_counter()
            for each in works:
                lanes.run_batch(each, workload.threads)
                done += len(each)
            spent += time.perf_counter() - start
        return done / spent

    with busy_interpreter() if workload.busy else nullcontext():
        running = [pool.submit(work, i) for i, pool in enumerate(pools[: workload.lanes])]
        return sum(each.result() for each in running)


@contextmanager
def busy_interpreter() -> Iterator[None]:
    """Yield a thread that holds the interpreter 30 % of the time."""
    over = threading.Event()

    def compute() -> None:
        while not over.wait(IDLE_SECONDS):
            until = time.perf_counter() + BUSY_SECONDS
            while time.perf_counter() < until:
                pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure_rates(
    lanes: Lanes, pools: list[ThreadPoolExecutor]
) -> dict[str, dict[str, list[float]]]:
    """Return sentences per second by workload and way, one a round."""
    encoder, native = lanes.model.encoder, lanes.model.encoder.native
    rates = {name: {way: list[float]() for way in WAYS} for name in WORKLOADS}
    for turn in range(1 + ROUNDS):  # the first warms up
        for name, workload in WORKLOADS.items():
            for way in WAYS[:: -1 if turn % 2 else 1]:
                encoder.native = native if way == "native" else None
                found = measure_rate(lanes, pools, workload, seed=2 * turn + (way == "native"))
                if turn:
                    rates[name][way].append(found)
    return rates


def print_table(rates: dict[str, dict[str, list[float]]]) -> None:
    """Print a table for benchmarks/results.md; the ratio is the median of the rounds' own."""
    print("| sentences/s | loop | compiled | ratio |\n|---|---|---|---|")
    for name, ways in rates.items():
        cells = [
            f"{statistics.median(rate):.0f} ({min(rate):.0f} to {max(rate):.0f})"
            for rate in ways.values()
        ]
        ratios = [b / a for a, b in zip(*ways.values(), strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {' | '.join(cells)} | {spread} |")


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    pools = [
        ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,))
        for _ in range(CORES)
    ]
    model = load_model(locate_model(BUNDLED_MODEL), torch.device("cpu"), torch.float32)
    use_compiled_pass(model)
    if model.encoder.native is None:
        raise SystemExit("there is no compiled pass here to be measured")
    print(f"{CORES} cores, load average {os.getloadavg()[0]:.2f} at the start, {ROUNDS} rounds\n")
    try:
        print_table(measure_rates(Lanes(model, pools), pools))
    finally:
        for pool in pools:
            pool.shutdown()


if __name__ == "__main__":
    main()
