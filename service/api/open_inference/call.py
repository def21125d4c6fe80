"""The routes of the Open Inference Protocol, above all POST /v2/models/{model}/infer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import orjson

from service import VERSION
from service.api.dialect import RouteContext, json_reply
from service.api.open_inference.inputs import EMBEDS, IDS, TEXT, TYPES, describe_model, read_inputs
from service.api.open_inference.tensors import (
    ATTENTION,
    LAYERS,
    LENGTHS,
    MODEL_VERSION,
    OUTPUT_NAMES,
    POOLED,
    TOKENS,
    InferParameters,
    InferRequest,
    Tensor,
)
from service.engine.fair.turns import in_turns
from service.observe.families import OF_ONE_KIND, READY_PATH
from service.pipeline.find.names import find_name
from service.pipeline.write.answer import collect_body
from service.questions.encode import EncodeRequest
from service.shapes.answer import INFERENCE_HEADER, JSON, OCTETS, Answer, AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.call import (
    READ_ROUTE_CODES,
    Api,
    Call,
    Example,
    ModelFacts,
    Reply,
    RequestHead,
    Route,
    Turn,
)
from service.shapes.inputs import Attention
from service.shapes.price import PARTS, Layout
from service.tables.refusals import REFUSALS, Refused, word_refusal
from service.tables.wording.words import Loc, quote_names, suggest_name, write_place

PADDED_OUTPUTS = frozenset((TOKENS, LAYERS, ATTENTION))  # to the longest sequence
# Fields of a native input -> the input tensors that they come from
TENSORS_BY_FIELD = {"text": TEXT, "token_ids": IDS, "token_type_ids": TYPES, "embeddings": EMBEDS}
CHOOSING_PARAMETERS = {  # parameters -> the outputs of which they choose a part
    "layers": LAYERS,
    "attention_layers": ATTENTION,
    "attention_heads": ATTENTION,
}
FAULT_SENTENCES = {  # by code, in place of our own sentences
    "exactly_one_input": f"The inputs hold exactly one of {TEXT}, {IDS} and {EMBEDS}."
}
LONGEST_HEADER = 9  # digits of the number of bytes in INFERENCE_HEADER
# Detail of a refusal
HEADER_BEYOND_BODY = "expected at most as many bytes of JSON as the body has"
BAD_REQUEST, UNPROCESSABLE = REFUSALS["invalid_json"].status, REFUSALS["invalid_type"].status


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(Call):
    """A request of POST /v2/models/{model}/infer.

    Args:
        outputs: names of the output tensors to return, in order -> whether each comes as bytes.
        id: the client's id for the request, which the answer repeats.
    """

    outputs: Mapping[str, bool]
    id: str | None

    async def write(self, encoded: Answer, turn: Turn) -> Reply:
        """Write the answer, JSON and then the bytes of any tensors, and return the response."""
        items = [item async for item in in_turns(encoded.items)]  # a padded array needs them all
        json, data = write_answer(self.outputs, self.id, encoded.preamble["model"], items)
        json_pieces = await collect_body(json, turn)
        if self.media_type != OCTETS:
            return self.reply(json_pieces)
        length = str(sum(map(len, json_pieces)))
        reply = self.reply([*json_pieces, *await collect_body(data, turn)])
        reply.add(INFERENCE_HEADER, length)
        return reply


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> Inference:
    """Parse a request of POST /v2/models/{model}/infer; raises Refused or ValidationError."""
    check_model(head.path_params, served.names)
    size = _read_json_size(head.headers.get(INFERENCE_HEADER))
    json, data = body[:size], memoryview(body)[len(body) if size is None else size :]
    if size is not None and size > len(body):
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=HEADER_BEYOND_BODY)
    request = InferRequest.parse(json, head.ignored)
    outputs, parameters = _chosen_outputs(request), request.parameters
    native = EncodeRequest.of(
        read_inputs(request.inputs, data, served.most_sequences),
        model=head.path_params["model"],
        pooled=POOLED in outputs,
        tokens=TOKENS in outputs,
        layers=_chosen_layers(parameters, served.layers) if LAYERS in outputs else [],
        attention=_chosen_attention(parameters) if ATTENTION in outputs else None,
    )
    numbers = [part for part in PARTS if not outputs.get(part, True)]
    layout = Layout(numbers=numbers, padded=not PADDED_OUTPUTS.isdisjoint(outputs))
    return Inference(
        request=native,
        custom=Custom(layout, counted=False),
        seconds=parameters.timeout / 1e6 or math.inf,  # from microseconds; 0: no time-out
        media_type=OCTETS if any(outputs.values()) else JSON,
        outputs=outputs,
        id=request.id,
    )


def check_model(path_params: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse a path whose model is none of `names`, or whose version is another than ours."""
    find_name(path_params["model"], names)
    if path_params.get("version", MODEL_VERSION) != MODEL_VERSION:
        detail = f"this service serves version {MODEL_VERSION}"
        raise Refused.at("model_not_found", "version", detail=detail)


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the protocol's form: {"error": "code: explanation"}."""
    explanation = word_refusal(refused, refused.faults, _write_place)
    if refused.code in FAULT_SENTENCES:
        explanation = f"inputs: {FAULT_SENTENCES[refused.code]}"
    return json_reply({"error": f"{refused.code}: {explanation}"}, protocol_status(refused.code))


