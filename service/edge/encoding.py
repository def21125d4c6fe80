"""Every route that encodes: parse, run, write, whatever API it is of."""

from collections.abc import Awaitable, Callable
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api import media, query
from service.api.dialect import Call
from service.api.infinity import call as infinity
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.open_inference.request import VERSION
from service.api.openai import call as openai
from service.api.operations import INFER_MODEL, VERSION_PART
from service.api.questions import call as questions
from service.api.questions import maxsim
from service.api.rerank import call as rerank
from service.api.tei import call as tei
from service.api.tei import tasks as tei_tasks
from service.edge.beside import Beside
from service.edge.deadline import in_time, seconds
from service.edge.pieces import InPieces
from service.edge.reading import whole
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.refusals import Refused
from service.replica import Replica

WORDING = "wording"  # in a request's scope: how it is refused, where its path does not say

Handler = Callable[[Request], Awaitable[Response]]
Parse = Callable[[Request, bytes], Call]


class Encoding:
    """Makes the handlers of one replica.

    Args:
        beside: where large bodies are parsed.
    """

    def __init__(self, replica: Replica, beside: Beside) -> None:
        self._replica, self._beside = replica, beside
        settings, layers = replica.settings, replica.lanes.model.config.layers
        self._limits = open_inference.Limits(
            settings.max_body_bytes, settings.max_sequences, layers
        )

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """What each path and method does."""
        infer = self._handler(self._parse_infer)
        most = self._replica.settings.max_body_bytes
        tei_rerank = partial(tei_tasks.rerank, most=most)
        return {
            ("/v1/encode", "post"): self._handler(self._parse_native, priced=True),
            ("/v1/similarity", "post"): self._handler(self._parse_similarity, priced=True),
            ("/v1/maxsim", "post"): self._handler(self._parse_maxsim, priced=True),
            ("/v1/embeddings", "post"): self._plain(openai.parse),
            ("/embeddings", "post"): self._plain(infinity.embeddings),
            ("/classify", "post"): self._plain(infinity.classify),
            ("/", "post"): self._plain(self._main(tei_rerank)),
            ("/embed", "post"): self._plain(tei.embed),
            ("/embed_all", "post"): self._plain(tei.embed_all),
            ("/similarity", "post"): self._plain(tei.similarity),
            ("/rerank", "post"): self._handler(self._parse_rerank),
            ("/predict", "post"): self._plain(tei_tasks.predict),
            ("/embed_sparse", "post"): self._plain(tei_tasks.embed_sparse),
            ("/v1/rerank", "post"): self._plain(partial(rerank.parse, most=most, documents=True)),
            ("/v2/rerank", "post"): self._plain(partial(rerank.parse, most=most, documents=False)),
            (f"{INFER_MODEL}/infer", "post"): infer,
            (f"{INFER_MODEL}{VERSION_PART}/infer", "post"): infer,
        }

    def _main(self, tei_rerank: Callable[[bytes], Call]) -> Callable[[bytes], Call]:
        """What TEI's POST / does: what the checkpoint is for."""
        tasks = self._replica.lanes.model.tasks
        if "rerank" in tasks:
            return tei_rerank
        if "classify" in tasks:
            return tei_tasks.predict
        return tei_tasks.embed_sparse if "sparse" in tasks else tei.embed

    def _plain(self, parse: Callable[[bytes], Call]) -> Handler:
        """A route that takes JSON, of which the body says all."""

        def parse_json(request: Request, body: bytes) -> Call:
            media.content_type(request, JSON)
            return parse(body)

        return self._handler(parse_json)

    def _handler(self, parse: Parse, priced: bool = False) -> Handler:
        """One route.

        Args:
            priced: whether ?dry_run=true asks what an answer would cost.
        """
        replica = self._replica

        async def encode(request: Request) -> Response:
            record = request.scope["record"]
            most = seconds(request.headers, replica.settings.deadline_seconds)
            with record.stage("parse"):
                body = await whole(request)
                call = await self._beside.run(len(body), partial(parse, request, body))
                del body
            record.given_seconds = min(most, call.seconds)
            deadline = record.start + record.given_seconds
            if priced and query.flag(request, "dry_run"):
                price = await replica.gateway.dry_run(call.request, deadline, record)
                return Response(orjson.dumps(price), media_type=JSON)
            encoded = await replica.gateway.encode(call.request, deadline, record)
            with record.stage("serialize"):
                answer = call.at_once(encoded)
                if answer is None:
                    answer = await in_time(call.write(encoded, replica.writing), deadline)
            return InPieces(answer.pieces, record.hold, answer.headers, call.media_type)

        return encode

    def _parse_rerank(self, request: Request, body: bytes) -> Call:
        """TEI's request or Infinity's, which from here on is answered in its own words."""
        media.content_type(request, JSON)
        most = self._replica.settings.max_body_bytes
        if not infinity.asks_rerank(body):
            return tei_tasks.rerank(body, most)
        request.scope[WORDING] = infinity.rerank_problem
        return infinity.rerank(body, most)

    def _parse_native(self, request: Request, body: bytes) -> Call:
        media_type = media.content_type(request, JSON, SAFETENSORS)
        accept = media.answer_type(request.headers.get("accept", "*/*"))
        return native.parse(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_similarity(self, request: Request, body: bytes) -> Call:
        media_type = media.content_type(request, JSON, SAFETENSORS)
        accept = media.answer_type(request.headers.get("accept", "*/*"))
        return questions.similarity(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_maxsim(self, request: Request, body: bytes) -> Call:
        media_type = media.content_type(request, JSON, SAFETENSORS)
        accept = media.answer_type(request.headers.get("accept", "*/*"))
        return maxsim.parse(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_infer(self, request: Request, body: bytes) -> Call:
        check_model(request, self._replica)
        media.content_type(request, JSON, OCTETS)
        length = open_inference.header(request.headers.get(INFERENCE_HEADER))
        return open_inference.parse(body, length, self._limits)


def check_model(request: Request, replica: Replica) -> None:
    """Refuse a path of the Open Inference Protocol that names another model or version."""
    path = request.path_params
    if path["model"] != replica.name or path.get("version", VERSION) != VERSION:
        detail = f'this service serves "{replica.name}", version {VERSION}'
        raise Refused.at("model_not_found", "model", detail=detail)
