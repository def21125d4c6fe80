"""What a machine has free, before a service is started on it."""

from pathlib import Path

import pytest

from service.preflight import machine
from service.tables.settings import MIB


def group(folder: Path, bound: str, used: int, kept: int) -> tuple[str, str, str, tuple[str, ...]]:
    """A control group's files."""
    for name, text in (
        ("max", bound),
        ("current", str(used)),
        ("stat", f"anon 7\ninactive_file {kept}\nactive_file 11"),
    ):
        (folder / name).write_text(text)
    names = ("inactive_file", "active_file")
    return str(folder / "max"), str(folder / "current"), str(folder / "stat"), names


def test_files_that_are_kept_to_be_read_again_leave_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that has just read its weights is full of them, and can give them up."""
    files = group(tmp_path, bound=str(3 * MIB), used=3 * MIB, kept=2 * MIB)
    monkeypatch.setattr(machine, "GROUPS", [files])

    assert machine.free_memory() == 2 * MIB + 11


def test_a_group_without_a_bound_leaves_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that is not there take any."""
    files = group(tmp_path, bound="max", used=5, kept=3)
    monkeypatch.setattr(machine, "GROUPS", [files, ("none", "none", "none", ())])

    assert machine.free_memory() > 64 * MIB
