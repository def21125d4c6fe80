"""TEI's routes for vectors: POST /embed, /embed_all and /similarity; and how TEI refuses."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np

from model.text import tokenizer
from service.api.dialect import JSONCall, explain_refusal, json_reply
from service.api.inputs import Dimensions, TextsOrIds, check_dense, make_inputs
from service.observe.families import OF_TEXT, OF_TOKENS
from service.questions.encode import EncodeRequest
from service.shapes.answer import Answer, AnswerItem, Array, Each
from service.shapes.ask import Custom
from service.shapes.call import ENCODE_CODES, Api, Example, ModelFacts, Reply, RequestHead
from service.shapes.inputs import Strings
from service.shapes.outputs import DEFAULT_POOLED
from service.shapes.price import Layout
from service.tables.refusals import TEI_STATUSES, Refused
from service.tables.wording.wire import ForeignRequest

CutSide = Literal["Right", "right", "Left", "left"]


class TruncatingRequest(ForeignRequest):
    """What TEI's routes know of truncation and prompts."""

    aliases: ClassVar = {"truncation": "truncate"}  # of Hugging Face's pipelines

    truncate: bool | None = None
    """Whether an input of more than `max_tokens` tokens is cut; false: it is refused. Left out or
    null: `auto_truncate` of GET /info, or true with a direction."""
    truncation_direction: CutSide | None = None
    """The side that is cut; left out or null: the one that tokenizer_config.json names, else the
    right; with neither field, the one that the service's `--truncate` names, if it does."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class EmbedAllRequest(TruncatingRequest):
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
    encoding_format: Literal["float"] = "float"
    """Hugging Face's clients send it; vectors are JSON numbers."""


class Sentences(ForeignRequest):
    """What TEI's POST /similarity compares: one sentence with each of others."""

    source_sentence: str
    """The sentence that the others are compared with."""
    sentences: Strings
    """The others: 1 to `max_sequences` less the source."""


class SimilarityRequest(TruncatingRequest):
    """The body of TEI's POST /similarity."""

    inputs: Sentences
    """The sentences to compare."""


TEI_FIELDS = {"pooled": "dimensions"}  # fields of EncodeRequest -> TEI's, where they differ
NUMBER_LAYOUT = Layout()  # of answers whose arrays are JSON numbers
ERROR_TYPES = {  # TEI's error_type by our code; for any other code OTHER_ERROR
    "batch_empty": "Empty",
    "token_out_of_range": "Tokenizer",
    "overloaded": "Overloaded",
    "internal": "Backend",
    "nonfinite_output": "Backend",
    "deadline_exceeded": "Backend",
    "not_ready": "Unhealthy",
}
OTHER_ERROR = "Validation"


class EmbedCall(JSONCall):
    """A request of POST /embed or POST /embed_all: answered with vectors for each input."""

    def to_json(self, encoded: Answer) -> Any:
        """Return a list with the vector or vectors of each input."""
        return Each(map(_vectors_of, encoded.items))


class SimilarityCall(JSONCall):
    """A request of POST /similarity: answered with the cosines of its first input and the rest."""

    needs_all = True

    def to_json(self, encoded: Answer) -> Any:
        """Return the cosine of the first input with each other one."""
        return _cosines_with_first(map(_vectors_of, encoded.items))


def parse_embed(body: bytes, head: RequestHead, served: ModelFacts) -> EmbedCall:
    """Parse a request of POST /embed; raises Refused or ValidationError."""
    request = EmbedRequest.parse(body, head.ignored)
    check_dense(served.tasks)
    pooled = DEFAULT_POOLED.altered(normalize=request.normalize, dimensions=request.dimensions)
    return EmbedCall(**make_call_parts(request, request.inputs, pooled=pooled))


def parse_embed_all(body: bytes, head: RequestHead, served: ModelFacts) -> EmbedCall:
    """Parse a request of POST /embed_all; raises as `parse_embed` does."""
    request = EmbedAllRequest.parse(body, head.ignored)
    return EmbedCall(**make_call_parts(request, request.inputs, pooled=False, tokens=True))


