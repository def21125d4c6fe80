"""The routes of the Open Inference Protocol.

Source: its inference_rest.md, and Triton's extension_binary_data.md.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from itertools import chain
from typing import Any

import orjson
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from service.api import media
from service.api.open_inference.call import Limits, parse
from service.api.open_inference.writer import VERSION, model, written
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, Encoded, Item, join
from service.encode.gateway import Gateway
from service.refusals import Refused

MODEL = "/v2/models/{model:model}"
VERSION_PART = "/versions/{version}"
VERSIONED = MODEL + VERSION_PART
LONGEST_HEADER = 9  # digits of bytes
ITEMS_A_TURN = 64  # that are made of an answer before other requests get a turn

Handler = Callable[[Request], Awaitable[Response]]


class ModelConvertor(PathConvertor):
    """A model's name in a path: it may hold slashes, but not the verb that ends the path."""

    regex = "(?:(?!/infer$|/ready$).)*"


register_url_convertor("model", ModelConvertor())


class InferenceRoutes:
    """What each path answers.

    Args:
        seconds: how long a request may take.
    """

    def __init__(self, gateway: Gateway, seconds: Callable[[Request], float]) -> None:
        self._gateway, self._seconds = gateway, seconds
        info, settings = gateway.info(), gateway.settings
        self._limits = Limits(settings.max_body_bytes, settings.max_sequences, info["layers"])
        widths = (info["width"], info["embedding_width"], gateway.pooled_width)
        self._model = model(gateway.name, *widths)

    def paths(self) -> dict[str, tuple[str, Handler]]:
        """The method and the handler of each path, in the order in which they are tried."""
        return {
            "/v2": ("GET", self.server),
            "/v2/health/live": ("GET", self.live),
            "/v2/health/ready": ("GET", self.ready),
            f"{VERSIONED}/ready": ("GET", self.model_ready),
            f"{VERSIONED}/infer": ("POST", self.infer),
            VERSIONED: ("GET", self.model),
            f"{MODEL}/ready": ("GET", self.model_ready),
            f"{MODEL}/infer": ("POST", self.infer),
            MODEL: ("GET", self.model),
        }

    async def server(self, request: Request) -> Response:
        """GET /v2: the server and what it can beyond the protocol."""
        extensions = ["binary_tensor_data"]
        return _json(name="headlight", version=version("headlight"), extensions=extensions)

    async def live(self, request: Request) -> Response:
        """GET /v2/health/live: the process answers."""
        return _json(live=True)

    async def ready(self, request: Request) -> Response:
        """GET /v2/health/ready: the forward path lately proved itself."""
        self._gateway.check_ready()
        return _json(ready=True)

    async def model(self, request: Request) -> Response:
        """GET /v2/models/{model}: its inputs and outputs."""
        self._check_model(request)
        return _json(**self._model)

    async def model_ready(self, request: Request) -> Response:
        """GET /v2/models/{model}/ready: as the server is."""
        self._check_model(request)
        self._gateway.check_ready()
        return _json(name=self._gateway.name, ready=True)

    async def infer(self, request: Request) -> Response:
        """POST /v2/models/{model}/infer: encode, and answer the outputs named."""
        self._check_model(request)
        media.given(request, JSON, OCTETS)
        begun, most, seen = time.monotonic(), self._seconds(request), request.scope["seen"]
        with seen.stage("parse"):
            call = parse(await request.body(), _header(request), self._limits)
        deadline = begun + min(most, call.seconds)
        done = await self._gateway.encode(
            call.request, deadline, seen, numbers=call.numbers, padded=call.padded
        )
        writing = self._gateway.writing
        with seen.stage("serialize"):
            told, data = written(call, self._gateway.name, await _items(done))
            head = await join(told, writing)
            body = await join(chain([head], data), writing)
        response = Response(body, media_type=call.media_type)
        if call.media_type == OCTETS:
            response.headers[INFERENCE_HEADER] = str(len(head))
        return response

    def _check_model(self, request: Request) -> None:
        asked = request.path_params
        if asked["model"] != self._gateway.name or asked.get("version", VERSION) != VERSION:
            raise Refused.at("model_not_found", "model")


def _header(request: Request) -> int | None:
    """How many bytes of the body are JSON; None where all are."""
    given = request.headers.get(INFERENCE_HEADER)
    if given is None:
        return None
    if not given.isdecimal() or not given.isascii() or len(given) > LONGEST_HEADER:
        raise Refused.at("out_of_range", INFERENCE_HEADER)
    return int(given)


async def _items(done: Encoded) -> list[Item]:
    """All items of an answer, since a padded array needs them all."""
    items = []
    for item in done.items:
        items.append(item)
        if len(items) % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)
    return items


def _json(**body: Any) -> Response:
    return Response(orjson.dumps(body), media_type=JSON)
