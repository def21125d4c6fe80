"""A steady load on several addresses, each with a journal of its own."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.ray.drill import BODY, Connection, Journal, Lost

PER_SECOND = 50
CONNECTIONS = 4  # to each address
PATIENCE_SECONDS = 50  # beyond 44: as long as HAProxy may take over an answer
AFTER_SECONDS = 3


@dataclass
class Heard:
    """What the clients of one address saw.

    Args:
        sent: requests that were written to a connection.
        slowest: seconds to the latest answer.
    """

    journal: Journal = field(default_factory=Journal)
    sent: int = 0
    slowest: float = 0.0

    def __str__(self) -> str:
        right = self.journal.codes[200]
        parts = [f"sent {self.sent}, right {right}, slowest {self.slowest:.2f} s"]
        if others := {code: n for code, n in self.journal.codes.items() if code != 200}:
            parts.append(f"answered otherwise {others} {self.journal.refusals}")
        if self.journal.lost:
            parts.append(f"lost {dict(Counter(self.journal.lost))}")
        if self.journal.unconnected:
            parts.append(f"{self.journal.unconnected} connections refused")
        return ", ".join(parts)

    def whole(self) -> bool:
        """Whether all that was sent was answered, and right."""
        return self.sent == self.journal.codes[200] > 0 and len(self.journal.data) == 1


async def _client(
    address: str, port: int, period: float, over: Callable[[], bool], heard: Heard
) -> None:
    connection, due = Connection(port, address), time.monotonic()
    while not over():
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status, headers, body = await connection.request(BODY)
            heard.sent += 1
            heard.journal.note(status, headers, body)
            heard.slowest = max(heard.slowest, time.monotonic() - began)
        except (Lost, TimeoutError) as error:
            heard.sent += 1
            heard.journal.lost.append(str(error) or "no answer in time")
            connection.close()
        except OSError:
            heard.journal.unconnected += 1
        due = max(due + period, time.monotonic())  # never a burst of what is behind
        await asyncio.sleep(due - time.monotonic())
    connection.close()


def during(
    do: Callable[[], object], addresses: Iterable[str], port: int, per_second: float = PER_SECOND
) -> dict[str, Heard]:
    """Send requests over kept connections while something is done; what each address gave."""
    heard = {address: Heard() for address in addresses}
    over = threading.Event()

    async def both() -> None:
        period = CONNECTIONS * len(heard) / per_second
        clients = []
        for address in list(heard) * CONNECTIONS:
            client = _client(address, port, period, over.is_set, heard[address])
            clients.append(asyncio.create_task(client))
            await asyncio.sleep(1 / per_second)  # evenly, one after the other
        try:
            await asyncio.to_thread(do)
            await asyncio.sleep(AFTER_SECONDS)
        finally:
            over.set()
        await asyncio.gather(*clients)

    asyncio.run(both())
    return heard
