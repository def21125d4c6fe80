"""What docs/frameworks.md has its examples ask: the bundled model, two rerankers, a classifier."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.types import ASGIApp

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.task_heads import checkpoint, long_reranker

HERE = Path(__file__).parent
HOME = HERE.parent.parent / "build" / "frameworks"
REQUIREMENTS = HERE / "requirements.txt"
collect_ignore = ["examples"]  # each needs its own client, and is run in an environment of its own
LONG = "Rerank of 8,192 tokens"  # no part of the page: the same examples, by a longer model
CLASSES = {0: "anger", 1: "joy", 2: "neither"}


@pytest_asyncio.fixture(scope="package")
async def services(
    replica: Replica,
    tmp_path_factory: pytest.TempPathFactory,
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[dict[str, ASGIApp]]:
    """By the part of the page."""
    others: dict[str, tuple[str, dict[str, Any] | None]] = {
        "Rerank": ("my-reranker", {"num_labels": 1}),
        LONG: ("my-reranker", None),
        "Classes": ("my-classifier", {"id2label": CLASSES}),
    }
    started = {"Embeddings": replica}
    for part, (name, choices) in others.items():
        folder = tmp_path_factory.mktemp(name)
        if choices is None:
            long_reranker(folder)
        else:
            checkpoint(folder, "ForSequenceClassification", **choices)
        settings = Settings(model=str(folder), device="cpu", threads=1, served_model_name=name)
        started[part] = await Replica.start(settings, f"{name}-1")
    yield {part: outer(one) for part, one in started.items()}
    for part in others:
        await started[part].close()


@pytest.fixture(scope="package")
def python() -> Path:
    """The interpreter of an environment with all of them, made once."""
    python, done = HOME / "bin" / "python", HOME / "installed"
    if not (done.exists() and done.read_text() == REQUIREMENTS.read_text()):
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--no-deps"]
        subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)
        done.write_text(REQUIREMENTS.read_text())
    return python
