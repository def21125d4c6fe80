"""The handlers of the routes that do not encode: what their answers ask of the replica."""

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from math import isinf
from typing import Any

from service.api import dialect
from service.api.dialect import Read, Reply, Route, Sent
from service.api.document import document
from service.edge.asked import in_time, seconds
from service.edge.encoding import Handler
from service.edge.reading import BodyWorker
from service.encode.answer import JSON, collect
from service.replica import Replica

Scrape = Callable[[bool], Awaitable[bytes]]
Targets = Callable[[], Awaitable[list[str]]]


class Handlers:
    """The handlers of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
        worker: where large bodies are parsed.
    """

    def __init__(
        self, replica: Replica, scrape: Scrape, targets: Targets | None, worker: BodyWorker
    ) -> None:
        self.replica, self.scrape, self.targets = replica, scrape, targets
        self._worker = worker

    def handler(self, route: Route) -> Handler:
        """Return the handler of a route that does not encode."""
        answers = route.answers
        if answers is None:
            raise ValueError(f"nothing answers {route.path}")
        return lambda asked: answers(asked, self)

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return document()

    async def read(self, sent: Sent, parse: Callable[[bytes], Read]) -> Read:
        """Return what a JSON body asks for."""
        start = time.monotonic()
        try:
            dialect.check_type(sent.media_type, (JSON,))
            body = sent.take_body()
            return await self._worker.run(len(body), partial(parse, body))
        finally:
            sent.record.end_stage("parse", start)

    async def write(self, sent: Sent, pieces: Iterator[bytes]) -> Reply:
        """Return an answer in pieces of JSON."""
        start = time.monotonic()
        try:
            body = await in_time(collect(pieces, self.replica.writing), self.deadline(sent))
        finally:
            sent.record.end_stage("serialize", start)
        return Reply(body, media_type=JSON)

    def deadline(self, sent: Sent) -> float:
        """Return when the answer is due, on time.monotonic's clock."""
        record = sent.record
        if isinf(record.given_seconds):  # of a GET: only some of them may take a while
            most = self.replica.settings.deadline_seconds
            record.given_seconds = seconds(sent.headers, most)
        return record.start + record.given_seconds
