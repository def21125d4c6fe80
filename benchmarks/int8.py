"""Encodings per second in process, float32 and int8: Headlight's next to ONNX Runtime's.

    python benchmarks/int8.py PYTHON FOLDER FOLDER8 [--rounds 7]

PYTHON has onnxruntime and tokenizers. FOLDER is laid out by peers/export.py; FOLDER8 is a copy
whose onnx/model.onnx went through onnxruntime.quantization.quantize_dynamic(weight_type=QInt8),
which also needs the package onnx. Rounds, batches and threads are those of beside_onnx.py. The
cosines are to the vectors of Headlight's float32, over the first batch of every turn.
"""

import argparse
import random
import statistics
import sys
from contextlib import ExitStack

import numpy as np
from beside_onnx import WORKLOADS, Engine, started, work
from served.servers import PEERS
from served.texts import Texts, sized, tokens_of

from service.engine.weights import BUNDLED, locate

PLAIN, OURS = "float32", "int8"
THEIRS = ("ONNX Runtime float32", "ONNX Runtime int8")


def measure(engines: dict[str, Engine], rounds: int) -> dict[str, list[float]]:
    """Return the cosines of each engine's vectors to PLAIN's, of the first batch of each turn."""
    sizes = sized(tokens_of(locate(BUNDLED).folder))
    cosines: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(1 + rounds):
        for name, (count, make) in WORKLOADS.items():
            texts = Texts(sizes, random.Random(f"{number} {name}"))
            batches = [make(texts) for _ in range(count if number else 1)]
            order = list(engines)
            first, seen = number % len(order), {}
            for which in order[first:] + order[:first]:
                rate, vectors = engines[which].encode(batches)
                seen[which] = np.array(vectors)
                if number:
                    engines[which].rates[name].append(rate)
            for which, rows in seen.items():
                lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(seen[PLAIN], axis=1)
                cosines[which] += ((rows * seen[PLAIN]).sum(1) / lengths).tolist()
    return cosines


def report(engines: dict[str, Engine], cosines: dict[str, list[float]]) -> None:
    """Print a table for benchmarks/results.md; a ratio is the median of the rounds' own."""
    print(f"| texts/s, in process | {' | '.join(engines)} | int8 to float32 | to {THEIRS[1]} |")
    print("|---" * (len(engines) + 3) + "|")
    for name in WORKLOADS:
        rates = {which: engine.rates[name] for which, engine in engines.items()}
        cells = [f"{statistics.median(rate):.1f}" for rate in rates.values()]
        for other in (PLAIN, THEIRS[1]):
            ratios = [a / b for a, b in zip(rates[OURS], rates[other], strict=True)]
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            cells.append(f"{statistics.median(ratios):.2f} {spread}")
        print(f"| {name} | {' | '.join(cells)} |")
    for which, found in cosines.items():
        print(f"{which}: cosine worst {min(found):.4f}, mean {np.mean(found):.5f}, n {len(found)}")


def main() -> None:
    """Measure and print, or be one of our engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("onnx", nargs="*", metavar="PYTHON FOLDER FOLDER8")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", choices=(PLAIN, OURS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        work(arguments.engine)
        return
    python, *folders = arguments.onnx
    graph = str(PEERS / "graph.py")
    commands = {name: [sys.executable, __file__, "--engine", name] for name in (PLAIN, OURS)}
    commands |= {
        name: [python, graph, folder] for name, folder in zip(THEIRS, folders, strict=True)
    }
    with ExitStack() as stack:
        engines = {name: stack.enter_context(started(run)) for name, run in commands.items()}
        cosines = measure(engines, arguments.rounds)
        report(engines, cosines)


if __name__ == "__main__":
    main()