def protocol_status(code: str) -> int:
    """Return the protocol's status for a code: 400 where ours is 422."""
    status = REFUSALS[code].status
    return BAD_REQUEST if status == UNPROCESSABLE else status


def _write_place(loc: Loc) -> str:
    """Format a place in the request: inputs_embeds[3] is a tensor's fourth sequence."""
    match loc:
        case ("inputs", int(index), str(name)) if name in TENSORS_BY_FIELD:
            return f"{TENSORS_BY_FIELD[name]}[{index}]"
        case _:
            return write_place(loc)


def _chosen_outputs(request: InferRequest) -> dict[str, bool]:
    """Return the names of the outputs asked for, in order -> whether each comes as bytes."""
    binary = request.parameters.binary_data_output
    outputs: dict[str, bool] = {}
    for index, output in enumerate(request.outputs):
        if output.name not in OUTPUT_NAMES or output.name in outputs:
            near = "" if output.name in OUTPUT_NAMES else suggest_name(output.name, OUTPUT_NAMES)
            detail = f"expected {quote_names(OUTPUT_NAMES)}, each once{near}"
            raise Refused.at("out_of_range", "outputs", index, "name", detail=detail)
        own_binary = output.parameters.binary_data
        outputs[output.name] = binary if own_binary is None else own_binary
    for parameter, output_name in CHOOSING_PARAMETERS.items():
        if getattr(request.parameters, parameter) is not None and output_name not in outputs:
            detail = f'it needs the output "{output_name}", which outputs do not name'
            raise Refused.at("out_of_range", "parameters", parameter, detail=detail)
    outputs = outputs or {POOLED: binary}
    if not PADDED_OUTPUTS.isdisjoint(outputs):
        outputs.setdefault(LENGTHS, binary)
    return outputs


def _chosen_layers(parameters: InferParameters, layers: int) -> list[int]:
    """Return the numbers of the hidden states asked for, all if none is named."""
    return _parse_indices(parameters.layers) or list(range(layers + 1))


def _chosen_attention(parameters: InferParameters) -> Attention:
    """Return the layers and heads of attention asked for, all where none is named."""
    layers = _parse_indices(parameters.attention_layers)
    heads = _parse_indices(parameters.attention_heads)
    return Attention.model_construct(layers=layers or "all", heads=heads or "all")


def _parse_indices(text: str | None) -> list[int]:
    """Parse whole numbers separated by commas; none from None."""
    return [int(number) for number in text.split(",")] if text else []


