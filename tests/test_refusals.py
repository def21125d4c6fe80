"""Every refusal is on docs/refusals.md, and a request for each is worded as it was.

`python -m tests.test_refusals` writes the page and the messages.

A new refusal is a line of tests/refusals.py.
"""

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from model.loading.sentence_transformers import Prompts
from service.door import body
from service.pipeline.replica import Replica
from service.tables.keys import Key, parse_keys
from service.tables.refusals import REFUSALS
from tests.refusals import JSON, ROWS, TEAM_KEY, Row
from tests.replica_internals import pooled_by, under

PAGE = Path(__file__).parent.parent / "docs" / "refusals.md"
MESSAGES = Path(__file__).parent / "refusals.json"
MARK = "<!-- refusals -->\n"
WHOLE = "unknown_field"  # the code of which the page shows a body
ID = "an-id"
PATHS = re.compile(r"(?<=POST of /v1/encode, ).*(?=; GET /docs)")  # the page shows one of all
MACHINES = re.compile(r"\b[0-9,]+ ms")  # what depends on the machine

Make = Callable[[Replica], ASGIApp]


def page() -> str:
    """A line for each code, below its status: its title."""
    lines: dict[int, list[str]] = {}
    for code, kind in sorted(REFUSALS.items(), key=lambda item: item[1].status):
        lines.setdefault(kind.status, []).append(f"- `{code}`: {kind.title}")
    return "\n\n".join(
        f"## {status}\n\n" + "\n".join(of_status) for status, of_status in lines.items()
    )


async def messages(replica: Replica, application: Make) -> dict[str, str]:
    """What each request of ROWS is answered, behind its code's title."""
    told = {}
    for row in ROWS:
        answer = await refused(replica, application, row)
        assert answer.is_error and code_of(answer, row.code) == row.code, (
            row.request(),
            answer.text[:999],
        )
        said = message(answer).removeprefix(REFUSALS[row.code].title).strip()
        told[f"{row.code}: {row.request()}"] = PATHS.sub("..", said)
    return told


async def refused(replica: Replica, application: Make, row: Row) -> httpx.Response:
    """What a request is answered by a service in its row's state."""
    headers = [("Content-Type", JSON)] if row.body is not None else []
    headers = [("X-Request-Id", ID), *(row.headers if has_type(row) else [*headers, *row.headers])]
    with state(replica, row) as served:
        transport = httpx.ASGITransport(application(served))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = unending() if row.code == "request_timeout" else row.content()
            return await client.request(row.method, row.path, content=body, headers=headers)


def has_type(row: Row) -> bool:
    """Whether a request says itself what its body is."""
    return any(name == "Content-Type" for name, _ in row.headers)


async def unending() -> AsyncIterator[bytes]:
    """Half a body, then silence."""
    yield b"{"
    await asyncio.Event().wait()


@contextmanager
def state(replica: Replica, row: Row) -> Iterator[Replica]:
    """The replica as a row wants it; afterwards as it was."""
    health, seconds = replica.health, body.BODY_SECONDS
    assert health is not None
    match row.under:
        case "with API keys":
            settings: dict[str, Any] = {"api_keys": (Key("demo", "0" * 64),)}
        case "with a key for other models":
            settings = {"api_keys": parse_keys(f"team-a:{TEAM_KEY} models=reranker,sparse")}
        case "with allowed hosts":
            settings = {"allowed_hosts": ("localhost",)}
        case "out of memory":
            settings = {"max_held_bytes": 1}
        case _:
            settings = {}
    reader = replica.reader
    if row.under == "with prompts":
        reader = replace(reader, prompts=Prompts({"query": "search for: ", "passage": ""}))
    elif row.under == "without a bound on embeddings":
        reader = replace(reader, max_embedding=math.inf)
    other = under(replica, reader, **settings)
    if row.under == "broken":
        other.info = broken  # type: ignore[method-assign]
    health.batches.fault = "wrong" if row.under == "known to be wrong" else None
    if row.code == "request_timeout":
        body.BODY_SECONDS = 0.01
    try:
        if row.under == "pooled by the first token":
            with pooled_by(other, "cls"):
                yield other
        else:
            yield other
    finally:
        health.batches.fault, body.BODY_SECONDS = None, seconds


def broken() -> dict[str, Any]:
    """A fault of ours."""
    raise RuntimeError("canary-7f3a")


def told(answer: httpx.Response) -> dict[str, Any]:
    """A refusal's body, whatever API it is of."""
    body: dict[str, Any] = answer.json()
    return body["error"] if isinstance(body.get("error"), dict) else body


def code_of(answer: httpx.Response, otherwise: str) -> str:
    """A refusal's code, where its API has one."""
    return str(told(answer).get("code", otherwise))


def message(answer: httpx.Response) -> str:
    """What people read of it."""
    body = told(answer)
    return str(body.get("detail") or body.get("message") or body["error"])


async def filled(text: str, replica: Replica, application: Make) -> str:
    """The page with all codes, and one refusal whole, as the service words it."""
    first = next(row for row in ROWS if row.code == WHOLE)
    whole = (await refused(replica, application, first)).json()
    body = f"```json\n{json.dumps(whole, indent=1)}\n```"
    head = re.sub(r"```json\n.*?```", lambda _: body, text.partition(MARK)[0], flags=re.DOTALL)
    return head + MARK + "\n" + page() + "\n"


async def test_the_page_holds_every_code_and_what_the_service_answers(
    replica: Replica, outer: Make
) -> None:
    """A code that comes, goes or is worded otherwise shows here: run this file."""
    written = PAGE.read_text("utf-8")

    assert await filled(written, replica, outer) == written


async def test_each_request_is_refused_in_the_words_kept(replica: Replica, outer: Make) -> None:
    """Each is sent here."""
    kept = json.loads(MESSAGES.read_text("utf-8"))

    told = await messages(replica, outer)

    assert told.keys() == kept.keys()
    for request, said in told.items():
        assert MACHINES.sub("", said) == MACHINES.sub("", kept[request]), request


def test_every_refusal_has_a_request() -> None:
    """A code that comes or goes is a line of ROWS; one is HAProxy's alone."""
    assert {row.code for row in ROWS} == REFUSALS.keys() - {"replica_lost"}


async def write() -> None:
    """Write the page, by a replica of its own."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from service.tables.settings import Settings
    from tests.conftest import application

    replica = await Replica.start(Settings(device="cpu", threads=2), "replica-1")
    text = PAGE.read_text("utf-8")
    PAGE.write_text(await filled(text, replica, application), "utf-8")
    told = await messages(replica, application)
    MESSAGES.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
    await replica.close()


if __name__ == "__main__":
    asyncio.run(write())
