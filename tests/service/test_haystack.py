"""Haystack's TEI ranker, unmodified, in an environment of its own; `prove`: pip fetches it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from service.edge import guard
from service.replica import Replica
from service.settings import Settings
from tests.service.heads_of_tasks import checkpoint

pytestmark = [pytest.mark.prove, pytest.mark.asyncio(loop_scope="session")]

HAYSTACK = "huggingface-api-haystack==3.1.0"
QUERY, TEXTS = "Why is the dog here?", ["All is well", "A dog ate the food", "It was hungry"]
# what a user of theirs writes
SCRIPT = """
import json, sys
from haystack import Document
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
query, url, *texts = sys.argv[1:]
ranker = HuggingFaceTEIRanker(url=url, top_k=2, raw_scores=True, timeout=30)
told = ranker.run(query=query, documents=[Document(content=text) for text in texts])
print(json.dumps([[one.content, one.score] for one in told["documents"]]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with Haystack."""
    folder = tmp_path_factory.mktemp("haystack")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", HAYSTACK], check=True)
    return python


async def test_haystacks_ranker_ranks(
    python: Path,
    tmp_path: Path,
    listen: Callable[..., AbstractAsyncContextManager[str]],
    outer: Callable[[Replica], guard.Guard],
) -> None:
    """The best two documents, with the logits that POST /rerank answers."""
    checkpoint(tmp_path, "ForSequenceClassification", num_labels=1)
    replica = await Replica.start(Settings(model=str(tmp_path), device="cpu", threads=1), "one")
    try:
        async with listen(outer(replica)) as url:
            ranked = await asyncio.to_thread(said, python, "-I", "-c", SCRIPT, QUERY, url, *TEXTS)
            plain = await asyncio.to_thread(said, python, "-I", "-c", PLAIN, QUERY, url, *TEXTS)
    finally:
        await replica.close()

    assert ranked == [[TEXTS[rank["index"]], rank["score"]] for rank in plain[:2]]


# the same without Haystack
PLAIN = """
import json, sys, urllib.request
query, url, *texts = sys.argv[1:]
body = json.dumps({"query": query, "texts": texts, "raw_scores": True}).encode()
request = urllib.request.Request(f"{url}/rerank", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
"""


def said(*command: Any) -> Any:
    """The JSON that a command's last line prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])
