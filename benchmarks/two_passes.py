"""What a change of the forward pass is worth: batches through the lane of two checkouts, in turns.

    python benchmarks/two_passes.py OTHER [--rounds 15] [--threads 1 2]

OTHER is a second checkout with an environment of its own. Each is a process that waits on its pipe
while the other works; in every round both get the same texts, another first each time, and the
first round warms up. Prints the median time of a batch, texts in and vectors out, and the ratio of
this checkout to the other: the median over the rounds, and the second lowest and highest.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent.parent
CASES = ((1, 9), (1, 14), (1, 24), (4, 14), (10, 14), (32, 14), (8, 100))  # texts, words of each
WORDS = "the of fox house river green old small light north paper wind".split()
WORK = 250  # some ms of one case a round

Batches = list[list[str]]


def work(threads: int) -> None:
    """Be the process: time each batch of each line, and print the median of all but the first."""
    from in_process import ours

    encode = ours(threads)
    print("ready", flush=True)
    for line in sys.stdin:
        took = []
        for batch in json.loads(line):
            start = time.perf_counter()
            encode(batch)
            took.append(time.perf_counter() - start)
        print(statistics.median(took[1:]) * 1000, flush=True)


def started(checkout: Path, threads: int) -> "subprocess.Popen[str]":
    """Start a checkout's own encoder, with this file's loop around it."""
    path = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])
    command = [str(checkout / ".venv/bin/python"), __file__, "--work", str(threads)]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    if not process.stdout or not process.stdout.readline():
        raise SystemExit(f"{checkout}: the encoder did not load")
    return process


def timed(process: "subprocess.Popen[str]", batches: Batches) -> float:
    """Return the milliseconds of a batch."""
    assert process.stdin and process.stdout
    print(json.dumps(batches), file=process.stdin, flush=True)
    return float(process.stdout.readline())


def drawn(count: int, words: int, seed: int) -> Batches:
    """Return batches of so many texts, no batch twice."""
    chance = random.Random(f"{count} {words} {seed}")
    batches = max(4, min(40, WORK // max(1, count * words // 4)))
    return [
        [" ".join(chance.choices(WORDS, k=words)) for _ in range(count)] for _ in range(batches)
    ]


def compare(checkouts: list[Path], threads: int, rounds: int) -> None:
    """Print a row for each case."""
    processes = [started(checkout, threads) for checkout in checkouts]
    try:
        for case in CASES:
            turns: list[list[float]] = [[], []]
            for number in range(rounds + 1):
                for one in (number % 2, 1 - number % 2):
                    turns[one].append(timed(processes[one], drawn(*case, number)))
            own, other = (turn[1:] for turn in turns)
            ratios = sorted(mine / its for mine, its in zip(own, other, strict=True))
            times = " | ".join(f"{statistics.median(turn):.2f}" for turn in (other, own))
            spread = f"{ratios[1]:.2f} to {ratios[-2]:.2f}"
            ratio = f"{statistics.median(ratios):.2f} ({spread})"
            print(f"| {threads} | {case[0]} x {case[1]} words | {times} | {ratio} |", flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Compare this checkout with another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print("| threads | batch | other, ms | this, ms | ratio |\n|---|---|---|---|---|")
    for threads in options.threads:
        compare([HERE, options.other.resolve()], threads, options.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(int(sys.argv[2]))
    else:
        main()