def _read_json_size(header: str | None) -> int | None:
    """Return how many bytes of a body are JSON, from INFERENCE_HEADER; None if all are.

    Raises:
        Refused: the header is not a number of bytes.
    """
    if header is None:
        return None
    if not header.isdecimal() or not header.isascii() or len(header) > LONGEST_HEADER:
        detail = f"expected a number of bytes of up to {LONGEST_HEADER} digits"
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=detail)
    return int(header)


def write_answer(
    outputs: Mapping[str, bool], id: str | None, model: str, items: Sequence[AnswerItem]
) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return an answer's JSON, and the bytes that follow it, each in pieces.

    Args:
        outputs: names of the output tensors to return, in order -> whether each comes as bytes.
        id: the client's id for the request, which the answer repeats.
        model: its name.
        items: one for each sequence.
    """
    tensors = [_make_tensor(name, items, binary) for name, binary in outputs.items()]
    facts = {"model_name": model, "model_version": MODEL_VERSION}
    if id is not None:
        facts["id"] = id
    return _write_json(facts, tensors), chain.from_iterable(
        tensor.write_bytes() for tensor in tensors
    )


def _make_tensor(name: str, items: Sequence[AnswerItem], binary: bool) -> Tensor:
    """Return the output tensor of a name for all sequences, padded to the longest."""
    longest = max(item.tokens_run for item in items)
    if name == LENGTHS:
        lengths = np.array([item.tokens_run for item in items], np.int64)
        return Tensor(name, lengths.shape, lengths.dtype, [lengths], binary)
    shape, first = [len(items)], next(_output_arrays(name, items[0]))
    if name == LAYERS:
        shape.append(len(items[0].layers))
    if name == ATTENTION:
        shape += [len(items[0].arrays), len(first), longest, longest]
    else:
        shape += first.shape if name == POOLED else (longest, *first.shape[1:])
    blocks = (_pad(name, array, longest) for item in items for array in _output_arrays(name, item))
    return Tensor(name, shape, np.dtype(np.float32), blocks, binary)


def _output_arrays(name: str, item: AnswerItem) -> Iterator[Array]:
    """Yield one sequence's arrays of the output of a name: one, or one per layer."""
    if name == LAYERS:
        yield from item.layers.values()
    elif name == ATTENTION:
        yield from item.arrays.values()
    else:
        array = item.pooled if name == POOLED else item.tokens
        if array is None:
            raise RuntimeError("an output that was not asked for: this is a bug")
        yield array


def _pad(name: str, array: Array, longest: int) -> Array:
    """Pad a sequence's array of the output of a name with zeros to `longest` tokens."""
    tokens = array.shape[-2] if name != POOLED else longest
    if tokens == longest:
        return array
    after = (0, longest - tokens)
    return np.pad(array, ((0, 0), after, after) if name == ATTENTION else (after, (0, 0)))


