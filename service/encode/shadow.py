"""A second Headlight, which is sent a share of the texts once they are answered.

    offer    after an answer, on the event loop: takes the share, drops what has no room
    _run     one task: sends what waits, a request now and then, and compares the vectors

No client waits for any of it. What fails is not sent again, and a failure is followed by a pause,
so that a shadow that is gone costs little. A text is in no log and in no error.

The share is exact, not drawn: of the first n texts at most share * n are taken; one that is
dropped or fails is not made up for. Which texts of a request these are is drawn from a fixed seed.
"""

import asyncio
import base64
import logging
import math
import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np
import orjson

from model.text.tokenizer import Cut
from service.encode.answer import JSON
from service.encode.likened import Array, Pair, Window
from service.encode.request import Encoding, Pooled, Request
from service.engine.machine import Unservable
from service.engine.work import Result
from service.keys import LOOK_SECONDS, Sent
from service.observe.metrics import Metrics
from service.settings import Settings

logger = logging.getLogger(__name__)

HEADER = "x-headlight-shadow"  # a request that has it is never sent on
PATH = "/v1/encode"

MOST_WAITING, MOST_WAITING_CHARACTERS = 64, 1024 * 1024
MOST_TEXTS, MOST_CHARACTERS = 16, 256 * 1024  # of a request; as JSON at most 1.5 MiB
MOST_ANSWER_BYTES, MOST_NUMBERS = 1024 * 1024, 8192  # of each vector; so many fit
CONNECT_SECONDS, ANSWER_SECONDS = 1.0, 5.0
GATHER_SECONDS = 0.25  # for others to go with a text: a request takes the event loop 0.7 ms
PAUSE_SECONDS = 5.0  # after a failure


class Sample(NamedTuple):
    """A text that waits to be sent, how it was read, and the vector that it was answered."""

    text: str
    prompt_name: str | None
    truncate: Cut
    vector: Array

    @property
    def reading(self) -> tuple[str | None, Cut]:
        """Return what is the same for all texts of a request."""
        return self.prompt_name, self.truncate


