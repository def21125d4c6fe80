"""What a change of the forward pass is worth: batches through the lane of two checkouts, in turns.

    python benchmarks/two_passes.py OTHER [--rounds 15] [--threads 1 2]

OTHER is a second checkout with an environment of its own. Each is a process that waits on its pipe
while the other works; in every round both get the same texts, another first each time, and the
first round warms up. Prints the median time of a batch, texts in and vectors out, and the ratio of
this checkout to the other: the median over the rounds, and the second lowest and highest.
"""

import argparse
import os
import random
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from piped import Batches, Piped, answer, started

HERE = Path(__file__).parent.parent
CASES = ((1, 9), (1, 14), (1, 24), (4, 14), (10, 14), (32, 14), (8, 100))  # texts, words of each
WORDS = "the of fox house river green old small light north paper wind".split()
WORK = 250  # some ms of one case a round


def work(threads: int) -> None:
    """Be the process."""
    from in_process import ours

    answer(ours(threads))


def command(checkout: Path, threads: int) -> tuple[list[str], dict[str, str]]:
    """Return what starts a checkout's own encoder, and its environment; piped.py is this one's."""
    path = os.pathsep.join(map(str, (checkout, checkout / "benchmarks", HERE / "benchmarks")))
    line = [str(checkout / ".venv/bin/python"), __file__, "--work", str(threads)]
    return line, {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def timed(process: Piped, batches: Batches) -> float:
    """Return the milliseconds of a batch, the median of all but the first."""
    return statistics.median(process.encode(batches)[0][1:]) * 1000


def drawn(count: int, words: int, seed: int) -> Batches:
    """Return batches of so many texts, no batch twice."""
    chance = random.Random(f"{count} {words} {seed}")
    batches = max(4, min(40, WORK // max(1, count * words // 4)))
    return [
        [" ".join(chance.choices(WORDS, k=words)) for _ in range(count)] for _ in range(batches)
    ]


def compare(checkouts: list[Path], threads: int, rounds: int) -> None:
    """Print a row for each case."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(*command(checkout, threads))) for checkout in checkouts
        ]
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
