"""The synchronous client: an AsyncClient on an event loop in its own thread.

So it also works in notebooks, and Ctrl-C ends a call at once.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from headlight_client.answers import Encoded
from headlight_client.call import AsyncClient
from headlight_client.inputs import Input, Options

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def _make_synchronous(
    call: Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Value]],
) -> Callable[Concatenate["Client", Arguments], Value]:
    """Return a method of Client that waits for a method of AsyncClient."""

    @wraps(call)
    def wait(client: "Client", /, *args: Arguments.args, **named: Arguments.kwargs) -> Value:
        """Run the call on the client's loop, and return its result."""
        return client._run(call(client._client, *args, **named))

    return wait


class Client:
    """A synchronous client of one service; threads may share it. See `AsyncClient` for arguments.

    `progress` is called, and the inputs of `stream` are read, in the client's thread.

    Raises:
        ValueError: the URL is not one, the key or the space cannot be sent, or a number is not
            positive.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        patience_seconds: float = 60.0,
        concurrency: int = 4,
        expect: str | None = None,
    ) -> None:
        self._client = AsyncClient(
            url, key=key, patience_seconds=patience_seconds, concurrency=concurrency, expect=expect
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

    info = _make_synchronous(AsyncClient.info)
    ask = _make_synchronous(AsyncClient.ask)
    heads = _make_synchronous(AsyncClient.heads)
    explain = _make_synchronous(AsyncClient.explain)
    attend = _make_synchronous(AsyncClient.attend)
    encode = _make_synchronous(AsyncClient.encode)
    maxsim = _make_synchronous(AsyncClient.maxsim)
    similarity = _make_synchronous(AsyncClient.similarity)
    highlight = _make_synchronous(AsyncClient.highlight)
    space = _make_synchronous(AsyncClient.space)
    check_space = _make_synchronous(AsyncClient.check_space)
    rerank = _make_synchronous(AsyncClient.rerank)
    classify = _make_synchronous(AsyncClient.classify)
    decide = _make_synchronous(AsyncClient.decide)

    def stream(
        self, inputs: Iterable[Input], *, deadline: float | None = None, **options: Unpack[Options]
    ) -> Generator[Encoded, None, None]:
        """Encode inputs, and yield one answer for each request; see AsyncClient.stream."""
        answers = self._client.stream(inputs, deadline=deadline, **options)
        try:
            while (part := self._run(_await_work(lambda: anext(answers, None)))) is not None:
                yield part
        except GeneratorExit:  # the caller has enough
            self._run(_await_work(answers.aclose))
            raise

    def close(self) -> None:
        """Cancel running calls, close the connections and end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._cancel_and_close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_and_close(self) -> None:
        """Cancel running calls and close the connections."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.close()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine on the loop, and return its result; cancel it if interrupted."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


async def _await_work(make: Callable[[], Awaitable[Value]]) -> Value:
    """Await what `make` returns; made here, so that a closed client leaves nothing unawaited."""
    return await make()
