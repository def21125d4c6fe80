"""The client for code that waits: AsyncClient on an event loop in a thread of its own.

So it also works where a loop runs already, as in notebooks, and Ctrl-C ends a call at once.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from typing import Any, Self, TypeVar, Unpack

from headlight_client.answers import Encoded
from headlight_client.call import AsyncClient, Progress
from headlight_client.comparisons import Compared
from headlight_client.inputs import ComparisonOptions, Input, Options, ScoreOptions
from headlight_client.scores import Scored

Value = TypeVar("Value")


class Client:
    """A client of one service; threads may share it. See `AsyncClient` for the arguments.

    Raises:
        ValueError: the url is none, the key cannot be sent, or a number is not positive.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        patience_seconds: float = 60.0,
        concurrency: int = 4,
    ) -> None:
        self._client = AsyncClient(
            url, key=key, patience_seconds=patience_seconds, concurrency=concurrency
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headlight client", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def info(self, *, deadline: float | None = None) -> dict[str, Any]:
        """The answer of GET /info: the model and the limits; see AsyncClient.info."""
        return self._run(self._client.info(deadline=deadline))

    def encode(
        self,
        inputs: Sequence[Input],
        *,
        deadline: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Encoded:
        """Encode inputs; see AsyncClient.encode. `progress` is called in the client's thread."""
        return self._run(
            self._client.encode(inputs, deadline=deadline, progress=progress, **options)
        )

    def maxsim(
        self,
        query: Input,
        documents: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Scored:
        """Score documents by their many vectors; see AsyncClient.maxsim."""
        return self._run(self._client.maxsim(query, documents, deadline=deadline, **options))

    def stream(
        self, inputs: Iterable[Input], *, deadline: float | None = None, **options: Unpack[Options]
    ) -> Generator[Encoded, None, None]:
        """Encode inputs, one answer for each request, in order; see AsyncClient.stream.

        Inputs are taken in the client's thread.
        """
        answers = self._client.stream(inputs, deadline=deadline, **options)
        try:
            while (part := self._run(_next(answers))) is not None:
                yield part
        except GeneratorExit:  # whoever reads has enough
            self._run(_close(answers))
            raise

    def similarity(
        self,
        left: Input,
        right: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ComparisonOptions],
    ) -> Compared:
        """Compare a text with others; see AsyncClient.similarity."""
        return self._run(self._client.similarity(left, right, deadline=deadline, **options))

    async def _end(self) -> None:
        """End what still runs, close the connections."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.close()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for work on the loop; whatever ends the waiting ends the work."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


async def _next(answers: AsyncGenerator[Encoded, None]) -> Encoded | None:
    return await anext(answers, None)


async def _close(answers: AsyncGenerator[Encoded, None]) -> None:
    await answers.aclose()
