"""A service of several models that does not start."""

from pathlib import Path

import pytest

from service.cluster.start_report import StartFailed
from service.preflight import isolated
from service.start import launch
from service.tables.settings import Settings
from tests.several_models import EMBEDDER, save_embedder


def test_of_several_models_the_one_that_cannot_start_is_named(tmp_path: Path) -> None:
    """Alone it need not be."""
    broken = save_embedder(tmp_path)
    (broken / "tokenizer.json").write_text("{}")
    alone = Settings(model=str(broken))
    one_of_two = alone.model_copy(update={"other_replicas": 1})

    with pytest.raises(StartFailed, match="^tokenizer.json cannot be read"):
        isolated.check_here({launch.own_name(alone): alone})
    with pytest.raises(StartFailed, match=f"^{EMBEDDER}: tokenizer.json cannot be read"):
        isolated.check_here({launch.own_name(one_of_two): one_of_two})
