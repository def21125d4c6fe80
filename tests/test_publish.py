"""What the pages say of a run of `make bench-http`, made of the run's figures."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import publish
from served import table
from served.servers import BARE, HALF, OURS
from served.texts import ONE, POISSON


def row(server: str, workload: str = ONE.name, **figures: Any) -> dict[str, Any]:
    """A row of a run's file."""
    plain: dict[str, Any] = {"peak_mib": 1.0, "cosine": 1.0, "cpu_ms": 1.0, "p50": 1.0, "p99": 1.0}
    plain |= {"sentences": 1.0} | figures
    turn = table.Turn(round=0, workload=workload, server=server, **plain)
    return asdict(table.summarise([turn], OURS, POISSON.name)[0])


def run(*rows: dict[str, Any]) -> dict[str, Any]:
    """A run with these rows."""
    processor = {"name": "processor", "cores": 2}
    facts = {"rounds": 1, "processor": processor, "date": "a day", "commit": "c0"}
    return facts | {"open_loop_requests_a_second": 10.0, "rows": rows}


def table_lines(told: dict[str, Any]) -> list[str]:
    """The lines of README's table without its head."""
    lines = publish.format_readme(told).splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| |")]


def test_of_each_number_format_ours_and_the_best_other_are_told() -> None:
    """A server is compared with those that compute alike; other vectors are named."""
    rows = [row(OURS, sentences=2.0), row("peer, int8", sentences=9.0, cosine=0.98765)]
    rows += [row(HALF, sentences=5.0, cosine=0.99991), row("peer", sentences=3.0)]
    rows += [row("slower", sentences=2.5)]

    assert table_lines(run(*rows)) == [
        f"| {OURS} | float32 | 2 |",
        "| peer | float32 | **3** |",
        f"| {OURS} | bfloat16 | **5** |",
        "| peer | int8, cosine 0.987 | **9** |",
    ]


def test_a_workload_that_a_server_did_not_get_is_a_dash() -> None:
    """Its column is there for the others."""
    rows = [row(OURS), row(OURS, "another"), row("peer, int8", sentences=0.5)]

    assert table_lines(run(*rows))[-1] == "| peer | int8 | **0.5** | - |"


def test_waits_at_random_arrivals_are_told_of_ours_and_of_the_two_fastest_others() -> None:
    """By what they do in the closed loops; one that got no random arrivals is none of them."""
    speeds = {OURS: 2.0, BARE: 3.0, "second": 4.0, "slow": 1.0, "unpaced": 9.0}
    rows = [row(server, sentences=rate) for server, rate in speeds.items()]
    rows += [row(name, POISSON.name, p50=2.0, p99=30.0) for name in speeds if name != "unpaced"]

    told = publish.format_readme(run(*rows))

    assert f" of {OURS} 2 and 30 ms; second 2 and 30 ms; {BARE} 2 and 30 ms. " in told


def test_the_pages_have_the_figures_of_the_last_run_that_was_kept() -> None:
    """They are not typed by hand."""
    told = json.loads(publish.KEPT.read_text())

    assert publish.text_between_marks(publish.RESULTS.read_text("utf-8")) == publish.format_results(
        told
    )
    assert publish.text_between_marks(publish.README.read_text("utf-8")) == publish.format_readme(
        told
    )


def test_a_run_is_put_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    """A page without them is left as it is."""
    page, other = tmp_path / "page.md", publish.mark_line("other") + "its own" + publish.END
    before, after = f"{other}\n\n{publish.mark_line('run')}", f"{publish.END}\n\nafter\n"
    page.write_text(f"{before}old{after}")

    publish.replace_between_marks(page, "new", "run")

    assert page.read_text() == f"{before}new{after}"
    assert publish.text_between_marks(page.read_text(), "run") == "new"
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        publish.replace_between_marks(page, "new", "run")
