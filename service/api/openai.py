"""OpenAI's API: POST /v1/embeddings and GET /v1/models, as its clients know them.

Source of the request: OpenAI's openapi.yaml, CreateEmbeddingRequest.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Reply, Sent, Served, sentence
from service.api.inputs import Dimensions, TextsOrIds, check_dense, items
from service.api.precisions import Precision, vectors, written
from service.encode.answer import JSON, Each, Encoded
from service.encode.names import Names
from service.encode.request import Layout, Pooled, Request
from service.refusals import OPENAI, Refused
from service.wire import Wire


class EmbeddingsRequest(Wire):
    """The body of OpenAI's POST /v1/embeddings."""

    input: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""
    model: str
    """The model you expect; another name than the served one is refused."""
    encoding_format: Precision = "float"
    """How vectors are written: as JSON numbers; as base64 of little-endian float32; or in fewer
    bytes, as whole numbers of one byte for each number ("int8", "uint8") or for eight of them
    ("binary", "ubinary")."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out. The vector is cut, then scaled to length 1."""
    truncate: Truncate | None = None
    """Headlight's own: what happens to an input of more than `max_tokens` tokens: it is refused, or
    cut on this side; left out or null: `truncate` of GET /info."""
    task: str | None = None
    """As in Jina's API: the adapter that is added to the model, by its name alone, and its
    instruction before each text; left out: the one that `model` names, or none."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""


# our codes -> OpenAI's names for the same
CODES = {"sequence_too_long": "context_length_exceeded", "overloaded": "rate_limit_exceeded"}
NAMES = {"inputs": "input", "pooled": "dimensions"}
NUMBERS, BYTES = Layout(compact=({"encoding_format": "base64"},)), Layout(numbers=())

UNIT = Pooled(normalize=True)  # as in TEI's route, whatever the checkpoint does


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings(JSONCall):
    """A request of POST /v1/embeddings."""

    precision: Precision

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        data = Each(
            {"object": "embedding", "index": index, "embedding": written(vector, self.precision)}
            for index, vector in enumerate(vectors(encoded))
        )
        model, usage = encoded.preamble["model"], count_usage(encoded)
        return {"object": "list", "data": data, "model": model, "usage": usage, **self.added()}

    def added(self) -> dict[str, Any]:
        """Return the fields that an API like OpenAI's adds."""
        return {}


def parse(body: bytes, sent: Sent, served: Served) -> Embeddings:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    request = EmbeddingsRequest.model_validate_json(body)
    check_dense(served.tasks)
    native = Request(
        inputs=items(request.input),
        model=request.model,
        task=request.task,
        truncate=request.truncate,
        counted=False,
        pooled=unit(request.dimensions),
        layout=layout(request.encoding_format),
    )
    return Embeddings(request=native, precision=request.encoding_format)


def count_usage(encoded: Encoded) -> dict[str, int]:
    """Return a request's usage."""
    tokens, truncated = encoded.usage["tokens"], encoded.usage.get("truncated")
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return counts if truncated is None else counts | {"truncated": truncated}


def layout(precision: Precision) -> Layout:
    """Return how vectors are written."""
    return NUMBERS if precision == "float" else BYTES


def unit(dimensions: int | None) -> Pooled:
    """Ask for vectors of length 1, with this many numbers or all."""
    return UNIT if dimensions is None else Pooled(normalize=True, dimensions=dimensions)


def models(names: Names) -> bytes:
    """Return the list of models: the one that is served, and with each of its adapters."""
    return orjson.dumps({"object": "list", "data": [_model(name) for name in names.every]})


def model(names: Names, id: str) -> bytes:
    """Return the model with the given id.

    Args:
        names: of the model that is served.

    Raises:
        Refused: the id is none of them.
    """
    names.adapter(id)
    return orjson.dumps(_model(id))


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal as OpenAI's API words it."""
    status = OPENAI.get(refused.code, refused.status)
    fault = {
        "message": sentence(refused, NAMES),
        "type": _type(refused),
        "param": _param(refused),
        "code": CODES.get(refused.code, refused.code),
    }
    return Reply(orjson.dumps({"error": fault}), status, media_type=JSON)


def _model(name: str) -> dict[str, Any]:
    # no file of a checkpoint says when it was made
    return {"id": name, "object": "model", "created": 0, "owned_by": "headlight"}


def _type(refused: Refused) -> str:
    if refused.code == "overloaded":
        return "rate_limit_error"
    return "server_error" if refused.ours else "invalid_request_error"


def _param(refused: Refused) -> str | None:
    """Return the field that is wrong."""
    loc = refused.faults[0].loc if refused.faults else ()
    return NAMES.get(str(loc[0]), str(loc[0])) if loc else None
