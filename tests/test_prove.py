"""What `make prove` writes down of a file of drills."""

from pathlib import Path

import pytest

from tests import prove

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
