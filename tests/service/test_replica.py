"""What a replica says of a checkpoint when it starts."""

from pathlib import Path

import pytest

from service.replica import Replica
from service.settings import Settings
from tests.task_heads import checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
