"""The table of routes and their handlers: one for all that encode, the others' own."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isinf
from typing import TypeVar

from service.api import ROUTES, own, query
from service.api.dialect import Read, json_reply
from service.api.document import write_document
from service.api.own import DRY_RUN
from service.cluster.choose_model import MODELS_HEADER, NAMES_HEADER, Told, read_models, read_names
from service.door.absent import refuse_path, word_of_path
from service.door.body import LARGE_BYTES, BodyWorker
from service.door.forward import Forwarder, read_model
from service.door.request import Endpoint, Request, check_media_type, read_timeout
from service.pipeline.find.names import find_name, is_same_name
from service.pipeline.replica import Replica
from service.pipeline.space import EXPECT_HEADER
from service.pipeline.write.answer import collect_body
from service.shapes.answer import JSON
from service.shapes.call import Call, ModelFacts, RefusalWriter, Reply, RequestHead, Route
from service.shapes.inputs import InputItem, numbered_items
from service.shapes.record import NO_INPUT
from service.tables.refusals import Refused
from service.tables.wording.wire import SPACE, TRUNCATED, WARNING
from service.tables.wording.words import quote_names

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Reply]]  # answers a request
# Returns all metrics, by whether OpenMetrics is asked for, and whether every model of the address
Scrape = Callable[[bool, bool], Awaitable[bytes]]
# Returns host:port of each replica, by the prefix of its model
Targets = Callable[[bool], Awaitable[Mapping[str, list[str]]]]
Endpoints = dict[str, Endpoint]  # of one path, by method
Result = TypeVar("Result")

UNKNOWN = "other"  # the name in metrics of requests that no route takes
# The pattern of each parameter in a path, none of which repeats a group: each character would take
# ten times as long, and every request's path is compared before any rule
PARAMETER_PATTERNS = {"model": ".*", "id": ".*", "version": "[^/]+"}
# A model's name may hold slashes, but not the verb that ends the path
NO_VERB = "(?!.*/(?:infer|ready)$)"
NO_PARAMS: Mapping[str, str] = {}  # of a path without named parts
BLANK = "blank texts, which have no tokens of their own, are encoded alike"  # a warning
NO_SPECIALS = "ids without this model's special tokens"  # the warning: perhaps of another model


class Routes:
    """The endpoints of one replica, by path and method.

    Args:
        handlers: makes the handlers.
    """

    def __init__(self, handlers: "Handlers") -> None:
        self._exact = dict[str, Endpoints]()
        self._patterns = dict[re.Pattern[str], Endpoints]()
        shared: dict[tuple[str, str], list[Route]] = {}
        for route in ROUTES:
            shared.setdefault((route.path, route.method), []).append(route)
        for routes in shared.values():
            self._add(routes[0], handlers.handler(routes))

    def find(self, method: str, path: str) -> tuple[Endpoint | None, Mapping[str, str]]:
        """Return a request's endpoint, if any, and the named parts of its path."""
        endpoints = self._exact.get(path)
        if endpoints is not None:
            return endpoints.get(method), NO_PARAMS
        for pattern, endpoints in self._patterns.items():
            if method in endpoints and (match := pattern.fullmatch(path)):
                return endpoints[method], match.groupdict()
        return None, NO_PARAMS

    def of_path(self, path: str) -> Endpoints:
        """Return the endpoints of a path by method; empty if no route has the path."""
        matches = (value for pattern, value in self._patterns.items() if pattern.fullmatch(path))
        return self._exact.get(path) or next(matches, {})

    def name(self, path: str) -> tuple[str, RefusalWriter]:
        """Return the name in metrics of a request that no route takes, and what refuses it."""
        for endpoint in self.of_path(path).values():
            return endpoint.label, endpoint.word
        return UNKNOWN, word_of_path(path, self.of_path)

    def refuse(self, method: str, path: str) -> Refused:
        """Return the refusal of a request that no route takes.

        It names the methods of its path, or the path that was probably meant.
        """
        if endpoints := self.of_path(path):
            detail = f"it takes {', '.join(sorted(endpoints))}"
            return Refused("method_not_allowed", detail=detail)
        return refuse_path(method, path, self.of_path)

    def _add(self, route: Route, handler: Handler) -> None:
        """Add the endpoint of a route; a GET also answers HEAD."""
        word = route.api.problem
        endpoint = Endpoint(
            route.path, route.label, word, route.query, route.trusted, handler, route.values
        )
        if "{" in route.path:
            endpoints = self._patterns.setdefault(compile_path(route.path), {})
        else:
            endpoints = self._exact.setdefault(route.path, {})
        endpoints[route.method.upper()] = endpoint
        if route.method == "get":
            endpoints["HEAD"] = endpoint