def parse_similarity(body: bytes, head: RequestHead, served: ModelFacts) -> SimilarityCall:
    """Parse a request of POST /similarity; raises as `parse_embed` does."""
    comparison = SimilarityRequest.parse(body, head.ignored)
    check_dense(served.tasks)
    if not comparison.inputs.sentences:
        detail = "expected one sentence or more, received none"
        raise Refused.at("batch_empty", "inputs", "sentences", detail=detail)
    texts = [comparison.inputs.source_sentence, *comparison.inputs.sentences]
    layout = Layout(numbers=())  # vectors are priced as bytes: the answer holds cosines alone
    pooled = DEFAULT_POOLED.altered(normalize=True)
    return SimilarityCall(**make_call_parts(comparison, texts, layout, pooled=pooled))


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of TEI's errors."""
    error_type = ERROR_TYPES.get(refused.code, OTHER_ERROR)
    error = {"error": explain_refusal(refused, TEI_FIELDS), "error_type": error_type}
    return json_reply(error, TEI_STATUSES.get(refused.code, refused.status))


def cut_side(truncate: bool | None, direction: CutSide | None) -> tokenizer.Truncation | None:
    """Return the native truncation for TEI's two fields; None where neither is sent."""
    if truncate is False:
        return "refuse"
    if direction is None:
        return "own" if truncate else None
    return "left" if direction in ("Left", "left") else "right"


class CallParts(TypedDict):
    """The arguments of a Call of TEI's routes for vectors."""

    request: EncodeRequest
    custom: Custom


def make_call_parts(
    sent: TruncatingRequest, inputs: str | list[Any], layout: Layout = NUMBER_LAYOUT, **fields: Any
) -> CallParts:
    """Return the arguments of a Call that encodes inputs.

    Args:
        sent: TEI's request, which names truncation and prompt.
        layout: how the answer's arrays are written.
        fields: further fields of EncodeRequest.
    """
    request = EncodeRequest.of(make_inputs(inputs), prompt_name=sent.prompt_name, **fields)
    truncate = cut_side(sent.truncate, sent.truncation_direction)
    return {"request": request, "custom": Custom(layout, truncate, usual="own", counted=False)}


def _vectors_of(item: AnswerItem) -> Array:
    """Return an input's vectors: of its tokens, (tokens, width), or the pooled one, (width,)."""
    array = item.pooled if item.tokens is None else item.tokens
    if array is None:
        raise RuntimeError("an array that was asked for is missing: this is a bug")
    return array


def _cosines_with_first(vectors: Iterable[Array]) -> Array:
    """Return the cosine of the first vector with each other, (others,); all have length 1."""
    rest = iter(vectors)
    source = next(rest).astype(np.float64)
    return np.array([source @ other for other in rest], dtype=np.float32)


API = Api(
    "Text Embeddings Inference",
    problem,
    TEI_STATUSES,
    document="https://huggingface.github.io/text-embeddings-inference/",
)
TASK_CODES = (*ENCODE_CODES, "task_not_found")  # codes of routes that some models lack
ONE_VECTOR_EXAMPLES = [
    Example(
        "two texts",
        "A vector for each of two texts",
        '{"inputs": ["It is raining", "The dog barks"]}',
    )
]
ROUTES = [
    API.post(
        "/embed",
        "TEI: one vector for each input",
        EmbedRequest,
        parse_embed,
        inputs=OF_TOKENS,
        codes=TASK_CODES,
        examples=ONE_VECTOR_EXAMPLES,
    ),
    API.post(
        "/embed_all",
        "TEI: a vector for each token of each input",
        EmbedAllRequest,
        parse_embed_all,
        inputs=OF_TOKENS,
        examples=[
            Example(
                "a text",
                "A vector for each token",
                '{"inputs": "All is well"}',
            )
        ],
    ),
    API.post(
        "/similarity",
        "TEI: the cosine of one sentence with each of others",
        SimilarityRequest,
        parse_similarity,
        inputs=OF_TEXT,
        codes=TASK_CODES,
        examples=[
            Example(
                "two sentences",
                "The cosine with each",
                '{"inputs": {"source_sentence": "All is well", '
                '"sentences": ["All is good", "A dog ate"]}}',
            )
        ],
    ),
]
