"""A Ray that does not come up: one line, and the traceback in the folder that it names."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.exceptions import ActorDiedError

from service import launch
from service.cluster.progress import StartFailed
from service.preflight import apart
from service.settings import Settings
from tests.several_models import EMBEDDER, save_embedder

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
        launch.start_own_ray(Settings(port=8123), lambda _: None, b""),
    ):
        raise error

    assert "\n" not in str(told.value)
    (run,) = (tmp_path / "headlight" / "logs" / "8123").iterdir()
    assert str(told.value).endswith(f"the traceback is in {run}")
    assert "Traceback" in (run / "driver.log").read_text()


def test_of_several_models_the_one_that_cannot_start_is_named(tmp_path: Path) -> None:
    """Alone it need not be."""
    broken = save_embedder(tmp_path)
    (broken / "tokenizer.json").write_text("{}")
    alone = Settings(model=str(broken))
    one_of_two = alone.model_copy(update={"other_replicas": 1})

    with pytest.raises(StartFailed, match="^tokenizer.json cannot be read"):
        apart.check_here({launch.own_name(alone): alone})
    with pytest.raises(StartFailed, match=f"^{EMBEDDER}: tokenizer.json cannot be read"):
        apart.check_here({launch.own_name(one_of_two): one_of_two})
