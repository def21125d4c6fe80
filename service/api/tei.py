"""The routes of Hugging Face's text-embeddings-inference (TEI) that every model has.

Deliberate differences: token ids are encoded as given, where TEI decodes them and tokenizes the
text; a named prompt before token ids is refused. Source: text-embeddings-inference 1.9,
router/src/http/types.rs; what TEI leaves to its settings follows their defaults.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Discriminator

from model.text import tokenizer
from service.api.dialect import JSONCall, Reply, Sent, Served, sentence
from service.api.inputs import (
    Batch,
    Dimensions,
    Ids,
    Strings,
    Text,
    Texts,
    TextsOrIds,
    check_dense,
    items,
    only_sparse,
    tag,
)
from service.encode.answer import JSON, Array, Each, Encoded, Item
from service.encode.request import Layout, Pooled, Request
from service.refusals import TEI_STATUSES, Refused
from service.wire import ForeignRequest

Side = Literal["Right", "right", "Left", "left"]


class Cut(ForeignRequest):
    """What TEI's routes know of truncation and prompts."""

    truncate: bool | None = None
    """Whether an input of more than `max_tokens` tokens is cut; false: it is refused. Left out or
    null: `auto_truncate` of GET /info, or true with a direction."""
    truncation_direction: Side | None = None
    """The side that is cut; left out or null: the one that tokenizer_config.json names, else the
    right; with neither field, the one that the service's `--truncate` names, if it does."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class EmbedAllRequest(Cut):
    """The body of TEI's POST /embed_all."""

    inputs: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""


class EmbedRequest(EmbedAllRequest):
    """The body of TEI's POST /embed and POST /."""

    normalize: bool = True
    """Whether vectors are scaled to length 1."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out."""


class Sentences(ForeignRequest):
    """What TEI's POST /similarity compares: one sentence with each of others."""

    source_sentence: str
    """The sentence that the others are compared with."""
    sentences: Strings
    """The others: 1 to `max_sequences` less the source."""


class SimilarityRequest(Cut):
    """The body of TEI's POST /similarity."""

    inputs: Sentences
    """The sentences to compare."""


class TokenizeRequest(ForeignRequest):
    """The body of TEI's POST /tokenize."""

    inputs: Annotated[
        Text | Texts,
        Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
    ]
    """A text or a list of texts."""
    add_special_tokens: bool = True
    """Whether the model's special tokens stand around each text."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class DecodeRequest(ForeignRequest):
    """The body of TEI's POST /decode."""

    ids: Annotated[
        Ids | Batch,
        Discriminator(lambda value: "<sequences>" if tag(value) == "<sequences>" else "<ids>"),
    ]
    """Token ids, or a list of lists of them."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the texts."""

    def sequences(self) -> list[list[int]]:
        """Return the ids of each sequence."""
        ids = [id for id in self.ids if isinstance(id, int)]
        return [ids] if ids else [row for row in self.ids if isinstance(row, list)]


NAMES = {"pooled": "dimensions"}
ERROR_TYPES = {  # by code; for any other code OTHER_ERROR
    "batch_empty": "Empty",
    "token_out_of_range": "Tokenizer",
    "overloaded": "Overloaded",
    "internal": "Backend",
    "nonfinite_output": "Backend",
    "deadline_exceeded": "Backend",
    "not_ready": "Unhealthy",
}
OTHER_ERROR = "Validation"


class Vectors(JSONCall):
    """A request of POST /embed or POST /embed_all: answered with an entry for each input."""

    def tree(self, encoded: Encoded) -> Any:
        return Each(map(_array, encoded.items))


class Comparison(JSONCall):
    """A request of POST /similarity: answered with the cosines of its first input and the rest."""

    def tree(self, encoded: Encoded) -> Any:
        return _cosines(map(_array, encoded.items))


