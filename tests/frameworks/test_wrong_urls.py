"""Wrong base URLs, and paths that are not there, through other people's clients, unmodified.

Held is what a person reads: the words of the exception, in which a client shows one field of an
answer and leaves out the rest. `prove`: the clients that the tests' own environment lacks.
"""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks import wrong_urls
from tests.rays_haproxy import free_port, running, written_by_ray

NOT_THERE = "There is nothing at this path. "
EMBEDDINGS = f"{NOT_THERE}Did you mean POST /v1/embeddings? "
BASE = "The base_url of OpenAI's clients ends in /v1. GET /docs lists all paths."
NO_TEXT = "This service generates no text. GET /docs lists all paths."
NO_METHOD = "This path does not support this method. It takes GET, HEAD."
LONGER = "Your client's base URL has more than this service's. GET /docs lists all paths."
AWAY = "The replica is not ready."
# call and what follows the service's address -> what its error says
HERE: list[tuple[str, str]] = [
    ("openai.embeddings:/v1/embeddings", f"Error code: 404 - {EMBEDDINGS}{BASE}"),
    ("openai.embeddings:/api/v1", f"Error code: 404 - {EMBEDDINGS}{BASE}"),
    ("openai.embeddings:/v1/v1", f"Error code: 404 - {EMBEDDINGS}{BASE}"),
    ("openai.embeddings:/api", f"Error code: 404 - {EMBEDDINGS}GET /docs lists all paths."),
    ("openai.models:/api", f"Error code: 404 - {NOT_THERE}Did you mean GET /v1/models? {BASE}"),
    ("openai.chat:/v1", f"Error code: 404 - {EMBEDDINGS}{NO_TEXT}"),
    ("openai.chat:/v1/chat/completions", f"Error code: 404 - {EMBEDDINGS}{NO_TEXT}"),
    ("openai.embeddings:/v1/models", f"Error code: 405 - {NO_METHOD}"),
    ("openai.long:/v1", "Error code: 413 - The body is larger than this service accepts."),
    ("huggingface_hub:/api/embed", f"{EMBEDDINGS}GET /docs lists all paths."),
    ("huggingface_hub:/tei/embed_all", f"{NOT_THERE}Did you mean POST /embed_all? {LONGER}"),
    ("huggingface_hub:/v1", f"{NOT_THERE}Expected POST of /v1/encode, "),
    ("tritonclient:/api", f"[404] not_found: {NOT_THERE}Did you mean GET /v2/models/{{model}}? "),
]
ELSEWHERE: list[tuple[str, str]] = [
    # OpenAI's older client shows the whole body
    *((call, words[len("Error code: 404 - ") :]) for call, words in HERE[:8]),
    ("cohere.embed:/v1", f"{NOT_THERE}Did you mean POST /v2/embed? {LONGER}"),
    ("cohere.embed:/v2/embed", f"{NOT_THERE}Did you mean POST /v2/embed? {LONGER}"),
    ("cohere.chat:", f"{NOT_THERE}Did you mean POST /v2/embed? {NO_TEXT}"),
    ("cohere.v1:", f"{NOT_THERE}Did you mean POST /v2/embed? "),
    ("voyageai:/v1/embeddings", f"{EMBEDDINGS}{BASE}"),
]
CALLS_OF_ABSENT = [
    *("openai.embeddings:/v1", "openai.chat:/v1", "huggingface_hub:/embed", "tritonclient:"),
]

Listen = Any  # the fixture that has an application listen


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's client asks nothing where other tests forbid it to download."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


async def said(url: str, calls: Sequence[str]) -> list[str]:
    """What the errors of calls say, asked by the clients of this environment."""
    return await asyncio.to_thread(wrong_urls.read_errors, url, calls)


async def test_a_wrong_url_is_told_with_the_right_one_where_a_person_reads(
    served: Any, listen: Listen
) -> None:
    """Each client shows one field of an answer, and not the same one."""
    calls = [call for call, _ in HERE]
    async with listen(served(max_body_bytes=4096).app) as url:
        told = await said(url, calls)

    assert {call: words in told for (call, words), told in zip(HERE, told, strict=True)} == (
        dict.fromkeys(calls, True)
    ), told


async def test_a_host_that_is_not_the_services_is_told_too(served: Any, listen: Listen) -> None:
    """421: the setting is named, also where there is no path besides."""
    calls = ["openai.embeddings:/v1", "openai.embeddings:/api", "huggingface_hub:/embed"]
    async with listen(served(allowed_hosts=["headlight.test"]).app) as url:
        told = await said(url, calls)

    assert all("--allowed-hosts (allowed_hosts) adds names" in words for words in told), told


async def test_what_haproxy_answers_itself_is_read_too(tmp_path: Path) -> None:
    """Without a replica: 503 on every path."""
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(written_by_ray(port, {"/": []}, tmp_path))
    with running(config, port):
        told = await said(f"http://127.0.0.1:{port}", CALLS_OF_ABSENT)

    assert [AWAY in words for words in told] == [True] * 4, told
    assert told[0] == f"Error code: 503 - {AWAY}" and told[3] == f"[503] {AWAY}"


@pytest.mark.prove
async def test_clients_that_the_tests_lack_read_it_too(
    python: Path, served: Any, listen: Listen
) -> None:
    """Cohere's and Voyage's, and an older one of OpenAI's."""
    calls = [call for call, _ in ELSEWHERE]
    async with listen(served(max_body_bytes=4096).app) as url:
        command = [python, "-I", wrong_urls.__file__, url, *calls]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    told = json.loads(done.stdout)

    assert {call: words in told for (call, words), told in zip(ELSEWHERE, told, strict=True)} == (
        dict.fromkeys(calls, True)
    ), told
