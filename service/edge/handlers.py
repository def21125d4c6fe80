"""The handlers of all routes: those that encode, in whichever API, and what others may ask."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from math import isinf
from typing import Any

from service.api import dialect, query
from service.api.dialect import Call, Read, Reply, Route, Sent, Served, to_json
from service.api.document import document
from service.api.own import DRY_RUN
from service.edge.asked import Asked, in_time, seconds
from service.edge.reading import LARGE_BYTES, BodyWorker
from service.encode.answer import JSON, collect
from service.encode.space import EXPECT
from service.encode.space import HEADER as SPACE
from service.inputs import Item, items
from service.replica import Replica
from service.wire import WARNING

logger = logging.getLogger(__name__)

Handler = Callable[[Asked], Awaitable[Reply]]
Scrape = Callable[[bool], Awaitable[bytes]]
Targets = Callable[[], Awaitable[list[str]]]
TRUNCATED = "x-headlight-truncated"  # how many inputs were cut, where some were
BARE = "ids without this model's special tokens"  # as those of another vocabulary


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
        settings, model = replica.settings, replica.lanes.model
        self._served = Served(
            replica.gateway.names.every,
            model.tasks,
            model.config.layers,
            settings.max_body_bytes,
            settings.max_sequences,
            model.prompts.texts,
        )
        self._special, self._warned = model.tokenizer.special_ids, False

    def handler(self, routes: Sequence[Route]) -> Handler:
        """Return the handler of the routes with one path and method."""
        answers = routes[0].answers
        return (lambda asked: answers(asked, self)) if answers else self._encodes(routes)

    def _encodes(self, routes: Sequence[Route]) -> Handler:
        """Return the handler of routes that encode, with one path."""
        replica, served = self.replica, self._served
        media_types, priced = routes[0].media_types, DRY_RUN in routes[0].query
        parse = _parser(routes)

        async def encode(asked: Asked) -> Reply:
            record, body = asked.record, asked.take_body()
            start = time.monotonic()
            try:
                if asked.media_type != JSON:
                    dialect.check_type(asked.media_type, media_types)
                if len(body) <= LARGE_BYTES:
                    call = parse(body, asked, served)
                else:
                    work = partial(parse, body, asked, served)
                    call = await self._worker.run(len(body), work)
                    del work
                del body
            finally:
                record.end_stage("parse", start)
            if call.seconds < record.given_seconds:
                record.given_seconds = call.seconds
            deadline = record.start + record.given_seconds
            expected = asked.headers.get(EXPECT)
            asking = call.request, deadline, record, call.custom, expected
            if priced and asked.query and query.flag(asked.query, DRY_RUN):
                price = await replica.gateway.dry_run(*asking)
                return to_json(price)
            encoded = await replica.gateway.encode(*asking)
            start = time.monotonic()
            try:
                reply = call.at_once(encoded)
                if reply is None:
                    reply = await in_time(call.write(encoded, replica.writing), deadline)
            finally:
                record.end_stage("serialize", start)
            if "space" in encoded.preamble:
                reply.add(SPACE, encoded.preamble["space"])
            if "truncated" in encoded.usage:
                reply.add(TRUNCATED, str(encoded.usage["truncated"]))
            if self._special and any(self._is_bare(one) for _, one in items(call.request.texts())):
                reply.add(WARNING, BARE)
                if not self._warned:
                    self._warned = True
                    logger.warning(BARE, extra=record.log_ids())
            return reply

        return encode

    def _is_bare(self, one: Item) -> bool:
        """Tell whether an input is token ids with no special one at either end."""
        ids = one.token_ids
        return ids is not None and self._special.isdisjoint((ids[0], ids[-1]))

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


def _parser(routes: Sequence[Route]) -> Callable[[bytes, Asked, Served], Call]:
    """Return the parser of routes with one path, of which each tells its requests by the body."""
    parsers = [(route.parse, route) for route in routes if route.parse]
    ((usual, _),) = [each for each in parsers if each[1].when is None]

    def parse(body: bytes, asked: Asked, served: Served) -> Call:
        for parse, route in parsers:
            if route.when and route.when(body, served):
                asked.wording = route.api.problem
                return parse(body, asked, served)
        return usual(body, asked, served)

    return parse if len(parsers) > 1 else usual
