"""OpenAI's API: POST /v1/embeddings and GET /v1/models, with and without /v1.

Clients of Jina, Voyage, Mistral and NIM ask the same route. Deliberate differences:
`late_chunking` is refused, since the API does not say how it joins inputs; so are several kinds of
vectors at once, whose answer has no documented shape, and a task of no adapter and no prompt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall
from service.api.embeddings import EmbeddingsRequest
from service.api.inputs import (
    END_CUTS,
    check_dense,
    check_prompt,
    find_prompt,
    find_spelling,
    make_inputs,
)
from service.api.model_list import answer_model, answer_models
from service.api.openai_errors import openai_problem
from service.api.precisions import Precision, pooled_vectors, to_base64, to_precision
from service.api.usage import count_usage
from service.observe.families import OF_TOKENS
from service.questions.encode import EncodeRequest
from service.shapes import inputs
from service.shapes.answer import Answer, Array, Each
from service.shapes.ask import Custom
from service.shapes.call import (
    ANY_ROUTE_CODES,
    EMBEDDING_CODES,
    Api,
    Example,
    ModelFacts,
    Reply,
    RequestHead,
)
from service.shapes.inputs import Document
from service.shapes.outputs import DEFAULT_POOLED
from service.shapes.price import Layout
from service.tables.refusals import OPENAI_STATUSES, Refused
from service.tables.wording.words import quote_names

# Fields of EncodeRequest -> OpenAI's, where they differ
OPENAI_FIELDS = {"inputs": "input", "pooled": "dimensions"}
NUMBER_LAYOUT, BASE64_LAYOUT = Layout(), Layout(numbers=())  # by how vectors are written

# Details of refusals
NEITHER = "this model has no adapters and no prompts: leave it out"
READ_ALONE = (
    "each input is read alone here; `spans` of POST /v1/encode are vectors of the parts of one text"
)
NEEDS_LENGTH_1 = '"int8" and "uint8" are steps of vectors of length 1'
TWO_FORMS = '"encoding_format" names other numbers; with this field it is "float" or "base64"'
TWO_LENGTHS = '"normalized" says otherwise'
TWO_PROMPTS = "it goes without another prompt, as prompt_name, task or input_type choose one"
CUTS: Mapping[Any, Truncate] = {True: "right", False: "refuse", **END_CUTS}  # by `truncate`


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsCall(JSONCall):
    """A parsed request of POST /v1/embeddings.

    Args:
        precision: of its vectors.
        packed: whether the bytes of their numbers come as base64.
    """

    precision: Precision
    packed: bool

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return OpenAI's answer: a list of vectors in the request's precision."""
        vectors: Iterable[Array | str] = pooled_vectors(encoded)
        if self.precision != "float":
            vectors = map(self._write_vector, pooled_vectors(encoded))
        data = Each(
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        )
        return {
            "id": f"embd-{uuid4()}",  # Mistral's clients need one
            "object": "list",
            "data": data,
            "model": encoded.preamble["model"],
            "usage": count_usage(encoded),
        }

    def _write_vector(self, vector: Array) -> Array | str:
        """Return a vector in the request's precision, as an array or as base64."""
        written = to_precision(vector, self.precision)
        return to_base64(written) if self.packed and not isinstance(written, str) else written


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> EmbeddingsCall:
    """Parse a request of POST /v1/embeddings; raises Refused or ValidationError."""
    request = EmbeddingsRequest.parse(body, head.ignored)
    if request.late_chunking:
        raise Refused.at("out_of_range", "late_chunking", detail=READ_ALONE)
    check_dense(served.tasks)
    texts, cut = _make_inputs(request.input), request.truncate
    precision, packed = _choose_form(request)
    task, prompt_name = _choose_prompt(request, head, served)
    if request.prompt is not None:
        check_prompt(request.prompt, len(texts), served)
    return EmbeddingsCall(
        request=EncodeRequest.of(
            texts,
            model=request.model,
            task=task,
            truncate=None if cut is None else CUTS.get(cut, cut),
            prompt_name=prompt_name,
            pooled=DEFAULT_POOLED.altered(
                normalize=_is_normalized(request), dimensions=request.dimensions
            ),
        ),
        custom=Custom(
            NUMBER_LAYOUT if precision == "float" else BASE64_LAYOUT,
            usual="refuse" if request.truncate_prompt_tokens is None else "right",
            most=request.truncate_prompt_tokens,
            counted=False,
            prompt=request.prompt,
        ),
        precision=precision,
        packed=packed,
    )


