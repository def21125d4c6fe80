"""What MKL_CBWR costs: the same batches under each value, in turns.

    python benchmarks/strict.py [VALUE ...]

One process a value, since MKL reads it once. A rate is of the fastest pass of a round, in
processor time on one thread and by the clock on all, so that a neighbour who takes a core now and
then is left out. `none` is an environment without the variable.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time

VALUES = ["none", "AUTO,STRICT", "AVX2,STRICT", "AVX512,STRICT", "COMPATIBLE"]
ROUNDS, SECONDS = 5, 0.5
CHANCE = random.Random(0)
BATCHES = {
    "1 x 16 tokens": [16],
    "8 x 16 tokens": [16] * 8,
    "32 x 16 tokens": [16] * 32,
    "32 mixed": [min(256, 4 + int(CHANCE.expovariate(1 / 24))) for _ in range(32)],
    "8 x 256 tokens": [256] * 8,
}
CORES = len(os.sched_getaffinity(0))


def child() -> None:
    """Answer each line, a batch's name and the number of threads, with sentences per second."""
    import torch

    from model.packing import Sequence
    from service.engine.lanes import Lanes
    from service.engine.loading import accelerate, load
    from service.engine.weights import BUNDLED, locate
    from service.engine.work import Outputs, Work

    model = load(locate(BUNDLED), torch.device("cpu"), torch.float32)
    accelerate(model)
    lanes, wanted = Lanes(model, []), Outputs(pooling=model.pooling)
    for line in sys.stdin:
        name, threads = json.loads(line)
        clock = time.process_time if threads == 1 else time.perf_counter
        ids = [[CHANCE.randrange(1000, 30522) for _ in range(n)] for n in BATCHES[name]]
        works = [Work(Sequence(each), wanted) for each in ids]
        fastest, end = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            start = clock()
            lanes.run(works, threads)
            fastest = min(fastest, clock() - start)
        print(len(works) / fastest, flush=True)


def main(values: list[str]) -> None:
    """Print each value's best rate as a share of the first's, and the median of their rounds'."""
    processes = {
        value: subprocess.Popen(
            [sys.executable, __file__, "child"],
            env={**os.environ, "MKL_CBWR": "" if value == "none" else value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in values
    }

    def ask(value: str, name: str, threads: int) -> float:
        process = processes[value]
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([name, threads]) + "\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    print("| threads | batch | " + " | ".join(values) + " |")
    for threads in sorted({1, CORES}):
        for name in BATCHES:
            rates: dict[str, list[float]] = {value: [] for value in values}
            for turn in range(1 + ROUNDS):  # the first warms up
                for value in values[:: -1 if turn % 2 else 1]:
                    rate = ask(value, name, threads)
                    if turn:
                        rates[value].append(rate)
            print(f"| {threads} | {name} | " + " | ".join(cells(rates)) + " |", flush=True)
    for process in processes.values():
        process.communicate()


def cells(rates: dict[str, list[float]]) -> list[str]:
    """Return the first value's best rate, and the others' as shares of it."""
    first, *others = rates.values()
    shares = [
        (max(each) / max(first), statistics.median(a / b for a, b in zip(each, first, strict=True)))
        for each in others
    ]
    return [f"{max(first):.1f}", *(f"{best:.2f} ({median:.2f})" for best, median in shares)]


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main(sys.argv[1:] or VALUES)
