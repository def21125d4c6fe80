"""Run the long drills, each file alone, and write down what they found: `make prove`.

    python -m tests.prove                  every file that has one
    python -m tests.prove FILE|FOLDER ...  those

A drill that measures waiting proves little next to other work: each file has a process of its own,
which begins when the machine is idle, or after a minute. build/prove/drills.md gets a row of each:
what passed, for how long, the load at its start, and what the drills printed. Rows stay until their
file runs again, so that the whole can be run in parts.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "prove"
PYTEST = (sys.executable, "-m", "pytest", "-q", "--timeout", "3600", "-m", "prove")
IDLE_LOAD, IDLE_SECONDS = 0.7, 60
HEAD = """\
| drills | passed | s | load | commit | printed |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """What came of one file."""

    file: str
    outcomes: dict[str, int]  # how many passed, failed, were skipped
    seconds: float
    load: float  # of the last minute, at the start
    commit: str
    printed: tuple[str, ...]

    def __str__(self) -> str:
        printed = "<br>".join(line.replace("|", "/") for line in self.printed)
        outcomes = ", ".join(f"{count} {end}" for end, count in self.outcomes.items())
        return (
            f"| `{self.file}` | {outcomes} | {self.seconds:.0f} | {self.load:.1f}"
            f" | {self.commit} | {printed} |"
        )


def find(places: list[str]) -> list[str]:
    """Return the files that have a drill, in pytest's order."""
    found = subprocess.run(
        (*PYTEST, "--collect-only", *places), cwd=ROOT, capture_output=True, text=True
    )
    if found.returncode:
        sys.exit(found.stdout + found.stderr)
    return list(dict.fromkeys(re.findall(r"^(tests/\S+?\.py)::", found.stdout, re.MULTILINE)))


def wait_until_idle() -> float:
    """Return the load of the last minute once it is low, or when waiting did not help."""
    end = time.monotonic() + IDLE_SECONDS
    while os.getloadavg()[0] > IDLE_LOAD and time.monotonic() < end:
        time.sleep(1)
    return os.getloadavg()[0]


def interrupt_when_told() -> None:
    """Let both signals interrupt this process, and those it starts, in the background too."""
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, signal.default_int_handler)


def run(file: str, commit: str) -> Row:
    """Run the drills of a file."""
    load, report = wait_until_idle(), PLACE / "report.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    command = (*PYTEST, "-o", "junit_logging=system-out", "--junitxml", report, file)
    with subprocess.Popen(command, cwd=ROOT) as drills:
        try:
            drills.wait()
        except KeyboardInterrupt:  # services are ended by the drills that started them
            drills.send_signal(signal.SIGINT)
            drills.wait()
            raise
    seconds = time.monotonic() - began
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    ends = Counter(map(_outcome, cases)) or {"failed": 1}
    return Row(file, dict(ends), seconds, load, commit, tuple(_lines(cases)))


def _outcome(case: ElementTree.Element) -> str:
    for end, element in (("failed", "failure"), ("failed", "error"), ("skipped", "skipped")):
        if case.find(element) is not None:
            return end
    return "passed"


def _lines(cases: list[ElementTree.Element]) -> Iterator[str]:
    """Yield what drills printed, and the name and reason of each that did not pass."""
    for case in cases:
        printed = (case.findtext("system-out") or "").splitlines()
        yield from filter(None, printed[1:])  # below a heading
        for end in ("failure", "error", "skipped"):
            if (element := case.find(end)) is not None:
                reason = (element.get("message") or "").partition("\n")[0]
                yield f"{case.get('name')} {end}: {reason}"


def main(places: list[str]) -> None:
    """Run the drills of the places, and write the table after each file."""
    interrupt_when_told()
    PLACE.mkdir(parents=True, exist_ok=True)
    kept = PLACE / "rows.json"
    rows = json.loads(kept.read_text()) if kept.exists() else {}
    commit = subprocess.run(
        ("git", "describe", "--always", "--dirty"), cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    failed = 0
    for file in find(places):
        row = run(file, commit)
        failed += row.outcomes.get("failed", 0)
        rows[file] = asdict(row)
        kept.write_text(json.dumps(rows, indent=1))
        table = "\n".join(str(Row(**each)) for each in rows.values())
        (PLACE / "drills.md").write_text(HEAD + table + "\n")
        print(row, flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:] or ["tests"])
