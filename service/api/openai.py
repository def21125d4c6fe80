"""OpenAI's API: POST /v1/embeddings and GET /v1/models, with and without /v1.

Jina's clients ask the same route, with kinds of vectors and tasks. Deliberate differences:
`late_chunking` is refused, since the API does not say how it joins inputs; so are a list of kinds,
whose answer has no documented shape, and a task that would change nothing.
Sources of the request: OpenAI's openapi.yaml, CreateEmbeddingRequest; https://api.jina.ai/openapi.json
of April 2026, EmbeddingsV3Request and EmbeddingsV5Request; the former name of `embedding_type`:
llama-index-embeddings-jinaai 0.7.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service import inputs
from service.api.dialect import (
    ANY_ROUTE_CODES,
    EMBEDDING_CODES,
    Api,
    Example,
    JSONCall,
    ModelFacts,
    Reply,
    RequestHead,
    RouteContext,
    explain_refusal,
    json_reply,
)
from service.api.inputs import (
    Batch,
    Dimensions,
    Ids,
    MostTokens,
    Text,
    check_dense,
    find_prompt,
    make_inputs,
    tag_form,
)
from service.api.precisions import Precision, pooled_vectors, to_precision
from service.core import Custom, Layout
from service.encode.answer import Each, Encoded
from service.encode.names import find_name
from service.inputs import Document, Documents
from service.observe.families import OF_TOKENS
from service.outputs import DEFAULT_POOLED
from service.questions.encode import EncodeRequest
from service.refusals import OPENAI_STATUSES, Refused
from service.wire import ForeignRequest
from service.wording.words import quote_names


def _tag_form(value: object) -> str:
    """Return the tag of the member of Inputs that an input is, by its first entry."""
    if isinstance(value, dict):
        return "<document>"
    objects = isinstance(value, list) and value and isinstance(value[0], dict)
    return "<texts>" if objects else tag_form(value)


Inputs = TypeAliasType(
    "Inputs",
    Annotated[
        Text
        | Annotated[Document, Tag("<document>")]
        | Annotated[Documents, Tag("<texts>")]
        | Ids
        | Batch,
        Discriminator(_tag_form),
    ],
)
Cut = Annotated[  # of a text that is too long: whether, or on which side
    Annotated[bool, Tag("<switch>")] | Annotated[Truncate, Tag("<side>")],
    Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<side>"),
]


class EmbeddingsRequest(ForeignRequest):
    """The body of OpenAI's POST /v1/embeddings."""

    aliases: ClassVar = {
        "embedding_type": "encoding_format",  # Jina's
        "encoding_type": "encoding_format",  # Jina's former one, which LlamaIndex's client sends
        "output_dimension": "dimensions",  # Voyage's
        "normalize": "normalized",  # vLLM's, as the next ones
        "use_activation": "normalized",
        "truncation_side": "truncate",
    }

    input: Inputs
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`.
    Jina's clients may send a text as {"text": ..}."""
    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    encoding_format: Precision = "float"
    """How vectors are written: as JSON numbers; as base64 of little-endian float32; or in fewer
    bytes, as whole numbers of one byte for each number ("int8", "uint8") or for eight of them
    ("binary", "ubinary"). Jina's `embedding_type` is the same."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out. The vector is cut, then scaled to length 1."""
    truncate: Cut | None = None
    """Headlight's own, and Jina's: what happens to an input of more than `max_tokens` tokens: it is
    refused, or cut on this side; of Jina's, true is "right" and false "refuse". Left out or null:
    `truncate` of GET /info."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""
    truncate_prompt_tokens: MostTokens | None = None
    """vLLM's: how many tokens of an input are read, special ones included; -1 is `max_tokens`. What
    is longer is cut as `truncate` says, on the right where that is left out."""
    normalized: bool = True
    """Jina's: whether vectors have length 1. False does not go with "int8" and "uint8"."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: as `task` or `input_type`
    says, else its default."""
    input_type: str | None = None
    """Cohere's and others': what the texts are for, which chooses the checkpoint's prompt of that
    name or of one that means the same. It is ignored where there is none."""
    task: str | None = None
    """Jina's: what the texts are for, which chooses the checkpoint's adapter of that name and its
    instruction or, without one, its prompt of that name; for "retrieval.query" else "query", for
    "retrieval.passage" else "document", "passage" or "corpus". Refused where it has none."""
    late_chunking: bool | None = None
    """Jina's: true is refused, as each input is read alone; `spans` of POST /v1/encode are vectors
    of the parts of one text."""
    return_multivector: Literal[False] = False
    """Jina's: POST /embed_all has a vector for each token."""
    add_special_tokens: Literal[True] = True
    """vLLM's: token ids as `input` are read without."""
    embed_dtype: Literal["float32"] = "float32"
    """vLLM's: `encoding_format` has the smaller ones."""
    endianness: Literal["native", "little"] = "native"
    """vLLM's: base64 is little-endian."""
    modality: Literal["text"] = "text"
    """Infinity's: texts are all that is read."""


# Our codes -> OpenAI's, and fields of EncodeRequest -> OpenAI's, where they differ
OPENAI_CODES = {"sequence_too_long": "context_length_exceeded", "overloaded": "rate_limit_exceeded"}
OPENAI_FIELDS = {"inputs": "input", "pooled": "dimensions"}
NUMBER_LAYOUT, BASE64_LAYOUT = Layout(), Layout(numbers=())  # by how vectors are written

# Details of refusals
NO_PROMPT = (
    "this model has no adapter and no prompt for it, so it would change nothing: leave it out"
)
READ_ALONE = (
    "each input is read alone here; `spans` of POST /v1/encode are vectors of the parts of one text"
)
NEEDS_LENGTH_1 = '"int8" and "uint8" are steps of vectors of length 1'
SWITCH_CUTS: dict[bool, Truncate] = {True: "right", False: "refuse"}  # by Jina's `truncate`


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsCall(JSONCall):
    """A parsed request of POST /v1/embeddings, and the precision of its vectors."""

    precision: Precision

    def to_json(self, encoded: Encoded) -> dict[str, Any]:
        """Return OpenAI's answer: a list of vectors in the request's precision."""
        data = Each(
            {
                "object": "embedding",
                "index": index,
                "embedding": to_precision(vector, self.precision),
            }
            for index, vector in enumerate(pooled_vectors(encoded))
        )
        model, usage = encoded.preamble["model"], count_usage(encoded)
        return {"object": "list", "data": data, "model": model, "usage": usage}


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> EmbeddingsCall:
    """Parse a request of POST /v1/embeddings; raises Refused or ValidationError."""
    request = EmbeddingsRequest.parse(body, head.ignored)
    _check_request(request)
    check_dense(served.tasks)
    cut, precision = request.truncate, request.encoding_format
    task, prompt_name = choose_purpose(request.task, served)
    prompt_name = request.prompt_name or prompt_name
    if request.input_type and not prompt_name:
        prompt_name = find_prompt(request.input_type, served)
    if request.input_type and not prompt_name:
        head.ignored["input_type"] = None
    return EmbeddingsCall(
        request=EncodeRequest.of(
            _make_inputs(request.input),
            model=request.model,
            task=task,
            truncate=SWITCH_CUTS[cut] if isinstance(cut, bool) else cut,
            prompt_name=prompt_name,
            pooled=DEFAULT_POOLED.altered(
                normalize=request.normalized, dimensions=request.dimensions
            ),
        ),
        custom=Custom(
            NUMBER_LAYOUT if precision == "float" else BASE64_LAYOUT,
            usual="refuse" if request.truncate_prompt_tokens is None else "right",
            most=request.truncate_prompt_tokens,
            counted=False,
        ),
        precision=precision,
    )


def _check_request(request: EmbeddingsRequest) -> None:
    """Refuse late chunking, and whole numbers of vectors that do not have length 1."""
    if request.late_chunking:
        raise Refused.at("out_of_range", "late_chunking", detail=READ_ALONE)
    if not request.normalized and request.encoding_format in ("int8", "uint8"):
        raise Refused.at("out_of_range", "normalized", detail=NEEDS_LENGTH_1)


def choose_purpose(task: str | None, served: ModelFacts) -> tuple[str | None, str | None]:
    """Return the names of the adapter and of the prompt that a task chooses, either or None.

    An adapter of the task's whole name has its own instruction. One of the part before the dot,
    such as "retrieval", needs a prompt that tells queries from passages.

    Raises:
        Refused: the checkpoint has neither.
    """
    adapters = _adapter_names(served)
    if task is None or task in adapters:
        return task, None
    if (prompt := find_prompt(task, served)) is None:
        prompts = sorted(served.prompts)
        detail = NO_PROMPT
        if adapters:
            detail = f"{NO_PROMPT}; this model has the adapters {quote_names(adapters, 'and')}"
        raise Refused.at("prompt_not_found", "task", detail=detail, prompts=prompts)
    adapter = task.partition(".")[0]
    return adapter if adapter in adapters else None, prompt


def _adapter_names(served: ModelFacts) -> list[str]:
    """Return the adapters' own names, such as "retrieval" of "model:retrieval"."""
    model, *adapted = served.names
    return [name.removeprefix(f"{model}:") for name in adapted]


def _make_inputs(value: Any) -> inputs.Texts:
    """Convert the value of `input` to native inputs."""
    if isinstance(value, Document):
        return [value.text]
    if isinstance(value, list):
        value = [entry.text if isinstance(entry, Document) else entry for entry in value]
    return make_inputs(value)


def count_usage(encoded: Encoded) -> dict[str, int]:
    """Return the `usage` of an answer: counts of tokens, and of inputs cut where it is counted."""
    tokens, truncated = encoded.usage["tokens"], encoded.usage.get("truncated")
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return counts if truncated is None else counts | {"truncated": truncated}


async def answer_models(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v1/models: each served model, alone and with each of its adapters."""
    data = [_describe_model(name) for name in context.names(head)]
    return json_reply({"object": "list", "data": data})


async def answer_model(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v1/models/{id}; raises Refused where the id is none of them."""
    name = find_name(head.path_params["id"], context.names(head))
    return json_reply(_describe_model(name))


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of OpenAI's errors."""
    status = OPENAI_STATUSES.get(refused.code, refused.status)
    error = {
        "message": explain_refusal(refused, OPENAI_FIELDS),
        "type": _error_type(refused),
        "param": _faulty_field(refused),
        "code": OPENAI_CODES.get(refused.code, refused.code),
    }
    return json_reply({"error": error, "detail": error["message"]}, status)  # detail: Jina's


def _describe_model(name: str) -> dict[str, Any]:
    """Return a model as OpenAI's API lists it; `created` is 0, as no checkpoint records it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "headlight"}


def _error_type(refused: Refused) -> str:
    """Return OpenAI's error type of a refusal."""
    if refused.code == "overloaded":
        return "rate_limit_error"
    return "server_error" if refused.is_ours else "invalid_request_error"


def _faulty_field(refused: Refused) -> str | None:
    """Return OpenAI's name of the field that a refusal names first; None if it names none."""
    loc = refused.faults[0].loc if refused.faults else ()
    return OPENAI_FIELDS.get(str(loc[0]), str(loc[0])) if loc else None


API = Api(
    "OpenAI",
    problem,
    OPENAI_STATUSES,
    ANY_ROUTE_CODES,
    EMBEDDING_CODES,
    "https://platform.openai.com/docs/api-reference/embeddings",
)
_embeddings = partial(
    API.post,
    request=EmbeddingsRequest,
    parse=parse,
    inputs=OF_TOKENS,
    metric="/v1/embeddings",
    examples=[
        Example(
            "a text",
            "One vector for one text",
            '{"model": "all-MiniLM-L6-v2", "input": ["All is well"], "dimensions": 4}',
        )
    ],
)
ROUTES = [
    _embeddings("/v1/embeddings", "OpenAI: one vector for each input"),
    _embeddings("/embeddings", "OpenAI: as POST /v1/embeddings"),
    API.get("/v1/models", "OpenAI: the model that is served", answers=answer_models),
    API.get("/models", "OpenAI: as GET /v1/models", answers=answer_models, metric="/v1/models"),
    API.get(
        "/v1/models/{id}",
        "OpenAI: a model by its name",
        answers=answer_model,
        codes=(*ANY_ROUTE_CODES, "model_not_found"),
    ),
]