class Failed(Exception):
    """The shadow did not answer as it must.

    Args:
        reason: one of families.SHADOW_FAILED.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Shadow:
    """The way to the shadow that the settings name.

    Args:
        name: of the model without an adapter, as clients call it.
        busy: whether the replica has work waiting: then nothing is sent.

    Raises:
        Unservable, Unusable: its certificates, or the file of its key, cannot be read.
    """

    def __init__(
        self, settings: Settings, name: str, busy: Callable[[], bool], metrics: Metrics
    ) -> None:
        if settings.shadow is None:
            raise ValueError("there is no shadow")
        self._name, self._busy, self._counted = name, busy, metrics.shadow()
        self._share, self._truncate = settings.shadow_share, settings.truncate
        self._seen, self._taken, self._random = 0, 0, random.Random(0)
        self._waiting, self._characters = deque[Sample](), 0
        self._arrived, self._failing, self.window = asyncio.Event(), False, Window()
        self._url = settings.shadow.rstrip("/") + PATH
        self._headers = {"content-type": JSON, "accept-encoding": "identity", HEADER: "1"}
        self._key = Sent(settings.shadow_key_file) if settings.shadow_key_file else None
        self._looked = time.monotonic()
        # no client of the library's above it: no redirects, cookies, proxies or netrc
        try:
            self._transport = httpx.AsyncHTTPTransport()
        except OSError as error:  # of ssl too
            line = (
                f"shadow: no certificates can be read from SSL_CERT_FILE or SSL_CERT_DIR: {error}"
            )
            raise Unservable(line) from error
        watch, told = metrics.watch, self.window.likened
        watch("shadow_likeness_correlation", None, lambda: _known(told().correlation))
        watch("shadow_neighbour_overlap", None, lambda: _known(told().overlap))
        watch("shadow_window_texts", None, lambda: len(self.window))
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send nothing more; what waits is lost."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._transport.aclose()

    def offer(
        self, request: Request, results: Sequence[Result], headers: Mapping[str, str]
    ) -> None:
        """Take a share of the texts of a request that was answered a vector for each.

        Args:
            headers: that it came with; those of a shadow's request are sent no further.
        """
        if not (isinstance(request.ending, Encoding) and request.pooled) or HEADER in headers:
            return
        self._seen += len(results)
        due = min(int(self._share * self._seen) - self._taken, len(results))
        if due <= 0:
            return
        self._taken += due
        for place in self._random.sample(range(len(results)), due):
            if reason := self._take(request, place, results[place]):
                self._counted.dropped.add(reason)

    def _take(self, request: Request, place: int, result: Result) -> str | None:
        """Keep a text until it is sent; return why it is dropped, if it is."""
        one, vector = request.inputs[place], result.pooled
        alone = one.text is not None and one.pair is None and not one.gates and not one.patch
        if vector is None or one.text is None or not (alone and self._plain(request)):
            return "unlike"
        if len(one.text) > MOST_CHARACTERS:
            return "too_long"
        characters = self._characters + len(one.text)
        if len(self._waiting) >= MOST_WAITING or characters > MOST_WAITING_CHARACTERS:
            return "full"
        truncate = request.truncate or self._truncate or request.usual
        # a copy, since it may be part of an array for the whole batch
        self._waiting.append(Sample(one.text, request.prompt_name, truncate, np.array(vector)))
        self._characters = characters
        self._arrived.set()
        return None

    def _plain(self, request: Request) -> bool:
        """Tell whether a request's vectors are made in the model's own way, as a shadow's are."""
        how = request.pooled
        own = how.mode == "model" and how.dimensions is None if isinstance(how, Pooled) else how
        # a task may bring a prompt of its own
        changed = (
            request.gates or request.tasks or request.task or request.first or request.documents
        )
        return own and not changed and request.model in (None, self._name)

    async def _run(self) -> None:
        """Send what waits, for ever."""
        while await self._arrived.wait():
            await asyncio.sleep(GATHER_SECONDS)
            batch = self._next()
            if self._busy():
                self._counted.dropped.add("busy", by=len(batch))
                continue
            began, reason = time.monotonic(), None
            self._counted.sent.add(by=len(batch))
            try:
                await self._look()
                await self._compare(batch)
            except Failed as failed:
                reason = failed.reason
                self._counted.failed.add(reason, by=len(batch))
            self._counted.seconds.observe(time.monotonic() - began)
            self._tell(reason)
            if reason:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _look(self) -> None:
        """Have the key read again now and then, where a disk's wait is no one else's."""
        if self._key and time.monotonic() - self._looked >= LOOK_SECONDS:
            await asyncio.to_thread(self._key.look)
            self._looked = time.monotonic()

    def _next(self) -> list[Sample]:
        """Take from what waits one request's texts, all read alike."""
        batch = [self._waiting.popleft()]
        characters = len(batch[0].text)
        while self._waiting and len(batch) < MOST_TEXTS:
            following = self._waiting[0]
            characters += len(following.text)
            if following.reading != batch[0].reading or characters > MOST_CHARACTERS:
                break
            batch.append(self._waiting.popleft())
        self._characters -= sum(len(one.text) for one in batch)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _compare(self, batch: Sequence[Sample]) -> None:
        """Have some texts encoded, and take their vectors into the window.

        Raises:
            Failed: they are not.
        """
        prompt_name, truncate = batch[0].reading
        asked: dict[str, Any] = {"inputs": [one.text for one in batch], "encoding": "base64"}
        if truncate != "own":  # the side that a checkpoint names, which may be another there
            asked["truncate"] = truncate
        if prompt_name is not None:
            asked["prompt_name"] = prompt_name
        answer = await self._post(orjson.dumps(asked))
        try:
            told = orjson.loads(answer)
            vectors = [_vector(item["pooled"]) for item in told["data"]]
            of, widths = str(told["weights"]), {vector.size for vector in vectors}
        except (ValueError, TypeError, KeyError):
            raise Failed("unusable") from None
        if len(vectors) != len(batch) or len(widths) != 1:
            raise Failed("unusable")
        both = zip(batch, vectors, strict=True)
        pairs = [(one.text, Pair(one.vector, vector)) for one, vector in both]
        self.window.add((of, *widths), pairs)

    async def _post(self, body: bytes) -> bytes:
        """Return what the shadow answers.

        Raises:
            Failed: no 200, too much, too late, or nothing.
        """
        whole, timeouts = bytearray(), httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        about = {"timeout": timeouts.as_dict()}
        key = {"authorization": f"Bearer {self._key.key}"} if self._key else {}
        headers = {**self._headers, **key}
        request = httpx.Request("POST", self._url, headers=headers, content=body, extensions=about)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._transport.handle_async_request(request)
                try:
                    if answer.status_code != httpx.codes.OK:
                        raise Failed("refused")
                    async for piece in answer.aiter_raw():
                        whole += piece
                        if len(whole) > MOST_ANSWER_BYTES:
                            raise Failed("unusable")
                finally:
                    await answer.aclose()
        except (TimeoutError, httpx.TimeoutException):
            raise Failed("timeout") from None
        except httpx.TransportError as error:
            raise Failed("untrusted" if _untrusted(error) else "unreachable") from None
        return bytes(whole)

    def _tell(self, reason: str | None) -> None:
        """Log the first failure, and the first success after some."""
        if bool(reason) == self._failing:
            return
        self._failing = bool(reason)
        if reason:
            logger.warning("shadow failed", extra={"reason": reason})
        else:
            logger.info("shadow answers again")


def _untrusted(error: BaseException) -> bool:
    """Tell whether a connection failed for the shadow's certificate."""
    cause = error.__context__  # the libraries wrap what they catch
    return isinstance(error, ssl.SSLCertVerificationError) or bool(cause and _untrusted(cause))


def _known(number: float | None) -> float:
    """Return a number as a gauge has it, in which NaN is none."""
    return math.nan if number is None else number


def _vector(told: Any) -> Array:
    """Return a vector, (width,) float32, from base64.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    data = base64.b64decode(told["data"], validate=True)
    if told["dtype"] != "float32":
        raise ValueError("not a vector of ours")
    vector = np.frombuffer(data, "<f4")
    if not 0 < vector.size <= MOST_NUMBERS or not np.isfinite(vector).all():
        raise ValueError("not a vector of finite numbers")
    return vector
