"""What every test shares: with --no-skip a test that cannot run has failed."""

from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a machine that must run everything say so."""
    parser.addoption("--no-skip", action="store_true", help="a skipped test is a failed one")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skipped itself."""
    return refuse_skip(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that skipped itself whole."""
    return refuse_skip(collector.config, (yield))


def refuse_skip(config: pytest.Config, report: Report) -> Report:
    """Turn a skip into a failure that carries its reason, if the run was told so."""
    if report.skipped and not hasattr(report, "wasxfail") and config.getoption("--no-skip"):
        report.outcome, report.longrepr = "failed", f"skipped under --no-skip: {report.longrepr}"
    return report
