"""Every route that encodes: parse, run, write, whatever API it is of."""

from collections.abc import Awaitable, Callable
from functools import partial

import orjson

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
from service.edge.asked import Asked, Reply
from service.edge.deadline import in_time
from service.edge.reading import LARGE_BYTES, Beside
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.refusals import Refused
from service.replica import Replica

Handler = Callable[[Asked], Awaitable[Reply]]
Parse = Callable[[Asked, bytes], Call]


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

        def parse_json(asked: Asked, body: bytes) -> Call:
            media.content_type(asked.media_type, JSON)
            return parse(body)

        return self._handler(parse_json)

    def _handler(self, parse: Parse, priced: bool = False) -> Handler:
        """One route.

        Args:
            priced: whether ?dry_run=true asks what an answer would cost.
        """
        replica = self._replica

        async def encode(asked: Asked) -> Reply:
            record, body = asked.record, asked.take_body()
            with record.stage("parse"):
                if len(body) <= LARGE_BYTES:
                    call = parse(asked, body)
                else:
                    call = await self._beside.run(len(body), partial(parse, asked, body))
                del body
            if call.seconds < record.given_seconds:
                record.given_seconds = call.seconds
            deadline = record.start + record.given_seconds
            if priced and query.flag(asked.query, "dry_run"):
                price = await replica.gateway.dry_run(call.request, deadline, record)
                return Reply(orjson.dumps(price), media_type=JSON)
            encoded = await replica.gateway.encode(call.request, deadline, record)
            with record.stage("serialize"):
                answer = call.at_once(encoded)
                if answer is None:
                    answer = await in_time(call.write(encoded, replica.writing), deadline)
            return Reply(answer.pieces, 200, answer.headers, call.media_type)

        return encode

    def _parse_rerank(self, asked: Asked, body: bytes) -> Call:
        """TEI's request or Infinity's, which from here on is answered in its own words."""
        media.content_type(asked.media_type, JSON)
        most = self._replica.settings.max_body_bytes
        if not infinity.asks_rerank(body):
            return tei_tasks.rerank(body, most)
        asked.wording = infinity.rerank_problem
        return infinity.rerank(body, most)

    def _parse_native(self, asked: Asked, body: bytes) -> Call:
        media_type = media.content_type(asked.media_type, JSON, SAFETENSORS)
        accept = media.answer_type(asked.headers.get("accept", "*/*"))
        return native.parse(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_similarity(self, asked: Asked, body: bytes) -> Call:
        media_type = media.content_type(asked.media_type, JSON, SAFETENSORS)
        accept = media.answer_type(asked.headers.get("accept", "*/*"))
        return questions.similarity(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_maxsim(self, asked: Asked, body: bytes) -> Call:
        media_type = media.content_type(asked.media_type, JSON, SAFETENSORS)
        accept = media.answer_type(asked.headers.get("accept", "*/*"))
        return maxsim.parse(body, media_type, accept, self._replica.settings.max_body_bytes)

    def _parse_infer(self, asked: Asked, body: bytes) -> Call:
        check_model(asked, self._replica)
        media.content_type(asked.media_type, JSON, OCTETS)
        length = open_inference.header(asked.headers.get(INFERENCE_HEADER))
        return open_inference.parse(body, length, self._limits)


def check_model(asked: Asked, replica: Replica) -> None:
    """Refuse a path of the Open Inference Protocol that names another model or version."""
    path = asked.path_params
    if path["model"] != replica.name or path.get("version", VERSION) != VERSION:
        detail = f'this service serves "{replica.name}", version {VERSION}'
        raise Refused.at("model_not_found", "model", detail=detail)