def _write_json(facts: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield the JSON of an answer, in pieces: the facts, then the tensors."""
    yield orjson.dumps(facts)[:-1] + b',"outputs":['
    for index, tensor in enumerate(tensors):
        yield b"," if index else b""
        yield from tensor.write_json()
    yield b"]}"


async def answer_server(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2: the server's name, version and extensions of the protocol."""
    names = {"name": "headlight", "version": VERSION}
    return json_reply({**names, "extensions": ["binary_tensor_data"]})


async def answer_live(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/health/live: the process answers."""
    return json_reply({"live": True})


async def answer_ready(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/health/ready: a recent check of the forward pass succeeded."""
    context.find_unready(head)
    return json_reply({"ready": True})


async def answer_metadata(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/models/{model}: the model's inputs and outputs."""
    replica, name = context.replica, head.path_params["model"]
    check_model(head.path_params, replica.gateway.names.every)
    config = replica.lanes.model.config
    return json_reply(
        describe_model(name, config.width, config.embedding_width, replica.pooled_width)
    )


async def answer_model_ready(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/models/{model}/ready: as ready as the server is."""
    check_model(head.path_params, context.replica.gateway.names.every)
    context.replica.check_ready()
    return json_reply({"name": head.path_params["model"], "ready": True})


# Codes that no request of the protocol gets: only our own inputs and media types cause them
NEVER_CODES = {"bad_base64", "not_acceptable"}
API = Api(
    "Open Inference Protocol",
    problem,
    {code: protocol_status(code) for code in REFUSALS},
    (*READ_ROUTE_CODES, "model_not_found"),
    tuple(code for code in REFUSALS if code not in NEVER_CODES),
    "https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/"
    "inference_rest.md",
)
MODEL_PATH = "/v2/models/{model}"
BINARY_BODY = {OCTETS: {"type": "string", "format": "binary"}}  # schema by media type, for OpenAPI
JSON_LENGTH_HEADER = {"schema": {"type": "integer"}, "description": "of octets"}  # in OpenAPI
_get = API.get
_infer = partial(
    API.post,
    summary="Encode texts, token ids or embeddings: the outputs named, and no others",
    request=InferRequest,
    parse=parse,
    inputs=OF_ONE_KIND,
    metric=f"{MODEL_PATH}/infer",
    media=BINARY_BODY,
    answer_media=BINARY_BODY,
    headers={INFERENCE_HEADER: JSON_LENGTH_HEADER},
    more="""Inputs are exactly one of `text` (BYTES [B] or [B, 1]), `input_ids` (INT64 [B, T], with
or without `token_type_ids`) and `inputs_embeds` (FP32 or FP16 [B, T, embedding_width]);
the last two take an `attention_mask` (INT64, INT32 or BOOL [B, T]) with zeros only at the end.
Outputs are `pooled` (FP32 [B, width], the one where none is named), `tokens` (FP32 [B, T, width]),
`layers` (FP32 [B, n, T, width], hidden states in the model's order), `attention` (FP32
[B, L, H, T, T]) and `lengths` (INT64 [B]), which comes with the three that are padded with zeros to
the longest sequence. Of Triton's parameters, `timeout` (microseconds) shortens the deadline, any
`priority` is taken and is one level here, and a `sequence_id` is refused: no state is kept between
requests. With the header, the JSON's bytes come first, those of tensors follow, little-endian.""",
    examples=[
        Example(
            "texts",
            "A vector and a map, as JSON",
            '{"id": "7", "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", '
            '"data": ["All is well"]}], "outputs": [{"name": "pooled"}, '
            '{"name": "attention"}], "parameters": {"attention_layers": "0", '
            '"attention_heads": "5"}}',
        )
    ],
    parameters=[
        {
            "name": INFERENCE_HEADER,
            "in": "header",
            "description": "bytes of JSON, where those of tensors follow",
            "schema": {"type": "integer", "minimum": 0},
        }
    ],
)


def _model_routes(path: str) -> tuple[Route, ...]:
    """Return the routes of a model below a path, with or without a version."""
    return (
        _get(path, "The model's inputs and outputs", answers=answer_metadata, metric=MODEL_PATH),
        _get(f"{path}/ready", "As the server is", answers=answer_model_ready, metric=READY_PATH),
        _infer(f"{path}/infer"),
    )


ROUTES = [
    _get("/v2", "The server, and what it can beyond the protocol", answers=answer_server),
    _get(
        "/v2/health/live",
        "The process answers",
        answers=answer_live,
        public="always",
        metric="/live",
        trusted=False,
    ),
    _get(
        "/v2/health/ready",
        "The forward path lately proved itself",
        answers=answer_ready,
        public="always",
        metric=READY_PATH,
    ),
    # first, since a model's name may hold slashes
    *_model_routes(MODEL_PATH + "/versions/{version}"),
    *_model_routes(MODEL_PATH),
]
