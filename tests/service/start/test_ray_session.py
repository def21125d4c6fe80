"""A Ray that does not come up: one line, and the traceback in the folder that it names."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.exceptions import ActorDiedError

from service.cluster.start_report import StartFailed
from service.start import ray_session
from service.tables.settings import Settings
from tests import quiet_ray  # noqa: F401

TIMED_OUT = Exception("The current node timed out during startup. The GCS is overloaded.")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep logs here, and leave the variables as they were."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("error", "later"),
    [(TIMED_OUT, False), (ActorDiedError(), True)],
    ids=["a node, in ray.init", "an actor, after it"],
)
def test_a_ray_that_fails_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, later: bool
) -> None:
    """With what to do, and the folder where the traceback is."""

    def fail(**_: object) -> None:
        if not later:
            raise error

    monkeypatch.setattr(ray, "init", fail)

    with (
        pytest.raises(StartFailed, match="^Ray failed: .*; is the machine busy") as told,
        ray_session.start_own_ray(Settings(port=8123), lambda _: None, b""),
    ):
        raise error

    assert "\n" not in str(told.value)
    (run,) = (tmp_path / "headlight" / "logs" / "8123").iterdir()
    assert str(told.value).endswith(f"the traceback is in {run}")
    assert "Traceback" in (run / "driver.log").read_text()