def _choose_form(request: EmbeddingsRequest) -> tuple[Precision, bool]:
    """Return the precision of vectors, and whether the bytes of whole numbers come as base64.

    Raises:
        Refused: two fields name different numbers, or it is one of vectors of length 1 alone.
    """
    form, numbers = request.encoding_format, request.output_dtype
    if numbers not in (None, form) and form not in ("float", "base64"):
        raise Refused.at("out_of_range", "output_dtype", detail=TWO_FORMS)
    precision = form if numbers in (None, "float") else numbers
    if precision in ("int8", "uint8") and not _is_normalized(request):
        raise Refused.at("out_of_range", "normalized", detail=NEEDS_LENGTH_1)
    return precision, form == "base64" != precision


def _is_normalized(request: EmbeddingsRequest) -> bool:
    """Return whether vectors have length 1; refuse two fields that disagree."""
    if request.embd_normalize is None:
        return request.normalized
    normalized = request.embd_normalize == 2
    if "normalized" in request.model_fields_set and request.normalized != normalized:
        raise Refused.at("out_of_range", "embd_normalize", detail=TWO_LENGTHS)
    return normalized


def _choose_prompt(
    request: EmbeddingsRequest, head: RequestHead, served: ModelFacts
) -> tuple[str | None, str | None]:
    """Return the names of the adapter and of the prompt that a request chooses, either or None.

    An `input_type` for which there is no prompt is noted as ignored.

    Raises:
        Refused: there is no such task, or two prompts.
    """
    task, prompt_name = None, request.prompt_name
    if request.task is not None:
        task, purpose = choose_purpose(request.task, served)
        prompt_name = prompt_name or purpose
    if request.input_type and not prompt_name:
        prompt_name = find_prompt("input_type", request.input_type, served)
    if request.input_type and not prompt_name:
        head.ignored["input_type"] = None
    if request.prompt is not None and prompt_name:
        raise Refused.at("out_of_range", "prompt", detail=TWO_PROMPTS)
    return task, prompt_name


def choose_purpose(task: str, served: ModelFacts) -> tuple[str | None, str | None]:
    """Return the names of the adapter and of the prompt that a task chooses, either or None.

    An adapter of the task's whole name has its own instruction. One of the part before the dot,
    such as "retrieval", needs a prompt that tells queries from passages.

    Raises:
        Refused: the checkpoint has neither.
    """
    adapters, prompts = _adapter_names(served), sorted(served.prompts)
    if adapter := find_spelling("task", task, adapters):
        return adapter, None
    if (prompt := find_prompt("task", task, served)) is None:
        has = {"adapters": adapters, "prompts": prompts}
        known = [f"the {kind} {quote_names(some, 'and')}" for kind, some in has.items() if some]
        names = f"this model has {' and '.join(known)}: name one of them, or leave it out"
        detail = names if known else NEITHER
        raise Refused.at("prompt_not_found", "task", detail=detail, prompts=prompts)
    return find_spelling("task", task.partition(".")[0], adapters), prompt


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


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of OpenAI's errors."""
    return openai_problem(refused, OPENAI_FIELDS)


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
            "two texts",
            "A vector for each of two texts",
            '{"model": "all-MiniLM-L6-v2", "input": ["It is raining", "The dog barks"]}',
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
