"""Other people's clients, unmodified, in an environment of their own; `prove`: pip fetches them.

`--write-golden` records what they send, for test_recorded.py.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.types import ASGIApp

from tests.frameworks.page import ADDRESS, NAMES, Example, examples, refusals
from tests.frameworks.recording import STORED, Recorder

pytestmark = pytest.mark.prove

HERE = Path(__file__).parent
QUERY, TEXTS = NAMES["query"], NAMES["texts"]
# refused by every route: of rerankers an empty query, since they score an empty text
REFUSED = {"query": QUERY, "texts": [""]}
REFUSED_RANKING = {"query": "", "texts": TEXTS}
# nothing may call out
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

Listen = Callable[..., AbstractAsyncContextManager[str]]


@pytest.mark.parametrize("example", examples(), ids=lambda one: one.title)
async def test_an_unmodified_client_is_answered_exactly_and_told_of_a_refusal(
    python: Path,
    services: dict[str, ASGIApp],
    listen: Listen,
    pytestconfig: pytest.Config,
    example: Example,
) -> None:
    """As the page shows it; it sends what is recorded, and raises what the page says."""
    recorder = Recorder(services[example.part])
    async with listen(recorder) as url:
        told, refused = await asyncio.to_thread(said, python, example, url)
    expected = await native(services[example.part])

    for name, answer in told.items():
        np.testing.assert_allclose(answer, expected[name][: len(answer)], rtol=0, atol=1e-6)
    assert told and refused["error"] == refusals()[example.title], refused
    record(example, recorder.requests, pytestconfig.getoption("--write-golden"))


def said(python: Path, example: Example, url: str) -> list[dict[str, Any]]:
    """What the example makes of TEXTS, and of what is refused."""
    code = example.code.replace(ADDRESS, url)
    refused = REFUSED_RANKING if example.part == "Rerank" else REFUSED
    given = json.dumps([{"query": QUERY, "texts": TEXTS}, refused])
    command = [python, "-I", HERE / "session.py", code, given]
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"} | QUIET
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=180
    )
    told: list[dict[str, Any]] = json.loads(done.stdout)
    for name in ("ranked", "classes"):
        if name in told[0]:
            told[0][name] = [score for _, score in told[0][name]]
    return told


async def native(app: ASGIApp) -> dict[str, Any]:
    """The same answers from our own route, by their names on the page."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://headlight"
    ) as http:
        tasks = (await http.get("/info")).json()["tasks"]
        inputs: list[Any] = [QUERY, *TEXTS]
        if "rerank" in tasks:
            inputs = [{"text": QUERY, "pair": text} for text in TEXTS]
        asked = {"inputs": inputs, "classify": "classify" in tasks}
        items = (await http.post("/v1/encode", json=asked)).json()["data"]
    if "rerank" in tasks:
        return {"ranked": sorted((item["classes"][0]["score"] for item in items), reverse=True)}
    if "classify" in tasks:
        return {"classes": [max(row["score"] for row in items[1]["classes"])]}
    query, *vectors = (item["pooled"] for item in items)
    floats = np.array(vectors)
    return {"vectors": vectors, "similarities": floats @ query, "bits": floats > 0}


def record(example: Example, requests: list[dict[str, Any]], write: bool) -> None:
    """Hold what was sent against what is recorded, or record it."""
    recorded = json.loads(STORED.read_text())
    if write:
        recorded[example.title] = requests
        order = [one.title for one in examples()]
        kept = {title: recorded[title] for title in order if title in recorded}
        STORED.write_text(json.dumps(kept, indent=1) + "\n")
    else:
        assert requests == recorded[example.title]
