"""headlight encode --batch: OpenAI's batch files, answered line by line, and resumed."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from headlight_client import AsyncClient
from service.cli import main
from service.commands.bulk import batch

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = "all-MiniLM-L6-v2"


def line(id: str, body: Any, url: str = "/v1/embeddings", **more: Any) -> str:
    """A request of a batch file."""
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body, **more})


def embedding(text: str, **more: Any) -> dict[str, Any]:
    """A body that OpenAI's clients send."""
    return {"model": NAME, "input": text, **more}


REQUESTS = [
    line("a", embedding("All is well")),
    line("b", embedding("All is well", dimensions=9999)),
    line("c", {"inputs": ["A dog"], "pooled": {"dimensions": 2}}, "/v1/encode"),
    line("d", embedding("x", model="gpt")),
    *(line(f"e{i}", embedding(f"text {i}", dimensions=3)) for i in range(9)),
]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A file of requests, two of which are refused."""
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(REQUESTS))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the answers go."""
    return tmp_path / "out.jsonl"


async def run(address: str, given: Path, out: Path, *more: str) -> Result:
    """The command's end, while the service answers on this loop."""
    words = ["encode", "--batch", str(given), "--out", str(out), "--url", address, *more]
    return await asyncio.to_thread(CliRunner().invoke, main, words)


def put(path: Path, content: str | bytes) -> None:
    """Write a file."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def get(path: Path) -> bytes:
    """Read one."""
    return path.read_bytes()


def answers(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(each) for each in path.read_text().splitlines()]


async def test_each_request_has_its_answer_in_its_place(
    address: str, client: httpx.AsyncClient, given: Path, out: Path
) -> None:
    """As the route itself gives it; refusals count, and the exit status tells of them."""
    ended = await run(address, given, out)

    told = answers(out)
    assert ended.exit_code == 1 and "13 answers in" in ended.stdout
    assert "2 of them refusals" in ended.stdout
    assert [each["custom_id"] for each in told] == [
        json.loads(one)["custom_id"] for one in REQUESTS
    ]
    assert [each["response"]["status_code"] for each in told] == [200, 400, 200, 404] + [200] * 9
    for each, sent in zip(told, map(json.loads, REQUESTS), strict=True):
        direct = (await client.post(sent["url"], json=sent["body"])).json()
        body = each["response"]["body"]
        assert {**body, "usage": 0} == {**direct, "usage": 0}
    assert sorted(os.listdir(out.parent)) == ["in.jsonl", "out.jsonl"]


async def test_an_interrupted_job_goes_on_where_it_ended(
    address: str, given: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After whole lines; half a line is written anew, and no request is sent twice."""
    await run(address, given, out)
    whole = get(out)
    os.unlink(out)
    asked: list[str] = []
    ask = AsyncClient.ask

    async def counted(client: AsyncClient, path: str, *how: Any, **more: Any) -> Any:
        if how:
            asked.append(path)
            if len(asked) == 7:
                raise KeyboardInterrupt
        return await ask(client, path, *how, **more)

    monkeypatch.setattr(AsyncClient, "ask", counted)
    stopped = await run(address, given, out)
    partial = out.with_name(out.name + batch.SUFFIX)
    kept = get(partial)
    put(partial, kept + b'{"id": "batch_re')
    asked[:] = [""] * 99
    ended = await run(address, given, out)

    assert stopped.exit_code == 130 and "run the same command again" in stopped.output
    assert 0 < kept.count(b"\n") < 7
    assert ended.exit_code == 1
    assert [each["custom_id"] for each in answers(out)] == [
        each["custom_id"] for each in map(json.loads, whole.splitlines())
    ]
    assert len(asked) - 99 == len(REQUESTS) - kept.count(b"\n")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["no JSON"], "line 1: not JSON"),
        ([REQUESTS[0], "[]"], "line 2: the line: input should be"),
        ([REQUESTS[0], REQUESTS[0]], "line 2: custom_id 'a' is that of line 1"),
        ([line("a", {}, "/v1/chat/completions")], "line 1: url: input should be '/v1/embeddings'"),
        ([line("a", {}, method="GET")], "line 1: method: input should be 'post'"),
        ([line("", {})], "line 1: custom_id"),
        ([line("a", [])], "line 1: body"),
        ([line("a", {}, extra=1)], "line 1: extra"),
        ([], "the file is empty"),
    ],
)
async def test_a_file_that_is_no_batch_is_refused_before_anything_is_sent(
    address: str, given: Path, out: Path, lines: list[str], said: str
) -> None:
    """By the line."""
    put(given, "\n".join(lines))

    ended = await run(address, given, out)

    assert ended.exit_code == 2 and said in ended.output
    assert os.listdir(out.parent) == ["in.jsonl"]


async def test_another_jobs_rest_is_not_gone_on_with(address: str, given: Path, out: Path) -> None:
    """Of another file, or by another model; and a finished file is not overwritten."""
    partial, origin = (out.with_name(out.name + end) for end in (batch.SUFFIX, batch.ORIGIN))
    put(partial, b"")
    without = await run(address, given, out)
    put(origin, '{"model": "another"}')
    other = await run(address, given, out)
    put(out, b"")
    there = await run(address, given, out)

    assert [each.exit_code for each in (without, other, there)] == [2, 2, 2]
    assert "not a partial file" in without.output
    assert "belongs to another job: model was another" in other.output
    assert "already exists" in there.output


async def test_a_batch_goes_with_no_other_option(address: str, given: Path, out: Path) -> None:
    """They would have no effect."""
    ended = await run(address, given, out, "--truncate", "right")

    assert ended.exit_code == 2 and "--batch needs --out, and excludes" in ended.output