def inputs_by_label() -> dict[str, tuple[str, ...]]:
    """Return the kinds of inputs of each documented route, by the route's name in metrics."""
    published = (row for row in ROUTES if row.method == "post" or row.api is own.NATIVE)
    inputs = {UNKNOWN: NO_INPUT}
    for row in published:
        inputs[row.label] = max(inputs.get(row.label, ()), row.inputs, key=len)
    return inputs


def compile_path(path: str) -> re.Pattern[str]:
    """Compile a route's path, such as /v1/models/{id}, to a pattern with a group per parameter."""
    parts = re.split(r"{(\w+)}", path)
    groups = [f"(?P<{name}>{PARAMETER_PATTERNS[name]})" for name in parts[1::2]]
    if path.endswith("{model}"):
        groups[-1] = NO_VERB + groups[-1]
    literals = map(re.escape, parts[::2])
    pattern = "".join(text + group for text, group in zip(literals, [*groups, ""], strict=True))
    return re.compile(pattern, re.DOTALL)  # a name may hold any character


class Handlers:
    """Makes the handlers of one replica; a RouteContext for those that do not encode.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
        worker: parses large bodies.
        forwarder: sends on what another model of this address is to answer.
    """

    def __init__(
        self,
        replica: Replica,
        scrape: Scrape,
        targets: Targets | None,
        worker: BodyWorker,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.replica, self.scrape, self.targets = replica, scrape, targets
        self._worker, self._forwarder = worker, forwarder
        settings, model = replica.settings, replica.lanes.model
        self._served = ModelFacts(
            replica.gateway.names.every,
            model.tasks,
            model.config.layers,
            settings.max_body_bytes,
            settings.max_sequences,
            model.prompts.texts,
        )
        # as JSON, by where they say the service is mounted; made once, however many ask meanwhile
        self._documents = dict[str, asyncio.Task[bytes]]()
        self._special_ids, self._has_warned = model.tokenizer.special_ids, False

    def handler(self, routes: Sequence[Route]) -> Handler:
        """Return the handler of the routes with one path and method."""
        if (answers := routes[0].answers) is None:
            return self._encoder(routes)
        judges = routes[0].method == "post"

        async def answer(request: Request) -> Reply:
            """Answer a request, or send it on to the model that it names."""
            if judges:
                if reply := await self._send_on(request, request.body):
                    return reply
                self._judge_key(request)
            return await answers(request, self)

        return answer

    def _encoder(self, routes: Sequence[Route]) -> Handler:
        """Return the handler of routes with one path that encode."""
        replica, served = self.replica, self._served
        media_types, has_dry_run = routes[0].media_types, DRY_RUN in routes[0].query
        parse = _parser(routes)

        async def encode(request: Request) -> Reply:
            """Parse and encode a request and write its answer, or its price in a dry run."""
            record, body = request.record, request.take_body()
            start = time.monotonic()
            try:
                if request.media_type != JSON:
                    check_media_type(request.media_type, media_types)
                if len(body) <= LARGE_BYTES:
                    call = parse(body, request, served)
                else:
                    work = partial(parse, body, request, served)
                    call = await self._worker.run(len(body), work)
                    del work
            finally:
                record.end_stage("parse", start)
            if self._forwarder and (reply := await self._send_on(request, body, call)):
                return reply
            if request.models:
                self._judge_key(request, call.request.model)
            del body
            if call.seconds < record.given_seconds:
                record.given_seconds = call.seconds
            deadline = record.start + record.given_seconds
            expected = request.headers.get(EXPECT_HEADER)
            arguments = call.request, deadline, record, call.custom, expected
            if has_dry_run and request.query and query.read_flag(request.query, DRY_RUN):
                price = await replica.gateway.dry_run(*arguments)
                return json_reply(price)
            encoded = await replica.gateway.encode(*arguments)
            start = time.monotonic()
            try:
                reply = call.write_small(encoded)
                if reply is None:
                    reply = await await_until(deadline, call.write(encoded, replica.writing))
            finally:
                record.end_stage("serialize", start)
            if "space" in encoded.preamble:
                reply.add(SPACE, encoded.preamble["space"])
            if "truncated" in encoded.usage:
                reply.add(TRUNCATED, str(encoded.usage["truncated"]))
            warnings = [BLANK] if "blank" in encoded.usage else []
            if record.input in ("tokens", "mixed") and any(
                self._lacks_specials(item) for _, item in numbered_items(call.request.texts())
            ):
                warnings.append(NO_SPECIALS)
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning(NO_SPECIALS, extra=record.log_ids())
            if warnings:
                reply.add(WARNING, "; ".join(warnings))
            return reply

        return encode

    async def _send_on(
        self, request: Request, body: bytes, call: Call | None = None
    ) -> Reply | None:
        """Return the answer of another model of this address that a request names, if it does.

        Args:
            call: what was parsed of the body; None on a route that does not encode.
        """
        if self._forwarder is None or NAMES_HEADER not in request.headers:
            return None
        if call is None or "model" in request.ignored:
            named = await self._worker.run(len(body), partial(read_model, body))
        else:
            named = call.request.model
        if (model := self._forwarder.find_elsewhere(request, named)) is None:
            return None
        return await self._forwarder.forward(request, body, model)

    def _judge_key(self, request: Request, named: str | None = None) -> None:
        """Refuse a request whose key may not use this model.

        Args:
            named: the model that it names; one that is not here is refused as such.
        """
        own, *_ = self._served.names
        if not request.models or any(is_same_name(name, own) for name in request.models):
            return
        if named is not None:
            find_name(named, self._served.names)
        detail = f"it may use {quote_names(request.models, 'and')}"
        raise Refused("model_forbidden", detail=detail)

    def _lacks_specials(self, item: InputItem) -> bool:
        """Tell whether an input is token ids with no special one at either end."""
        ids, special = item.token_ids, self._special_ids
        return ids is not None and bool(special) and special.isdisjoint((ids[0], ids[-1]))

    async def document(self, root: str) -> bytes:
        """Return the OpenAPI document as JSON, for a service mounted below `root`."""
        if root not in self._documents:
            making = asyncio.to_thread(write_document, root)
            self._documents[root] = asyncio.create_task(making)
        return await asyncio.shield(self._documents[root])

    def names(self, head: RequestHead) -> Sequence[str]:
        """Return what clients may call the models of this address."""
        told = head.headers.get(NAMES_HEADER)
        return read_names(told) if told else self._served.names

    def models(self, head: RequestHead) -> Sequence[Told]:
        """Return all models of this address; none where the request is for this one alone."""
        return read_models(head.headers.get(MODELS_HEADER, ""))

    def find_unready(self, head: RequestHead) -> Sequence[str]:
        """Return the names of models of this address that do not answer.

        Raises:
            Refused: this one does not, and there is no other that does.
        """
        others = [model for model in self.models(head) if model.name != self.replica.name]
        unready = [model.name for model in others if not model.answers]
        try:
            self.replica.check_ready()
        except Refused:
            if len(unready) == len(others):
                raise
            unready.append(self.replica.name)
        return unready

    async def read(self, head: RequestHead, parse: Callable[[bytes], Read]) -> Read:
        """Parse a request's JSON body, in the worker if it is large, and return the result."""
        start = time.monotonic()
        try:
            check_media_type(head.media_type, (JSON,))
            body = head.take_body()
            return await self._worker.run(len(body), partial(parse, body))
        finally:
            head.record.end_stage("parse", start)

    async def write(self, head: RequestHead, pieces: Iterator[bytes]) -> Reply:
        """Write pieces of JSON as the answer, before its deadline."""
        start = time.monotonic()
        try:
            writing = collect_body(pieces, self.replica.writing)
            body = await await_until(self.deadline(head), writing)
        finally:
            head.record.end_stage("serialize", start)
        return Reply(body, media_type=JSON)

    def deadline(self, head: RequestHead) -> float:
        """Return when the answer is due, on time.monotonic's clock."""
        record = head.record
        if isinf(record.given_seconds):  # of a GET, whose header the door has not read
            most = self.replica.settings.deadline_seconds
            record.given_seconds = read_timeout(head.headers, most)
        return record.start + record.given_seconds


def _parser(routes: Sequence[Route]) -> Callable[[bytes, Request, ModelFacts], Call]:
    """Return the parser of routes with one path, which chooses the route by Route.when."""
    parsers = [(route.parse, route) for route in routes if route.parse]
    ((default, _),) = [(parse, route) for parse, route in parsers if route.when is None]

    def parse(body: bytes, request: Request, served: ModelFacts) -> Call:
        """Parse a body by the first route that takes it, which then words refusals too."""
        for parse, route in parsers:
            if route.when and route.when(body, served):
                request.word = route.api.problem
                return parse(body, request, served)
        return default(body, request, served)

    return parse if len(parsers) > 1 else default


async def await_until(deadline: float, work: Awaitable[Result]) -> Result:
    """Await work and return its result, if it ends by the deadline.

    Args:
        deadline: on time.monotonic's clock.

    Raises:
        Refused: the deadline has passed; work that never awaits is not interrupted.
    """
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await work
    except TimeoutError:
        raise Refused("deadline_exceeded") from None
