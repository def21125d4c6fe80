"""What a replica says of a checkpoint when it starts."""

from pathlib import Path

import pytest
from transformers import BertModel

from service.files.weights import locate_model
from service.pipeline.replica import Replica
from service.preflight.model import open_checkpoint
from service.tables.settings import Settings
from tests.model.loading.test_adapters import adapter
from tests.task_heads import checkpoint


async def test_adapters_that_are_not_applied_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In folders of the checkpoint's folder; without any nothing is said."""
    checkpoint(tmp_path, "Model")
    folders = [tmp_path / name for name in ("retrieval_passage", "retrieval_query")]
    for adapters, said in (
        (0, ""),
        (2, "retrieval_passage/adapter_config.json, retrieval_query/adapter_config.json"),
    ):
        for folder in folders[:adapters]:
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text("{}")
        caplog.clear()
        replica = await Replica.start(Settings(model=str(tmp_path), threads=1), "adapters-1")
        await replica.close()

        told = [one.getMessage() for one in caplog.records if "adapters" in one.getMessage()]
        assert len(told) == bool(adapters) and all(one.endswith(said) for one in told)


async def test_an_adapter_of_another_base_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the log and by doctor; a base of the model's own name is not."""
    base = tmp_path / "minilm"
    base.mkdir()
    checkpoint(base, "Model")
    reference = BertModel.from_pretrained(base)
    for name, trained in (("law", "org/other"), ("fr", "org/MiniLM"), ("old", None)):
        adapter(reference, tmp_path / name, "bert", 1, base_model_name_or_path=trained)
    named = tuple(f"{name}={tmp_path / name}" for name in ("law", "fr", "old"))
    settings = Settings(model=str(base), adapter=named, threads=1)
    replica = await Replica.start(settings, "adapters-2")
    await replica.close()

    said = "adapter law was trained over org/other, and the model is minilm"
    found, about = open_checkpoint(settings, locate_model(settings.model, settings.adapter))
    told = [one.getMessage() for one in caplog.records if "trained" in one.getMessage()]
    assert told == [found.what] == [said] and not found.is_wrong
    assert about.what.startswith("minilm, family bert; tasks encode; pooling mean, which the chec")
