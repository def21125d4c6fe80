"""Writes the last run of `make bench-http` where its figures are read: results.md and README.md.

    python benchmarks/publish.py

Takes build/over_http.json, keeps it as benchmarks/over_http.json, and puts its tables between the
marks in both pages. tests/test_benchmarks.py holds the pages to the file.
"""

import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

from served.engine import ENGINE
from served.servers import HALF, OURS, ROOT
from served.table import CLOSE, Row, Turn, describe_noise, format_both_ratios, format_table
from served.texts import POISSON

RUN, KEPT = ROOT / "build" / "over_http.json", ROOT / "benchmarks" / "over_http.json"
RESULTS, README = ROOT / "benchmarks" / "results.md", ROOT / "README.md"
COMMAND, END = "make bench-http", "\n<!-- end -->"
FORMATS = "float32", "bfloat16", "int8"


def format_results(told: dict[str, Any]) -> str:
    """Return a run as results.md has it: what it ran on, its table, its ratios."""
    every = [Row(**each) for each in told["rows"]]
    turns = [Turn(**each) for each in told["turns"]]
    processor, load = told["processor"], told["load_averages_at_the_start"]
    family, model, _ = processor["family, model, stepping"]
    facts = [
        f"{told['date']}, commit {told['commit']}: {told['rounds']} rounds,"
        f" {told['minutes']} minutes with the start of all.",
        f"{processor['name']} (family {family}, model {model}), {processor['cores']} cores:",
        f"{', '.join(processor['isa'])}.",
        f"Load averages at the start {', '.join(map(str, load))}.",
        describe_noise(turns),
        *(f"Absent: {name}, {reason}." for name, reason in told["absent"].items()),
    ]
    ratios = format_both_ratios(turns, POISSON.name)
    return "\n\n".join(["\n".join(facts), format_table(every), ratios])


def format_readme(told: dict[str, Any]) -> str:
    """Return a run as README.md has it: of each number format ours and the best of the others."""
    rows = [Row(**each) for each in told["rows"] if each["server"] != ENGINE]
    closed = [row for row in rows if row.workload != POISSON.name]
    workloads = list(dict.fromkeys(row.workload for row in closed))
    said = [
        "Over HTTP in one run, unique texts: Headlight, and of the others those that are fastest of"
        " their number format in some column; bold is the most of a format. A cosine is the least"
        " of any text's vector to ours in float32.",
        *describe_waits(rows, told["open_loop_requests_a_second"]),
        f"Sentences per second, medians of {told['rounds']} rounds, {told['processor']['cores']}"
        f" cores of an {told['processor']['name']}, {told['date']}, commit {told['commit']}:\n",
    ]
    lines = [f"| | vectors | {' | '.join(workloads)} |", "|---" * (len(workloads) + 2) + "|"]
    for number_format in FORMATS:
        same = [row for row in closed if format_of(row.server) == number_format]
        lines += format_rates(same, workloads)
    return "\n".join([" ".join(said), *lines])


def format_of(server: str) -> str:
    """Return in which number format a server computes, as its name tells."""
    return next((each for each in FORMATS if server.endswith(f", {each}")), FORMATS[0])


def format_rates(rows: list[Row], workloads: list[str]) -> list[str]:
    """Return a line for each server of one number format that is ours, or the best other.

    A cell is a workload's sentences a second, the most of them bold.
    """
    rates = {(row.server, row.workload): row.sentences for row in rows}
    servers = list(dict.fromkeys(row.server for row in rows))
    others = [name for name in servers if not is_ours(name)]
    ran = [name for name in workloads if any((other, name) in rates for other in others)]
    best = {max(others, key=lambda other: rates.get((other, name), 0)) for name in ran}
    lines = list[str]()
    for server in (name for name in servers if is_ours(name) or name in best):
        cells = [describe_vectors([row for row in rows if row.server == server])]
        for name in workloads:
            rate = rates.get((server, name), 0.0)
            most = all(rate >= rates.get((other, name), 0) for other in servers)
            cells.append(f"**{three_digits(rate)}**" if rate and most else three_digits(rate))
        name = server.removesuffix(f", {format_of(server)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def is_ours(server: str) -> bool:
    """Tell whether a server is Headlight, in either format."""
    return server in (OURS, HALF)


def describe_vectors(rows: list[Row]) -> str:
    """Return a server's number format, and the least cosine where its vectors are not ours."""
    least = min((row.cosine for row in rows if row.cosine is not None), default=1.0)
    told = format_of(rows[0].server)
    return told if least >= CLOSE else f"{told}, cosine {math.floor(least * 1000) / 1000:.3f}"


def describe_waits(rows: list[Row], rate: float) -> list[str]:
    """Return what waits at random arrivals are like: of ours and of the two fastest others."""
    waits = {row.server: row for row in rows if row.workload == POISSON.name}
    speeds = dict[str, list[float]]()
    for row in rows:
        if row.workload != POISSON.name and row.server in waits:
            speeds.setdefault(row.server, []).append(row.sentences)
    others = [name for name in speeds if not is_ours(name)]
    others.sort(key=lambda name: -statistics.geometric_mean(speeds[name]))
    told = [
        f"{name} {three_digits(waits[name].p50)} and {three_digits(waits[name].p99)} ms"
        for name in [*filter(is_ours, waits), *others[:2]]
    ]
    if not told:
        return []
    return [
        f"Requests of mixed sizes at random moments, {rate:.0f} a second (60 % of what the slower"
        " of Headlight and the bare ONNX Runtime takes), had a median and 99th percentile of"
        f" {'; '.join(told)}."
    ]


def three_digits(value: float) -> str:
    """Return a number with three digits, and a dash for none."""
    return "-" if not value else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def text_between_marks(page: str, command: str = COMMAND) -> str:
    """Return what stands between the marks of a command's figures."""
    return page.partition(mark_line(command))[2].partition(END)[0]


def mark_line(command: str) -> str:
    """Return the line before the figures of a command."""
    return f"<!-- {command} -->\n"


def replace_between_marks(page: Path, text: str, command: str = COMMAND) -> None:
    """Replace what stands between the marks of a command's figures."""
    before, begin, rest = page.read_text("utf-8").partition(mark_line(command))
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} has no place for it")
    page.write_text("".join([before, begin, text, end, after]), "utf-8")


def main() -> None:
    """Keep the run, and write both pages."""
    shutil.copy(RUN, KEPT)
    told = json.loads(KEPT.read_text())
    replace_between_marks(RESULTS, format_results(told))
    replace_between_marks(README, format_readme(told))


if __name__ == "__main__":
    main()
