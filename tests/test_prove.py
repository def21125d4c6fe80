"""What `make prove` writes down of a file of drills."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prove

BEGIN_SECONDS = 60  # of a process that imports pytest
DRILLS = """
import pytest

pytestmark = pytest.mark.prove

def test_holds():
    print("9 of 9 | within 2 ms")

def test_breaks():
    assert 8 == 9, "8 of 9"

def test_needs_more():
    pytest.skip("one core")
"""


def test_a_row_tells_what_passed_what_was_printed_and_why_the_rest_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pytest's own report, of a process of its own."""
    monkeypatch.setattr(prove, "PLACE", tmp_path)
    monkeypatch.setattr(prove, "IDLE_SECONDS", 0)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # of options that this checkout adds
    file = tmp_path / "test_drills.py"
    file.write_text(DRILLS)

    row = prove.run(str(file), "c0ffee")

    assert row.outcomes == {"passed": 1, "failed": 1, "skipped": 1}
    assert "| 1 passed, 1 failed, 1 skipped |" in str(row)
    assert row.printed[0] == "9 of 9 | within 2 ms" and "9 of 9 / within 2 ms" in str(row)
    broken, short = row.printed[1:]
    assert broken.startswith("test_breaks failure: AssertionError: 8 of 9")
    assert short == "test_needs_more skipped: one core"


WAITS = """
import pathlib, pytest, threading

@pytest.mark.prove
def test_waits():
    try:
        pathlib.Path({begun!r}).write_text("begun")
        threading.Event().wait()
    finally:
        pathlib.Path({ended!r}).touch()
"""


def test_told_to_stop_it_lets_a_drill_end_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the background of a shell, whose processes ignore an interrupt."""
    begun, ended, file = (tmp_path / name for name in ("begun", "ended", "test_waits.py"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    os.mkfifo(begun)
    file.write_text(WAITS.format(begun=str(begun), ended=str(ended)))
    code = (
        "from pathlib import Path; from tests import prove; prove.IDLE_SECONDS = 0;"
        f"prove.PLACE = Path({str(tmp_path)!r}); prove.interrupt_when_told();"
        f"prove.run({str(file)!r}, 'c0ffee')"
    )
    command = "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", code
    told = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(["sh", "-c", *command], cwd=prove.ROOT, stderr=subprocess.DEVNULL)
    began, _, _ = select.select([told], [], [], BEGIN_SECONDS)
    os.close(told)

    process.terminate()

    assert process.wait() and began and ended.exists()
