"""The asynchronous client: inputs -> requests -> answers, in order.

encode   all at once; every request of a job, joined
stream   request by request, at a memory that does not grow with the job
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, Self, Unpack

import httpx

from headlight_client import answers, comparisons, scores
from headlight_client.answers import Encoded
from headlight_client.comparisons import Compared
from headlight_client.errors import NoAnswer, RequestRefused
from headlight_client.formats import loads
from headlight_client.inputs import (
    ComparisonOptions,
    Input,
    Limits,
    Options,
    Request,
    ScoreOptions,
    comparison,
    limits,
    requests,
    scoring,
)
from headlight_client.patience import pause
from headlight_client.scores import Scored

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
CONNECT_SECONDS = 5.0
GRACE_SECONDS = 10.0  # beyond the service's deadline: its 504 should come before we give up
MOST_MILLISECONDS = 999_999_999  # that the service's header holds
# Refused before any work, for the size of the request: half of it may pass
TOO_LARGE = {"body_too_large", "too_many_tokens", "batch_too_large"}
TOO_LARGE |= {"attention_too_large", "answer_too_large"}

Progress = Callable[[int, int], None]


class AsyncClient:
    """A client of one service.

    Args:
        url: where the service answers.
        key: an API key.
        patience_seconds: how long a request may take, retries and pauses included, in calls
            that have no deadline of their own.
        concurrency: most requests in flight at once.

    Raises:
        ValueError: the URL is not one, the key cannot be sent, or a number is not positive.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        patience_seconds: float = 60.0,
        concurrency: int = 4,
    ) -> None:
        if patience_seconds <= 0 or concurrency < 1:
            raise ValueError("patience_seconds and concurrency must be positive")
        self.url = _checked(url)
        self._patience, self._concurrency = patience_seconds, concurrency
        self._limits: Limits | None = None
        self._http = httpx.AsyncClient(headers=authorization(key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def info(self, *, deadline: float | None = None) -> dict[str, Any]:
        """The answer of GET /info: the model and the limits.

        Raises:
            HeadlightError: no answer came.
        """
        until = time.monotonic() + (self._patience if deadline is None else deadline)
        answer = await self._send("GET", "/info", until)
        try:
            info: dict[str, Any] = loads(answer.content)
            self._limits = limits(info)
        except (ValueError, KeyError, TypeError) as error:
            raise NoAnswer(f"{self.url} is not a Headlight service") from error
        return info

    async def encode(
        self,
        inputs: Sequence[Input],
        *,
        deadline: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Encoded:
        """Encode inputs.

        Args:
            inputs: texts, pairs of texts (tuples), lists of token ids, (tokens, embedding width)
                embeddings, or items as in the JSON API, in any mixture. float64 embeddings are
                rounded to float32.
            deadline: seconds for the whole call; default: patience_seconds for each request.
            progress: called with the inputs done and all of them, after each request.

        Raises:
            RequestRefused: the service refused, after any retries that could help.
            NoAnswer: nobody answered in time.
            ModelChanged: the service's model changed in the middle of the job.
            TypeError: an input of another type, or an unknown option.
        """
        parts, done = [], 0
        async with aclosing(self.stream(inputs, deadline=deadline, **options)) as stream:
            async for part in stream:
                parts.append(part)
                done += len(part.items)
                if progress:
                    progress(done, len(inputs))
        return answers.join(parts)

    async def stream(
        self,
        inputs: Iterable[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Encoded]:
        """Encode inputs and yield one answer for each request, in order; see `encode`.

        Inputs are read as requests are sent. At most `concurrency` requests are in flight, or
        answered and waiting for their turn.
        """
        _check(inputs, options, Options)
        until = None if deadline is None else time.monotonic() + deadline
        waiting: deque[asyncio.Task[Encoded]] = deque()
        try:
            most = await self._known(until)
            for request in requests(inputs, most.swept() if options.get("sweep") else most):
                waiting.append(asyncio.create_task(self._answer(request, until, options)))
                if len(waiting) == self._concurrency:
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def maxsim(
        self,
        query: Input,
        documents: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Scored:
        """Score documents by their many vectors, in one request.

        Args:
            query, documents: a text, token ids, embeddings or an item, as of `encode`, no pairs.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused: the service refused, after any retries that could help.
            NoAnswer: nobody answered in time.
            TypeError: an input of another type, or an unknown option.
        """
        _check(documents, options, ScoreOptions)
        until = time.monotonic() + (self._patience if deadline is None else deadline)
        answer = await self._send("POST", "/v1/maxsim", until, scoring(query, documents, options))
        return scores.read(answer.content)

    async def similarity(
        self,
        left: Input,
        right: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ComparisonOptions],
    ) -> Compared:
        """Compare a text with others: scores, and what makes them.

        Args:
            left: a text, token ids, embeddings or an item; and `right`: any number of them.
            deadline: seconds for the whole call; default: patience_seconds for each request.

        Raises:
            RequestRefused, NoAnswer, ModelChanged, TypeError: as `encode`.
        """
        _check(right, options, ComparisonOptions)
        until = None if deadline is None else time.monotonic() + deadline
        item, request = comparison(left, right)
        return await self._compare(item, request, until, options)

    async def _compare(
        self, left: bytes, request: Request, until: float | None, options: ComparisonOptions
    ) -> Compared:
        """Send a comparison, or halves of what is on the right where it is too large as it is."""
        by = time.monotonic() + self._patience if until is None else until
        try:
            body = request.comparison(left, options)
            answer = await self._send("POST", "/v1/similarity", by, body)
        except RequestRefused as refused:
            if refused.code not in TOO_LARGE or len(request) < 2 or request.whole:
                raise refused.counted_from(request.first) from None
        else:
            return comparisons.read(answer.content)
        halves = request.halves()
        return comparisons.join(
            [await self._compare(left, half, until, options) for half in halves]
        )

    async def _known(self, until: float | None) -> Limits:
        """The service's limits, asked for once."""
        if self._limits is None:
            await self.info(deadline=None if until is None else until - time.monotonic())
        if self._limits is None:
            raise RuntimeError("no limits after asking for them: this is a bug")
        return self._limits

    async def _answer(self, request: Request, until: float | None, options: Options) -> Encoded:
        """Send a request, or its halves where it is too large as it is."""
        by = time.monotonic() + self._patience if until is None else until
        try:
            answer = await self._send("POST", "/v1/encode", by, request.body(options))
        except RequestRefused as refused:
            if refused.code not in TOO_LARGE or len(request) < 2 or request.whole:
                raise refused.counted_from(request.first) from None
        else:
            return answers.read(answer.content)
        return answers.join([await self._answer(half, until, options) for half in request.halves()])

    async def _send(
        self, method: str, path: str, until: float, body: bytes | None = None
    ) -> httpx.Response:
        """Send until there is an answer, with pauses, as long as time is left."""
        for tries in count(1):
            reply = await self._try(method, path, until, body)
            if isinstance(reply, httpx.Response) and reply.status_code == httpx.codes.OK:
                return reply
            after = pause(reply, tries)
            if after is None or time.monotonic() + after >= until:
                break
            await asyncio.sleep(after)
        if isinstance(reply, httpx.Response):
            raise RequestRefused.of(reply)
        raise NoAnswer(f"no answer from {self.url}: {reply or type(reply).__name__}") from reply

    async def _try(
        self, method: str, path: str, until: float, body: bytes | None
    ) -> httpx.Response | httpx.RequestError:
        """One answer, or why there is none."""
        seconds = max(until - time.monotonic(), 0.0)
        most = seconds if self._limits is None else self._limits.deadline_seconds + GRACE_SECONDS
        headers = {
            "Accept": SAFETENSORS if body else JSON,
            "Content-Type": JSON,
            "X-Headlight-Deadline-Ms": str(min(int(seconds * 1000), MOST_MILLISECONDS)),
        }
        timeout = httpx.Timeout(most, connect=CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await self._http.request(
                    method, self.url + path, content=body, headers=headers, timeout=timeout
                )
        except TimeoutError:
            return httpx.ReadTimeout("the deadline has passed")
        except httpx.RequestError as error:
            return error


def _checked(url: str) -> str:
    """Where a service answers, without the last slash."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000")
    return url.rstrip("/")


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries a key, which no message repeats.

    Raises:
        ValueError: no header can carry it.
    """
    if key is None:
        return {}
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the key is empty or holds characters that no header can carry")
    return {"Authorization": f"Bearer {key}"}


def _check(inputs: Iterable[Input], options: Mapping[str, Any], known: type) -> None:
    """Refuse a lone input and unknown options, which would be misread or ignored."""
    if isinstance(inputs, str | Mapping):
        raise TypeError("inputs must be a list, even if there is only one")
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
