"""Many requests as one job: `headlight encode --batch`, in the format of OpenAI's batch files.

    in      a line a request: {"custom_id", "method": "POST", "url": "/v1/embeddings", "body"}
    out     a line an answer, in the order of the requests: {"id", "custom_id", "response":
            {"status_code", "body"}, "error": null}; a refusal is an answer with its own status

Nothing waits in a server: the requests are sent from here, a few at a time. Interrupted, the job
leaves <out>.partial, whole lines of the answers so far, and <out>.partial.origin, what they are
answers to; the same command goes on from there. Source: OpenAI's Batch API reference,
BatchRequestInput and BatchRequestOutput.
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headlight_client import AsyncClient, RequestRefused
from service.commands.bulk.source import LONGEST_BYTES, BadLine, File
from service.commands.terminal import Failed, Unusable

CONCURRENCY = 4  # requests in flight
PATIENCE_SECONDS = 300.0  # for each of them, to outlast a restart of the service
SUFFIX, ORIGIN = ".partial", ".partial.origin"

Progress = Callable[[int, int], None]


class Line(BaseModel):
    """One request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    custom_id: str = Field(min_length=1)
    method: Literal["POST"]
    url: Literal[
        "/v1/embeddings", "/v1/encode", "/v1/rerank", "/v1/classify", "/v1/similarity", "/v1/maxsim"
    ]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The answers of a job: how many, and how many of them are refusals."""

    answers: int
    errors: int


async def run(
    url: str, key: str | None, file: File, out: Path, info: Mapping[str, Any], progress: Progress
) -> Done:
    """Send every request of a file, or every one that an earlier run has not.

    Args:
        info: the answer of GET /info.
        progress: called with the answers so far and all, after each.

    Raises:
        Unusable: a line is no request, or the partial file is another job's; nothing was sent.
        Failed: the file or the model changed meanwhile.
        HeadlightError: an answer did not come; the work so far is kept.
        OSError: a file cannot be read or written.
    """
    digest, count = _check(file)
    origin = {name: info[name] for name in ("model", "weights", "numerics")}
    with closing(Answers(out, {**origin, "source_sha256": digest})) as answers:
        client = AsyncClient(url, key=key, patience_seconds=PATIENCE_SECONDS)
        async with client:
            await _send(client, file, digest, answers, lambda: progress(answers.count, count))
            now = await client.info()
        if any(now[name] != origin[name] for name in origin):
            raise Failed(f"the service's model changed meanwhile: start over without {out}{SUFFIX}")
        answers.finish()
        return Done(answers.count, answers.errors)


async def _send(
    client: AsyncClient, file: File, digest: str, answers: "Answers", told: Callable[[], None]
) -> None:
    """Send the requests that have no answer yet, and write the answers in their order."""
    waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
    total, start = hashlib.sha256(), answers.count

    async def next_one() -> None:
        answers.append(await waiting.popleft())
        told()

    try:
        for number, raw in enumerate(_lines(file.path), 1):
            total.update(raw)
            if number <= start:
                continue
            waiting.append(asyncio.create_task(_answer(client, number, _parsed(number, raw))))
            if len(waiting) == CONCURRENCY:
                await next_one()
        if total.hexdigest() != digest:
            raise Failed(f"{file.name} was changed while it was read")
        while waiting:
            await next_one()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _answer(client: AsyncClient, number: int, line: Line) -> dict[str, Any]:
    try:
        status, body = 200, await client.ask(line.url, line.body)
    except RequestRefused as refused:
        if refused.body is None or refused.passing:
            raise  # after all the patience: it may yet be answered
        status, body = refused.status, refused.body
    response = {"status_code": status, "body": body}
    ids = {"id": f"batch_req_{number}", "custom_id": line.custom_id}
    return {**ids, "response": response, "error": None}


class Answers:
    """The answers of a job on the disk; close them in the end.

    Args:
        origin: what they are answers to, and whose.

    Raises:
        Unusable: the file is there already, or the partial file is another job's.
        OSError: it cannot be written.
    """

    def __init__(self, out: Path, origin: Mapping[str, str]) -> None:
        self._out, self._partial = out, out.with_name(out.name + SUFFIX)
        self._origin = out.with_name(out.name + ORIGIN)
        self.count = self.errors = 0
        if out.exists():
            raise Unusable(f"{out} already exists; remove it or choose another --out")
        if self._partial.exists():
            self._compare(origin)
        else:
            self._origin.write_bytes(orjson.dumps(origin))
        self._file = self._partial.open("a+b")
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Leave the answers so far."""
        self._file.close()

    def append(self, answer: Mapping[str, Any]) -> None:
        """Add an answer; what was added outlives this process."""
        self._file.write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()
        self._counted(answer)

    def finish(self) -> None:
        """Move the file to its name."""
        os.fsync(self._file.fileno())
        os.replace(self._partial, self._out)
        self._origin.unlink()

    def _counted(self, answer: Mapping[str, Any]) -> None:
        self.count += 1
        self.errors += answer["response"]["status_code"] != 200

    def _compare(self, origin: Mapping[str, str]) -> None:
        try:
            before = orjson.loads(self._origin.read_bytes())
        except (OSError, ValueError):
            raise Unusable(f"{self._partial} is not a partial file of this command") from None
        for name, now in origin.items():
            if before.get(name) != now:
                what = f"{name} was {before.get(name)} and is {now}"
                raise Unusable(f"{self._partial} belongs to another job: {what}; remove it first")

    def _resume(self) -> None:
        """Count the answers that are whole; drop one that was cut off in writing."""
        self._file.seek(0)
        end = 0
        for raw in self._file:
            if not raw.endswith(b"\n"):
                break
            self._counted(orjson.loads(raw))
            end += len(raw)
        self._file.truncate(end)
        self._file.seek(end)


def _check(file: File) -> tuple[str, int]:
    """Return the digest of a file and how many requests it holds.

    Raises:
        Unusable: names the first line that is none, or repeats an earlier one's custom_id.
    """
    total, seen, number = hashlib.sha256(), dict[str, int](), 0
    try:
        for number, raw in enumerate(_lines(file.path), 1):
            total.update(raw)
            id = _parsed(number, raw).custom_id
            if id in seen:
                raise BadLine(number, f"custom_id {id!r} is that of line {seen[id]}")
            seen[id] = number
        if not number:
            raise BadLine(1, "the file is empty")
    except BadLine as error:
        raise Unusable(f"{file.name}: {error}") from error
    return total.hexdigest(), number


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST_BYTES):
            number += 1
            if len(raw) == LONGEST_BYTES:
                raise BadLine(number, f"longer than {LONGEST_BYTES} bytes")
            yield raw


def _parsed(number: int, raw: bytes) -> Line:
    try:
        return Line.model_validate(orjson.loads(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise BadLine(number, f"{where}: {first['msg'].lower()}") from None
    except ValueError:
        raise BadLine(number, "not JSON") from None
