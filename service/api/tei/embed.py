"""TEI's routes for vectors: POST /embed, /embed_all and /similarity; and how TEI refuses."""

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import numpy as np

from model.text import tokenizer
from service.api.dialect import (
    ENCODING,
    Api,
    Example,
    JSONCall,
    Reply,
    Sent,
    Served,
    sentence,
    to_json,
)
from service.api.inputs import Dimensions, TextsOrIds, check_dense, items
from service.core import Custom, Layout
from service.encode.answer import Array, Each, Encoded, Item
from service.inputs import Strings
from service.observe.families import OF_TEXT, OF_TOKENS
from service.outputs import POOLED
from service.questions.encode import EncodeRequest
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


NAMES, NUMBERS = {"pooled": "dimensions"}, Layout()
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
    how = POOLED.altered(normalize=request.normalize, dimensions=request.dimensions)
    return Vectors(**asks(request, request.inputs, pooled=how))


def embed_all(body: bytes, sent: Sent, served: Served) -> Vectors:
    """Read a request of POST /embed_all; raises as `embed` does."""
    request = EmbedAllRequest.parse(body, sent.ignored)
    return Vectors(**asks(request, request.inputs, pooled=False, tokens=True))


def similarity(body: bytes, sent: Sent, served: Served) -> Comparison:
    """Read a request of POST /similarity; raises as `embed` does, and Refused without sentences."""
    comparison = SimilarityRequest.parse(body, sent.ignored)
    check_dense(served.tasks)
    if not comparison.inputs.sentences:
        detail = "expected one sentence or more, received none"
        raise Refused.at("batch_empty", "inputs", "sentences", detail=detail)
    texts = [comparison.inputs.source_sentence, *comparison.inputs.sentences]
    staying = Layout(numbers=())  # the vectors are not returned
    how = POOLED.altered(normalize=True)
    return Comparison(**asks(comparison, texts, staying, pooled=how))


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal as TEI words it."""
    kind = ERROR_TYPES.get(refused.code, OTHER_ERROR)
    status = TEI_STATUSES.get(refused.code, refused.status)
    return to_json({"error": sentence(refused, NAMES), "error_type": kind}, status)


def side(truncate: bool | None, direction: Side | None) -> tokenizer.Truncation | None:
    """Return where a long input is cut, "own" as the checkpoint says; None: not said."""
    if truncate is False:
        return "refuse"
    if direction is None:
        return "own" if truncate else None
    return "left" if direction in ("Left", "left") else "right"


class Asks(TypedDict):
    """What a Call is made of."""

    request: EncodeRequest
    custom: Custom


def asks(cut: Cut, inputs: str | list[Any], layout: Layout = NUMBERS, **wanted: Any) -> Asks:
    """Return what is asked of some inputs.

    Args:
        wanted: fields of EncodeRequest.
    """
    request = EncodeRequest.of(items(inputs), prompt_name=cut.prompt_name, **wanted)
    truncate = side(cut.truncate, cut.truncation_direction)
    return {"request": request, "custom": Custom(layout, truncate, usual="own", counted=False)}


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


API = Api(
    "Text Embeddings Inference",
    problem,
    TEI_STATUSES,
    document="https://huggingface.github.io/text-embeddings-inference/",
)
TASKS = (*ENCODING, "task_not_found")  # codes of routes that some models lack
ONE_VECTOR = [
    Example("a text", "One vector for one text", '{"inputs": ["All is well"], "dimensions": 4}')
]
ROUTES = [
    API.post(
        "/embed",
        "TEI: one vector for each input",
        EmbedRequest,
        embed,
        inputs=OF_TOKENS,
        codes=TASKS,
        examples=ONE_VECTOR,
    ),
    API.post(
        "/embed_all",
        "TEI: a vector for each token of each input",
        EmbedAllRequest,
        embed_all,
        inputs=OF_TOKENS,
        examples=[
            Example(
                "a text",
                "A vector for each token",
                '{"inputs": "All is well", "truncate": true, "truncation_direction": "Left"}',
            )
        ],
    ),
    API.post(
        "/similarity",
        "TEI: the cosine of one sentence with each of others",
        SimilarityRequest,
        similarity,
        inputs=OF_TEXT,
        codes=TASKS,
        examples=[
            Example(
                "two sentences",
                "The cosine with each",
                '{"inputs": {"source_sentence": "All is well", "sentences": ["All is good", '
                '"A dog ate"]}, "parameters": {"truncate": true, '
                '"truncation_direction": "Left"}}',
            )
        ],
    ),
]
