"""How many replicas and threads suit so many cores, and a GPU: a simulation by measured costs.

    python benchmarks/cores.py                the tables, by the costs of benchmarks/cores.json
    python benchmarks/cores.py --measure      measure the costs here first, and write them there
    python benchmarks/cores.py --publish      write the tables into benchmarks/results.md

What a step costs is measured: the event loop and HAProxy by a service under load, a pass by its
tokens, on one core and on two, alone and next to another (served/costs.py). What a service of one
and of two replicas, of one and of two threads, then does here is measured and simulated.

Beyond two cores nothing is measured. The simulation (served/simulation.py) knows nothing of memory
that many cores share, of several processors in one machine, or of a slower clock when all cores
work; what three threads or more make of one sequence follows from one and two by Amdahl's law. A
GPU is a number that you state: short texts a second.
"""

import argparse
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from publish import replace_between_marks
from served import machine
from served.simulation import BULK, PROXY_THREADS, SHORT, SimulatedOutcome, StepCosts, simulate

from service.fleet.policy import HIGH

COSTS, PAGE = (Path(__file__).parent / name for name in ("cores.json", "results.md"))
COMMAND = "benchmarks/cores.py"
MACHINES = {  # cores -> replicas, and threads of each
    4: ((1, 4), (2, 2), (4, 1)),
    16: ((1, 16), (4, 4), (8, 2), (16, 1)),
    64: ((4, 16), (8, 8), (16, 4), (32, 2), (64, 1)),
}
BATCH_TEXTS = 16  # connections a core that keep it busy
SHOWN_LENGTHS = (16, 128, 512)  # tokens of passes
GPU_RATES = (2_000, 10_000, 40_000)  # short texts a second
GPU_PASS = 1e-6  # seconds: nothing, so that the front alone is left
MIB = 1024**2
WEIGHTS = {  # parameters; bfloat16 is what `auto` takes on a GPU
    "MiniLM": 22_713_216,
    "BERT base": 109_482_240,
    "BERT large": 335_141_888,
}


def read_costs(told: dict[str, Any]) -> StepCosts:
    """Return the costs of a file's JSON."""
    return StepCosts(**told)


def simulate_saturated(
    costs: StepCosts, cores: int, replicas: int, threads: int
) -> SimulatedOutcome:
    """Return what short texts come to when there are always enough of them."""
    connections = BATCH_TEXTS * cores
    return simulate(costs, cores, replicas, threads, connections, requests=5 * connections)


def busiest_part(one: SimulatedOutcome) -> str:
    """Return what there is least of: the busiest part."""
    shares = {"cores": one.cores, "event loops": one.loop, "HAProxy": one.proxy}
    return max(shares, key=lambda name: shares[name])


def scaling_rate(costs: StepCosts, threads: int) -> float:
    """Return the short texts a second at which the autoscaler wants a second replica."""
    one = simulate_saturated(costs, 2 * threads + 2, 1, threads)  # cores enough
    return HIGH * one.rate / max(one.lanes, one.loop)


def plan_rows(costs: StepCosts, cores: int) -> Iterator[str]:
    """Yield a row for each way to divide a machine."""
    for replicas, threads in MACHINES[cores]:
        lone = simulate(costs, cores, replicas, threads, 1, requests=200)
        many = simulate_saturated(costs, cores, replicas, threads)
        bulk = simulate(costs, cores, replicas, threads, 2 * cores, BULK, requests=12 * cores)
        yield (
            f"| {cores} | {replicas} x {threads} | {lone.p50 * 1000:.1f} | {many.rate:,.0f}"
            f" | {many.p99 * 1000:.0f} | {bulk.rate:,.0f} | {many.cores:.0%} | {many.loop:.0%}"
            f" | {many.proxy:.0%} | {busiest_part(many)} | {scaling_rate(costs, threads):,.0f} |"
        )


PLAN_HEAD = (
    "| cores | replicas x threads | lone text, ms | short texts/s | p99, ms | mixed texts/s"
    " | cores busy | loops busy | HAProxy busy | fullest | one more from, texts/s |\n"
    + "|---" * 11
    + "|"
)


