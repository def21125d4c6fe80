"""Writes the last run of `make bench-http` where its figures are read: results.md and README.md.

    python benchmarks/publish.py

Takes build/over_http.json, keeps it as benchmarks/over_http.json, and puts its tables between the
marks in both pages. tests/test_benchmarks.py holds the pages to the file.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from served.servers import BARE, ROOT, SERVERS
from served.table import CLOSE, Row, Turn, describe_noise, format_both_ratios, format_table
from served.texts import BATCHES, POISSON

RUN, KEPT = ROOT / "build" / "over_http.json", ROOT / "benchmarks" / "over_http.json"
RESULTS, README = ROOT / "benchmarks" / "results.md", ROOT / "README.md"
COMMAND, END = "make bench-http", "\n<!-- end -->"
SORTED = SERVERS["onnx-sorted"].name


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
    """Return a run as README.md has it: sentences a second, the most of each workload in bold.

    The bare server that runs a request's texts by length stands for both where it ran.
    """
    rates = {(row["workload"], row["server"]): row["sentences"] for row in told["rows"]}
    ran = {server for _, server in rates}
    servers = [each.name for each in SERVERS.values() if each.name in ran and not each.batches_only]
    processor = told["processor"]
    lines = [
        " ".join(
            [
                "Over HTTP next to other servers in one run, in float32 but where another format is"
                " named, unique texts; in the 32-text row the bare server sorts by length.",
                *describe_other_vectors(told["rows"]),
            ]
        ),
        f"Sentences per second, medians of {told['rounds']} rounds, {processor['cores']} cores of"
        f" an {processor['name']}, {told['date']}, commit {told['commit']}:\n",
        f"| | {' | '.join(servers)} |",
        "|---" * (len(servers) + 1) + "|",
    ]
    for workload in dict.fromkeys(row["workload"] for row in told["rows"]):
        if workload == POISSON.name:
            continue
        cells = {name: rates.get((workload, name), 0.0) for name in servers}
        if workload == BATCHES.name:
            cells[BARE] = rates.get((workload, SORTED), cells[BARE])
        most = max(cells.values())
        words = [
            f"**{three_digits(rate)}**" if rate == most else three_digits(rate)
            for rate in cells.values()
        ]
        lines.append(f"| {workload} | {' | '.join(words)} |")
    return "\n".join(lines)


def describe_other_vectors(rows: list[dict[str, Any]]) -> list[str]:
    """Name each server whose vectors are not ours, with their least cosine."""
    least = dict[str, float]()
    for row in rows:
        if row["cosine"] is not None:
            least[row["server"]] = min(row["cosine"], least.get(row["server"], 1))
    return [
        f"Of {name} the vectors have a cosine to ours of {cosine:.2f} at least."
        for name, cosine in least.items()
        if cosine < CLOSE
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
