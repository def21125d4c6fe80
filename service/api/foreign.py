"""The routes of other APIs: path -> (method, what it does, how it refuses).

All that encode go the one way, `Gateway.encode`; what differs is in service/api/.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api import media
from service.api.dialect import Call, Say
from service.api.openai import call as openai
from service.api.tei import call as tei
from service.api.tei.request import DecodeRequest, TokenizeRequest
from service.encode.answer import JSON, join
from service.encode.gateway import Gateway
from service.refusals import Refused

OTHER_TASKS = tei.OTHER_TASKS
ALIKE = {"/": "/embed"}  # one route by two paths

Handler = Callable[[Request], Awaitable[Response]]
Row = tuple[str, Handler, Say]
Seconds = Callable[[Request], float]  # how long a request may take


def rows(gateway: Gateway, seconds: Seconds) -> dict[str, Row]:
    """The table."""

    def encoding(parse: Callable[[bytes], Call]) -> Handler:
        return _encoding(gateway, seconds, parse)

    tools = Tools(gateway, seconds)
    return {
        "/v1/embeddings": ("POST", encoding(openai.parse), openai.problem),
        "/v1/models": ("GET", tools.models, openai.problem),
        "/v1/models/{id:path}": ("GET", tools.model, openai.problem),
        "/": ("POST", encoding(tei.embed), tei.problem),
        "/embed": ("POST", encoding(tei.embed), tei.problem),
        "/embed_all": ("POST", encoding(tei.embed_all), tei.problem),
        "/similarity": ("POST", encoding(tei.similarity), tei.problem),
        "/tokenize": ("POST", tools.tokenize, tei.problem),
        "/decode": ("POST", tools.decode, tei.problem),
        "/health": ("GET", tools.health, tei.problem),
        **{path: ("POST", tools.other_task, tei.problem) for path in OTHER_TASKS},
    }


def info(gateway: Gateway) -> dict[str, Any]:
    """The body of GET /info, with what other APIs' clients look for."""
    told = gateway.info()
    return {**told, **tei.info(told, workers=len(os.sched_getaffinity(0)))}


def _encoding(gateway: Gateway, seconds: Seconds, parse: Callable[[bytes], Call]) -> Handler:
    """A route that encodes."""

    async def answered(request: Request) -> Response:
        media.given(request, JSON)
        deadline, seen = time.monotonic() + seconds(request), request.scope["seen"]
        with seen.stage("parse"):
            call = parse(await request.body())
        done = await gateway.encode(call.request, deadline, seen, numbers=call.numbers)
        with seen.stage("serialize"):
            written = await join(call.write(done), gateway.writing)
        return Response(written, media_type=call.media_type)

    return answered


class Tools:
    """What the routes answer that do not encode."""

    def __init__(self, gateway: Gateway, seconds: Seconds) -> None:
        self._gateway, self._seconds = gateway, seconds

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return Response(openai.models(self._gateway.name), media_type=JSON)

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        told = openai.model(self._gateway.name, request.path_params["id"])
        return Response(told, media_type=JSON)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: texts as tokens."""
        media.given(request, JSON)
        deadline = time.monotonic() + self._seconds(request)
        asked = TokenizeRequest.model_validate_json(await request.body())
        texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
        pieces = await self._gateway.vocabulary.tokenize(
            texts, asked.prompt_name, deadline, special=asked.add_special_tokens
        )
        return Response(await asyncio.to_thread(tei.tokenized, pieces), media_type=JSON)

    async def decode(self, request: Request) -> Response:
        """POST /decode: token ids as text."""
        media.given(request, JSON)
        deadline = time.monotonic() + self._seconds(request)
        asked = DecodeRequest.model_validate_json(await request.body())
        texts = await self._gateway.vocabulary.decode(
            asked.sequences(), deadline, special=not asked.skip_special_tokens
        )
        return Response(orjson.dumps(texts), media_type=JSON)

    async def health(self, request: Request) -> Response:
        """GET /health: what GET /ready says, with no body."""
        self._gateway.check_ready()
        return Response()

    async def other_task(self, request: Request) -> Response:
        """What a dense encoder cannot answer."""
        raise Refused("task_not_found")
