"""Where the last run's logs stay."""

from pathlib import Path

import pytest

from service.cluster import workspace


def test_the_logs_stay_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state's folder, or the home's; a path that is not absolute is ignored; private."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, below in ((tmp_path / "state", "state"), (Path("here"), ".local/state")):
        monkeypatch.setenv("XDG_STATE_HOME", str(named))

        assert workspace.kept() == tmp_path / below / "headlight" / "logs"
        assert (tmp_path / below / "headlight" / "logs").stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the service starts all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    assert workspace.kept() is None
