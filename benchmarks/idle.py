"""What a service costs at its start and without requests: seconds, memory, processor time.

    python benchmarks/idle.py [CHECKOUT ...] [--seconds 60]
    python benchmarks/idle.py --running PID    # a service that runs, such as `ray start --block`

Each CHECKOUT, without any this one, has an environment of its own. Starts one replica of each on
the bundled model, answers one request, lets it settle, then reads /proc before and after so many
seconds in which nothing is asked; all services in the same seconds, so that they compare. Shared
pages are counted by their share (PSS): services that run side by side share some with each other.

The parts of a start follow from when its processes began: the checks until gcs_server, Ray until
ServeController, which it starts before it is asked to, Ray Serve until ServeReplica, and from there
on the replica. `highest` is the share with what was resident at once at most, as at the start.
"""

import argparse
import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from served.processes import (
    TICKS,
    busy_seconds,
    cpu_seconds,
    free_port,
    parse_kilobytes,
    peak_mib,
    read_proc,
)

HERE = Path(__file__).parent.parent
SETTLE_SECONDS = 25.0  # Ray's first reports, and what a start leaves to be cleared up
STOP_SECONDS = 60.0
# Processes that end one part of a start and begin the next, and the parts
STARTED = "gcs_server", "ServeController", "ServeReplica"
PARTS = "checks", "Ray", "Ray Serve", "replica"


@dataclass(frozen=True)
class Cost:
    """What one process has taken so far, or between two readings."""

    resident: float  # MiB
    proportional: float  # MiB
    highest: float  # MiB
    cpu: float  # seconds
    wakes: int  # how often a thread of it was put on a core

    def since(self, before: "Cost") -> "Cost":
        """Return memory as it is now, work since then."""
        cpu, wakes = self.cpu - before.cpu, self.wakes - before.wakes
        return Cost(self.resident, self.proportional, self.highest, cpu, wakes)


@contextmanager
def serve_idle(checkout: Path) -> Iterator[tuple[int, float]]:
    """Yield the process of a service, and the seconds until it answered; stopped at the end."""
    port, begun = free_port(), time.monotonic()
    command = [".venv/bin/headlight", "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise SystemExit(f"the service of {checkout} did not start")
        url = f"http://127.0.0.1:{port}/v1/encode"
        httpx.post(url, json={"inputs": ["yes"]}, timeout=60).raise_for_status()
        yield process.pid, time.monotonic() - begun
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_SECONDS)


def process_tree(root: int) -> dict[int, str]:
    """Return the names of a process and of all below it, by id."""
    children = defaultdict[int, list[int]](list)
    for path in Path("/proc").glob("[0-9]*"):
        fields = read_proc(int(path.name), "stat").rpartition(b")")[2].split()
        if fields and fields[0] != b"Z":
            children[int(fields[1])].append(int(path.name))
    names, waiting = dict[int, str](), [root]
    while waiting:
        names[pid] = process_title(pid := waiting.pop())
        waiting += children[pid]
    return names


def process_title(pid: int) -> str:
    """Return what a process is, in a word: Ray's title for it, or its program or script."""
    words = read_proc(pid, "cmdline").split(b"\0")
    if words[0].startswith(b"ray::"):
        return words[0].decode().split()[0].partition(".")[0]  # without what it does just now
    module = words[words.index(b"-m") + 1] if b"-m" in words[:3] else b""
    script = next((word for word in words[:4] if word.endswith((b".py", b"/headlight"))), words[0])
    return module.decode() or Path(script.decode()).name


def list_parts(root: int, end: float) -> Iterator[tuple[str, float]]:
    """Yield the parts of a start with their seconds.

    Args:
        end: seconds from the start of process `root` until it answered.
    """
    titles = {
        name.rpartition("::")[2].partition(":")[0]: pid for pid, name in process_tree(root).items()
    }
    began = [began_at(titles[name]) - began_at(root) for name in STARTED]
    for part, start, stop in zip(PARTS, [0.0, *began], [*began, end], strict=True):
        yield part, stop - start


def began_at(pid: int) -> float:
    """Return when a process began, in seconds since the machine did."""
    return int(read_proc(pid, "stat").rpartition(b")")[2].split()[19]) / TICKS


def read_cost(pid: int) -> Cost:
    """Return what a process has taken so far; nothing where it has gone."""
    sizes = parse_kilobytes(read_proc(pid, "smaps_rollup"))
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return Cost(
        sizes.get("Rss", 0) / 1024,
        sizes.get("Pss", 0) / 1024,
        peak_mib(pid),
        cpu_seconds(pid),
        sum(count_switches(thread) for thread in threads),
    )


def count_switches(status: Path) -> int:
    """Return how often a thread gave up its core to wait, each of which ends in a wake-up."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def measure_idle(roots: list[int], seconds: float) -> list[dict[str, list[Cost]]]:
    """Return for each service what its processes took while nothing was asked, by name."""
    families = [process_tree(root) for root in roots]
    before = {pid: read_cost(pid) for names in families for pid in names}
    time.sleep(seconds)
    found = [defaultdict[str, list[Cost]](list) for _ in families]
    for by_name, names in zip(found, families, strict=True):
        for pid, name in names.items():
            by_name[name].append(read_cost(pid).since(before[pid]))
    return [dict(by_name) for by_name in found]


def print_table(costs: dict[str, list[Cost]], seconds: float) -> None:
    """Print a table for people, and for docs/operations.md."""
    print(
        "| process | resident, MiB | share, MiB | highest, MiB | % of a core | wake-ups/s |\n"
        "|---|---|---|---|---|---|"
    )
    rows = {
        f"{name} x {len(each)}" if len(each) > 1 else name: each for name, each in costs.items()
    }
    rows = dict(sorted(rows.items(), key=lambda row: -sum(each.proportional for each in row[1])))
    everything = [each for row in rows.values() for each in row]
    for name, each in {**rows, f"all {len(everything)}": everything}.items():
        total = Counter[str]()
        for one in each:
            total.update(vars(one))
        cpu, wakes = 100 * total["cpu"] / seconds, total["wakes"] / seconds
        print(
            f"| {name} | {total['resident']:.0f} | {total['proportional']:.0f}"
            f" | {total['highest']:.0f} | {cpu:.2f} | {wakes:.0f} |"
        )


def main() -> None:
    """Start, wait, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--running", type=int, metavar="PID", help="the first of its processes")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        checkouts = [] if arguments.running else arguments.checkouts
        started = [stack.enter_context(serve_idle(checkout)) for checkout in checkouts]
        parts = [[*list_parts(*each)] for each in started]
        roots = [arguments.running] if arguments.running else [root for root, _ in started]
        time.sleep(SETTLE_SECONDS)
        busy, begun = busy_seconds(), time.monotonic()
        costs = measure_idle(roots, arguments.seconds)
        took = time.monotonic() - begun
        busy = busy_seconds() - busy
    used = sum(one.cpu for each in costs for row in each.values() for one in row)
    others = (busy - used) / took / (os.cpu_count() or 1)
    print(
        f"{os.cpu_count()} cores, load {load:.2f} before; {took:.0f} s, of which others took"
        f" {others:.0%} of the machine"
    )
    for checkout, (_, start), by_part in zip(checkouts, started, parts, strict=True):
        text = ", ".join(f"{part} {seconds:.1f}" for part, seconds in by_part)
        print(f"{checkout}: answered {start:.1f} s after its start ({text})")
    for each in costs:
        print()
        print_table(each, took)


if __name__ == "__main__":
    main()
