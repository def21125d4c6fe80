"""POST /v1/embeddings and GET /v1/models, as OpenAI's clients know them."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from service.api.dialect import InPieces, Problem, sentence
from service.api.inputs import items
from service.api.openai.request import EmbeddingsRequest
from service.encode import answer
from service.encode.answer import JSON, Array, Encoded
from service.encode.request import Layout, Pooled, Request
from service.refusals import OPENAI, Refused

# codes of ours by the names that OpenAI has for the same
CODES = {"sequence_too_long": "context_length_exceeded", "overloaded": "rate_limit_exceeded"}
NAMES = {"inputs": "input", "pooled": "dimensions"}
NUMBERS, BYTES = Layout(compact=({"encoding_format": "base64"},)), Layout(numbers=())

UNIT = Pooled(normalize=True)  # as TEI's route has it, whatever the checkpoint does


class Call(InPieces):
    """A request of POST /v1/request."""

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        yield b'{"object":"list","data":['
        for index, item in enumerate(encoded.items):
            head = {"object": "embedding", "index": index}
            yield (b"," if index else b"") + orjson.dumps(head)[:-1] + b',"embedding":'
            if item.pooled is not None:
                encode = answer.numbers if self.request.layout is NUMBERS else _base64
                yield from encode(item.pooled)
            yield b"}"
        tokens = encoded.usage["tokens"]
        tail = {
            "model": encoded.head["model"],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **self.added(),
        }
        yield b"]," + orjson.dumps(tail)[1:]

    def added(self) -> dict[str, Any]:
        """What an API like OpenAI's answers as well."""
        return {}


def parse(body: bytes) -> Call:
    """Read a request.

    Raises:
        ValidationError: what service/refusals.py gives a status.
    """
    request = EmbeddingsRequest.model_validate_json(body)
    native = Request(
        inputs=items(request.input),
        model=request.model,
        pooled=unit(request.dimensions),
        layout=NUMBERS if request.encoding_format == "float" else BYTES,
    )
    return Call(request=native)


def unit(dimensions: int | None) -> Pooled:
    """Vectors of length 1 of so many numbers, or of all."""
    return UNIT if dimensions is None else Pooled(normalize=True, dimensions=dimensions)


def models(name: str) -> bytes:
    """The list of models: the one that is served."""
    return orjson.dumps({"object": "list", "data": [_model(name)]})


def model(name: str, id: str) -> bytes:
    """The model of a name.

    Args:
        name: of the model that is served.

    Raises:
        Refused: that one has another name.
    """
    if id != name:
        raise Refused.at("model_not_found", "model", detail=f'this service serves "{name}"')
    return orjson.dumps(_model(name))


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as OpenAI's API words it."""
    status = OPENAI.get(refused.code, refused.status)
    fault = {
        "message": sentence(refused, NAMES),
        "type": _type(refused),
        "param": _param(refused),
        "code": CODES.get(refused.code, refused.code),
    }
    return Problem(status, orjson.dumps({"error": fault}), JSON)


def _base64(array: Array) -> Iterator[bytes]:
    """An array's little-endian float32 bytes as a JSON string."""
    little = np.ascontiguousarray(array, dtype="<f4")
    yield b'"' + base64.b64encode(little.data) + b'"'


def _model(name: str) -> dict[str, Any]:
    # when a checkpoint was made stands in none of its files
    return {"id": name, "object": "model", "created": 0, "owned_by": "headlight"}


def _type(refused: Refused) -> str:
    if refused.code == "overloaded":
        return "rate_limit_error"
    return "server_error" if refused.ours else "invalid_request_error"


def _param(refused: Refused) -> str | None:
    """The field that is wrong."""
    loc = refused.faults[0].loc if refused.faults else ()
    return NAMES.get(str(loc[0]), str(loc[0])) if loc else None