def front_rate(costs: StepCosts, texts: Sequence[int] = SHORT) -> float:
    """Return the texts a second that one replica's front carries to a model that is ready.

    Args:
        texts: of a request.
    """
    ready = [(1, GPU_PASS), (1_000_000, GPU_PASS)]
    costs = replace(costs, alone=ready, beside=ready, pair=ready)
    return simulate(costs, 8, 1, 1, 64, texts, requests=4000 // len(texts) + 300).rate


def proxy_rate(costs: StepCosts) -> float:
    """Return the requests a second that one HAProxy carries."""
    return PROXY_THREADS / costs.proxy[1]


def gpu_rows(costs: StepCosts) -> Iterator[str]:
    """Yield a row for each GPU, by the short texts a second that it does."""
    carried, bulk = front_rate(costs), front_rate(costs, BULK)
    for rate in GPU_RATES:
        replicas, scaled = math.ceil(rate / carried), math.ceil(rate / carried / HIGH)
        copies = " | ".join(
            f"{replicas * count * 2 / MIB / 1024:.1f}" for count in WEIGHTS.values()
        )
        proxies = math.ceil(rate / proxy_rate(costs))
        yield (
            f"| {rate:,} | {carried:,.0f} | {bulk:,.0f} | {replicas} | {scaled} | {copies}"
            f" | {replicas + proxies * PROXY_THREADS} | {proxies} |"
        )


GPU_HEAD = (
    "| the GPU does, texts/s | one front carries | of 32 a request | replicas | with the autoscaler"
    + "".join(f" | {name}, GiB" for name in WEIGHTS)
    + " | cores | HAProxies |\n"
    + "|---" * (7 + len(WEIGHTS))
    + "|"
)


def compare_with_measured(costs: StepCosts, rows: list[dict[str, Any]]) -> str:
    """Return how far off the simulated rates are from those that two cores measured.

    The simulation has as much of the two cores as others left.
    """
    off = []
    for row in rows:
        one = simulate(
            costs,
            2 * (1 - row["others"]),
            row["replicas"],
            row["threads"],
            row["connections"],
            SHORT if row["texts"] == 1 else BULK,
            requests=1500 if row["texts"] == 1 else 200,
        )
        off.append(abs(one.rate / row["rate"] - 1))
    return (
        f"Next to {len(rows)} measurements of one and two replicas on two cores, the simulated"
        f" texts/s are off by {statistics.median(off):.0%} in the middle, {max(off):.0%} at most."
    )


def step_rows(costs: StepCosts) -> Iterator[str]:
    """Yield what the steps take, and how many lanes that makes for one event loop."""
    lone, busy = (f"{1e6 * each:.0f}" for each in costs.loop)
    first, later = (f"{1e6 * each:.0f}" for each in costs.proxy)
    yield "| step | us |\n|---|---|"
    yield f"| event loop, a request of one text: under load, alone | {busy}, {lone} |"
    yield f"| event loop, a further text | {costs.text * 1e6:.0f} |"
    yield f"| HAProxy, a request: under load, alone | {later}, {first} |"
    for (tokens, one), (_, beside), (_, two) in zip(
        costs.alone, costs.beside, costs.pair, strict=True
    ):
        if tokens in SHOWN_LENGTHS:
            took = ", ".join(f"{1e6 * each:,.0f}" for each in (one, beside, two))
            step = f"a pass of {tokens} tokens: alone on one core, next to another, on two cores"
            yield f"| {step} | {took} |"
    yield f"\nOne event loop keeps {lanes_fed(costs):.1f} lanes busy with short texts."


def lanes_fed(costs: StepCosts) -> float:
    """Return how many lanes one event loop keeps busy with short texts, in batches of sixteen."""
    tokens = SHORT[0]
    return costs.pass_seconds(16 * tokens, 1, others=True) / 16 / costs.loop[1]


def write_page(told: dict[str, Any]) -> str:
    """Return everything that benchmarks/results.md has of the costs that were measured."""
    costs, cpu = read_costs(told["costs"]), told["processor"]
    facts = (
        f"Measured {told['date']}, commit {told['commit']}, {cpu['cores']} cores of an"
        f" {cpu['name']}; load averages at the start"
        f" {', '.join(map(str, told['load_averages_at_the_start']))}."
    )
    others = max(row["others"] for row in told["measured"])
    parts = [
        [facts, f"Others took {others:.0%} of the machine at most while a service was measured."],
        step_rows(costs),
        [PLAN_HEAD, *(row for cores in MACHINES for row in plan_rows(costs, cores))],
        [GPU_HEAD, *gpu_rows(costs)],
        [compare_with_measured(costs, told["measured"])],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    """Measure, if that is wanted; simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--costs", type=Path, default=COSTS, help="of another machine")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a service is ended
    if options.measure:
        from served import costs as here  # torch takes seconds

        facts = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": machine.current_commit(),
            "processor": machine.describe_processor(),
            "versions": machine.package_versions(),
            "load_averages_at_the_start": machine.load_averages(),
        }
        steps, rows = here.measure_all()
        facts |= {
            "load_averages_at_the_end": machine.load_averages(),
            "costs": steps,
            "measured": rows,
        }
        options.costs.write_text(json.dumps(facts, indent=1) + "\n")
    told = json.loads(options.costs.read_text())
    tables = write_page(told)
    print(tables)
    if options.publish:
        replace_between_marks(PAGE, tables, COMMAND)


if __name__ == "__main__":
    main()