def embed(body: bytes, sent: Sent, served: Served) -> Vectors:
    """Read a request of POST /embed.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    request = EmbedRequest.parse(body, sent.ignored)
    check_dense(served.tasks)
    pooled = Pooled(normalize=request.normalize, dimensions=request.dimensions)
    return Vectors(request=native(request, request.inputs, pooled=pooled))


def embed_all(body: bytes, sent: Sent, served: Served) -> Vectors:
    """Read a request of POST /embed_all; raises as `embed` does."""
    request = EmbedAllRequest.parse(body, sent.ignored)
    return Vectors(request=native(request, request.inputs, pooled=False, tokens=True))


def similarity(body: bytes, sent: Sent, served: Served) -> Comparison:
    """Read a request of POST /similarity; raises as `embed` does, and Refused without sentences."""
    comparison = SimilarityRequest.parse(body, sent.ignored)
    check_dense(served.tasks)
    if not comparison.inputs.sentences:
        detail = "expected one sentence or more, received none"
        raise Refused.at("batch_empty", "inputs", "sentences", detail=detail)
    texts = [comparison.inputs.source_sentence, *comparison.inputs.sentences]
    staying = Layout(numbers=())  # the vectors are not returned
    request = native(comparison, texts, pooled=Pooled(normalize=True), layout=staying)
    return Comparison(request=request)


def info(
    own: Mapping[str, Any], classes: Sequence[str], workers: int, *, auto_truncate: bool
) -> dict[str, Any]:
    """Return what TEI's clients look for in GET /info.

    Args:
        own: our own GET /info.
        classes: their names, if the model has any.
        workers: threads that tokenize.
        auto_truncate: whether an input that is too long is cut where a request does not say.
    """
    limits = own["limits"]
    return {
        "model_id": own["model"],
        "model_sha": own["revision"],
        "model_dtype": own["dtype"],
        "served_model_name": own["model"],
        "model_type": _model_type(own, classes),
        "max_concurrent_requests": limits["max_waiting_requests"],
        "max_input_length": own["max_tokens"],
        "max_batch_tokens": limits["batch_tokens"],
        "max_batch_requests": None,
        "max_client_batch_size": limits["max_sequences"],
        "auto_truncate": auto_truncate,
        "tokenization_workers": workers,
        "version": own["versions"]["headlight"],
        "sha": None,
        "docker_label": None,
    }


def _model_type(own: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Return the type that TEI would give the model."""
    if "classify" not in own["tasks"]:
        pooling = "splade" if only_sparse(own["tasks"]) else own["pooling"]
        return {"embedding": {"pooling": pooling}}
    names = {
        "id2label": {str(place): label for place, label in enumerate(classes)},
        "label2id": {label: place for place, label in enumerate(classes)},
    }
    return {"reranker" if "rerank" in own["tasks"] else "classifier": names}


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal as TEI words it."""
    kind = ERROR_TYPES.get(refused.code, OTHER_ERROR)
    body = orjson.dumps({"error": sentence(refused, NAMES), "error_type": kind})
    return Reply(body, TEI_STATUSES.get(refused.code, refused.status), media_type=JSON)


def side(truncate: bool | None, direction: Side | None) -> tokenizer.Cut | None:
    """Return where a long input is cut, "own" as the checkpoint says; None: not said."""
    if truncate is False:
        return "refuse"
    if direction is None:
        return "own" if truncate else None
    return "left" if direction in ("Left", "left") else "right"


def native(cut: Cut, inputs: str | list[Any], **more: Any) -> Request:
    """Return the request as encode/ knows it."""
    return Request(
        inputs=items(inputs),
        truncate=side(cut.truncate, cut.truncation_direction),
        usual="own",
        counted=False,
        prompt_name=cut.prompt_name,
        **more,
    )


def _array(item: Item) -> Array:
    """Return the vectors asked for: those of the input's tokens, or the pooled one."""
    array = item.pooled if item.tokens is None else item.tokens
    if array is None:
        raise RuntimeError("an array that was asked for is missing: this is a bug")
    return array


def _cosines(vectors: Iterable[Array]) -> Array:
    """Return the cosines of the first vector and the others; all have length 1."""
    rest = iter(vectors)
    source = next(rest).astype(np.float64)
    return np.array([source @ other for other in rest], dtype=np.float32)
