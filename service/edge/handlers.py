"""The handlers of the routes that do not encode."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import orjson

from service.api import dialect, openai, tei
from service.api.dialect import Reply, Route
from service.api.document import document
from service.api.open_inference import call as open_inference
from service.api.open_inference.inputs import describe_model
from service.api.operations import PART
from service.api.tei import DecodeRequest, TokenizeRequest
from service.cores import count_cores
from service.edge.asked import Asked, in_time, seconds
from service.edge.encoding import Handler
from service.edge.reading import BodyWorker
from service.encode.answer import JSON, collect
from service.observe.metrics import OPENMETRICS_TYPE, TEXT_TYPE
from service.observe.record import Record
from service.observe.scrape import join_pages
from service.page import site
from service.refusals import Refused
from service.replica import Replica

SCOPES = ("all", "replica")  # of a page of metrics

Scrape = Callable[[bool], Awaitable[bytes]]
Targets = Callable[[], Awaitable[list[str]]]
Wanted = TypeVar("Wanted")
Lesson = Callable[[Wanted, float, Record], Awaitable[Iterator[bytes]]]


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
        self._replica, self._scrape, self._targets = replica, scrape, targets
        self._worker = worker

    def handler(self, route: Route) -> Handler:
        """Return the handler of a route, by its name in the table."""
        handler: Handler = getattr(self, route.handler)
        return handler

    async def attend(self, asked: Asked) -> Reply:
        """Answer POST /v1/attend: the mechanism without a model."""
        lessons = self._replica.lessons
        return await self._teach(asked, lessons.read_attend, lessons.attend)

    async def explain(self, asked: Asked) -> Reply:
        """Answer POST /v1/explain: one text through one layer, step by step."""
        lessons = self._replica.lessons
        return await self._teach(asked, lessons.read_explain, lessons.explain)

    async def heads(self, asked: Asked) -> Reply:
        """Answer GET /v1/heads: what each head of the model does, as measured."""
        most = self._replica.settings.deadline_seconds
        asked.record.given_seconds = seconds(asked.headers, most)
        return _json(await self._replica.heads.answer(self._deadline(asked)))

    async def live(self, asked: Asked) -> Reply:
        """Answer GET /live: the process answers."""
        return _json({"status": "live"})

    async def ready(self, asked: Asked) -> Reply:
        """Answer GET /ready: the forward path proved itself lately."""
        self._replica.check_ready()
        return _json({"status": "ready"})

    async def info(self, asked: Asked) -> Reply:
        """Answer GET /info: the model, the limits, and what clients of other APIs look for."""
        info, workers = self._replica.info(), count_cores()
        classes = self._replica.lanes.model.classes
        cut = self._replica.settings.truncate != "refuse"
        return _json({**info, **tei.info(info, classes, workers, auto_truncate=cut)})

    async def metrics(self, asked: Asked) -> Reply:
        """Answer GET /metrics: every replica's metrics, or this one's."""
        openmetrics = _prefers_openmetrics(asked.headers.get("accept", ""))
        media_type = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
        if dialect.choice(asked.query, "scope", SCOPES) == "replica":
            page = join_pages([self._replica.render_metrics(openmetrics)], False, openmetrics)
        else:
            page = await self._scrape(openmetrics)
        return Reply(page, 200, {"vary": "accept"}, media_type)

    async def targets(self, asked: Asked) -> Reply:
        """Answer GET /metrics/targets: the replicas' addresses, as Prometheus discovers them."""
        if self._targets is None:
            raise Refused("not_found", detail="replicas have no addresses of their own here")
        path = f"{asked.root_path}/metrics"
        labels = {"__metrics_path__": path, "__param_scope": "replica"}
        return _json([{"targets": await self._targets(), "labels": labels}])

    async def docs(self, asked: Asked) -> Reply:
        """Answer GET /docs: the API for people."""
        return Reply(site.docs(), 200, {"content-security-policy": site.POLICY}, site.HTML)

    async def page(self, asked: Asked) -> Reply:
        """Answer GET /: what every head attends to, for people."""
        page = site.attention(asked.root_path)
        return Reply(page, 200, {"content-security-policy": site.POLICY}, site.HTML)

    async def part(self, asked: Asked) -> Reply:
        """Answer GET /page/...: a file of that page."""
        body, kind = site.part(asked.path.removeprefix(PART))
        return Reply(body, 200, {"cache-control": "no-cache"}, kind)

    async def openapi(self, asked: Asked) -> Reply:
        """Answer GET /openapi.json: the API for programs."""
        servers = [{"url": asked.root_path or "/"}]
        return _json(await asyncio.to_thread(document) | {"servers": servers})

    async def models(self, asked: Asked) -> Reply:
        """Answer GET /v1/models and GET /models."""
        return Reply(openai.models(self._replica.gateway.names), media_type=JSON)

    async def model(self, asked: Asked) -> Reply:
        """Answer GET /v1/models/{id}."""
        model = openai.model(self._replica.gateway.names, asked.path_params["id"])
        return Reply(model, media_type=JSON)

    async def tokenize(self, asked: Asked) -> Reply:
        """Answer POST /tokenize: texts as tokens."""
        deadline, record = self._deadline(asked), asked.record
        body = await self._parse(asked, partial(TokenizeRequest.parse, ignored=asked.ignored))
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        pieces = await self._replica.vocabulary.tokenize(
            texts, body.prompt_name, deadline, record, special=body.add_special_tokens
        )
        return await self._written(pieces, deadline, record)

    async def decode(self, asked: Asked) -> Reply:
        """Answer POST /decode: token ids as text."""
        deadline, record = self._deadline(asked), asked.record
        body = await self._parse(asked, partial(DecodeRequest.parse, ignored=asked.ignored))
        pieces = await self._replica.vocabulary.decode(
            body.sequences(), deadline, record, special=not body.skip_special_tokens
        )
        return await self._written(pieces, deadline, record)

    async def health(self, asked: Asked) -> Reply:
        """Answer GET /health: what GET /ready says, without a body."""
        self._replica.check_ready()
        return Reply()

    async def server(self, asked: Asked) -> Reply:
        """Answer GET /v2: the server and what it can do beyond the protocol."""
        names = {"name": "headlight", "version": version("headlight")}
        return _json({**names, "extensions": ["binary_tensor_data"]})

    async def server_live(self, asked: Asked) -> Reply:
        """Answer GET /v2/health/live: the process answers."""
        return _json({"live": True})

    async def server_ready(self, asked: Asked) -> Reply:
        """Answer GET /v2/health/ready: the forward path proved itself lately."""
        self._replica.check_ready()
        return _json({"ready": True})

    async def metadata(self, asked: Asked) -> Reply:
        """Answer GET /v2/models/{model}: its inputs and outputs."""
        open_inference.check_model(asked.path_params, self._replica.gateway.names.every)
        config, pooled = self._replica.lanes.model.config, self._replica.pooled_width
        name = asked.path_params["model"]
        return _json(describe_model(name, config.width, config.embedding_width, pooled))

    async def model_ready(self, asked: Asked) -> Reply:
        """Answer GET /v2/models/{model}/ready: as ready as the server is."""
        open_inference.check_model(asked.path_params, self._replica.gateway.names.every)
        self._replica.check_ready()
        return _json({"name": asked.path_params["model"], "ready": True})

    async def _teach(
        self, asked: Asked, parse: Callable[[bytes], Wanted], lesson: Lesson[Wanted]
    ) -> Reply:
        """Return a lesson's answer as it is written."""
        deadline, record = self._deadline(asked), asked.record
        start = time.monotonic()
        try:
            wanted = await self._parse(asked, parse)
        finally:
            record.end_stage("parse", start)
        return await self._written(await lesson(wanted, deadline, record), deadline, record)

    async def _written(self, pieces: Iterator[bytes], deadline: float, record: Record) -> Reply:
        """Return an answer in pieces of JSON."""
        start = time.monotonic()
        try:
            body = await in_time(collect(pieces, self._replica.writing), deadline)
        finally:
            record.end_stage("serialize", start)
        return Reply(body, media_type=JSON)

    async def _parse(self, asked: Asked, parse: Callable[[bytes], Wanted]) -> Wanted:
        """Return what a JSON body asks for."""
        dialect.check_type(asked.media_type, (JSON,))
        body = asked.take_body()
        return await self._worker.run(len(body), partial(parse, body))

    def _deadline(self, asked: Asked) -> float:
        """Return when the answer is due, on time.monotonic's clock."""
        return asked.record.start + asked.record.given_seconds


def _json(body: Any) -> Reply:
    return Reply(orjson.dumps(body), media_type=JSON)


def _prefers_openmetrics(accept: str) -> bool:
    """Tell whether a scraper reads OpenMetrics at all; those that do read all of it."""
    names = (part.partition(";")[0].strip() for part in accept.lower().split(","))
    return OPENMETRICS_TYPE.partition(";")[0] in names
