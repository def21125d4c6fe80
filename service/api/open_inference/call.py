"""The routes of the Open Inference Protocol; most of all POST /v2/models/{model}/infer."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import orjson

from service.api.dialect import (
    READ_ROUTE_CODES,
    Api,
    Call,
    Example,
    ModelFacts,
    Reply,
    RequestHead,
    Route,
    RouteContext,
    json_reply,
)
from service.api.open_inference.inputs import (
    EMBEDS,
    IDS,
    TEXT,
    TYPES,
    describe_model,
    read_inputs,
)
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
from service.core import PARTS, Custom, Layout
from service.encode import answer
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, Array, Encoded, Item, collect_body
from service.encode.names import find_name
from service.engine.fair.rotation import FairLock
from service.inputs import Attention
from service.observe.families import OF_ONE_KIND, READY_PATH
from service.questions.encode import EncodeRequest
from service.refusals import REFUSALS, Refused, word_refusal
from service.wording.words import Loc, quote_names, suggest_name, write_place

PADDED_OUTPUTS = frozenset((TOKENS, LAYERS, ATTENTION))
TENSORS_BY_FIELD = {"text": TEXT, "token_ids": IDS, "token_type_ids": TYPES, "embeddings": EMBEDS}
CHOOSING_PARAMETERS = {
    "layers": LAYERS,
    "attention_layers": ATTENTION,
    "attention_heads": ATTENTION,
}
FAULT_SENTENCES = {
    "exactly_one_input": f"The inputs hold exactly one of {TEXT}, {IDS} and {EMBEDS}."
}
LONGEST_HEADER = 9  # digits of the number of bytes
HEADER_BEYOND_BODY = "expected at most as many bytes of JSON as the body has"
ITEMS_A_TURN = 64  # made for an answer before other requests get a turn
BAD_REQUEST, UNPROCESSABLE = REFUSALS["invalid_json"].status, REFUSALS["invalid_type"].status


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(Call):
    """A request of POST /v2/models/{model}/infer.

    Args:
        outputs: those to return, in order, and whether each comes as bytes.
        id: the client's own, echoed.
    """

    outputs: Mapping[str, bool]
    id: str | None

    async def write(self, encoded: Encoded, turn: FairLock) -> Reply:
        """Return the answer as sent: JSON, then the bytes of any tensors."""
        items = await _collect_items(encoded)
        pieces, data = write_answer(self.outputs, self.id, encoded.preamble["model"], items)
        head = await collect_body(pieces, turn)
        if self.media_type != OCTETS:
            return self.reply(head)
        length = str(sum(map(len, head)))
        reply = self.reply([*head, *await collect_body(data, turn)])
        reply.add(INFERENCE_HEADER, length)
        return reply


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> Inference:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    check_model(head.path_params, served.names)
    header = _count_json_bytes(head.headers.get(INFERENCE_HEADER))
    text, data = body[:header], memoryview(body)[len(body) if header is None else header :]
    if header is not None and header > len(body):
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=HEADER_BEYOND_BODY)
    request = InferRequest.parse(text, head.ignored)
    outputs, parameters = _chosen_outputs(request), request.parameters
    asked = EncodeRequest.of(
        read_inputs(request.inputs, data, served.most_sequences),
        model=head.path_params["model"],
        pooled=POOLED in outputs,
        tokens=TOKENS in outputs,
        layers=_chosen_layers(parameters, served.layers) if LAYERS in outputs else [],
        attention=_chosen_attention(parameters) if ATTENTION in outputs else None,
    )
    numbers = [part for part in PARTS if not outputs.get(part, True)]
    written = Layout(numbers=numbers, padded=not PADDED_OUTPUTS.isdisjoint(outputs))
    return Inference(
        request=asked,
        custom=Custom(written, counted=False),
        seconds=parameters.timeout / 1e6 or math.inf,
        media_type=OCTETS if any(outputs.values()) else JSON,
        outputs=outputs,
        id=request.id,
    )


def check_model(params: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse a path that names any model or version but these."""
    find_name(params["model"], names)
    if params.get("version", MODEL_VERSION) != MODEL_VERSION:
        detail = f"this service serves version {MODEL_VERSION}"
        raise Refused.at("model_not_found", "version", detail=detail)


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal as the protocol words it: code, place and fault, with tensors by name."""
    told = word_refusal(refused, refused.faults, _write_place)
    if refused.code in FAULT_SENTENCES:
        told = f"inputs: {FAULT_SENTENCES[refused.code]}"
    return json_reply({"error": f"{refused.code}: {told}"}, protocol_status(refused.code))


def protocol_status(code: str) -> int:
    """Return the protocol's status for a code: 400 where ours is 422."""
    own = REFUSALS[code].status
    return BAD_REQUEST if own == UNPROCESSABLE else own


def _write_place(loc: Loc) -> str:
    """Write a place in the request: inputs_embeds[3] is a tensor's fourth sequence."""
    match loc:
        case ("inputs", int(index), str(name)) if name in TENSORS_BY_FIELD:
            return f"{TENSORS_BY_FIELD[name]}[{index}]"
        case _:
            return write_place(loc)


def _chosen_outputs(request: InferRequest) -> dict[str, bool]:
    """Return the outputs asked for, and whether each comes as bytes."""
    binary = request.parameters.binary_data_output
    outputs: dict[str, bool] = {}
    for index, output in enumerate(request.outputs):
        if output.name not in OUTPUT_NAMES or output.name in outputs:
            near = "" if output.name in OUTPUT_NAMES else suggest_name(output.name, OUTPUT_NAMES)
            detail = f"expected {quote_names(OUTPUT_NAMES)}, each once{near}"
            raise Refused.at("out_of_range", "outputs", index, "name", detail=detail)
        own = output.parameters.binary_data
        outputs[output.name] = binary if own is None else own
    for parameter, output_name in CHOOSING_PARAMETERS.items():
        if getattr(request.parameters, parameter) is not None and output_name not in outputs:
            detail = f'it needs the output "{output_name}", which outputs do not name'
            raise Refused.at("out_of_range", "parameters", parameter, detail=detail)
    outputs = outputs or {POOLED: binary}
    if not PADDED_OUTPUTS.isdisjoint(outputs):
        outputs.setdefault(LENGTHS, binary)
    return outputs


def _chosen_layers(parameters: InferParameters, layers: int) -> list[int]:
    """Return the hidden states asked for, all if none is named."""
    return _parse_indices(parameters.layers) or list(range(layers + 1))


def _chosen_attention(parameters: InferParameters) -> Attention:
    """Return the attention asked for, all of it if nothing is named."""
    layers, heads = (
        _parse_indices(parameters.attention_layers),
        _parse_indices(parameters.attention_heads),
    )
    return Attention.model_construct(layers=layers or "all", heads=heads or "all")


def _parse_indices(text: str | None) -> list[int]:
    """Read numbers separated by commas."""
    return [int(number) for number in text.split(",")] if text else []


async def _collect_items(encoded: Encoded) -> list[answer.Item]:
    """Return all items of an answer, since a padded array needs them all."""
    items = []
    for item in encoded.items:
        items.append(item)
        if len(items) % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)
    return items


def _count_json_bytes(length: str | None) -> int | None:
    """Return how many bytes of a body are JSON, from INFERENCE_HEADER; None if all are.

    Raises:
        Refused: it is no such number.
    """
    if length is None:
        return None
    if not length.isdecimal() or not length.isascii() or len(length) > LONGEST_HEADER:
        detail = f"expected a number of bytes of up to {LONGEST_HEADER} digits"
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=detail)
    return int(length)


def write_answer(
    outputs: Mapping[str, bool], id: str | None, model: str, items: Sequence[Item]
) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return an answer's JSON, and the bytes that follow it, each in pieces.

    Args:
        outputs: those to return, in order, and whether each comes as bytes.
        id: the client's own, echoed.
        items: one for each sequence.
    """
    tensors = [_make_tensor(name, items, binary) for name, binary in outputs.items()]
    head = {"model_name": model, "model_version": MODEL_VERSION}
    if id is not None:
        head["id"] = id
    return _write_json(head, tensors), chain.from_iterable(
        tensor.write_bytes() for tensor in tensors
    )


def _make_tensor(name: str, items: Sequence[Item], binary: bool) -> Tensor:
    """Return one output for all sequences."""
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


def _output_arrays(name: str, item: Item) -> Iterator[Array]:
    """Yield one sequence's arrays of an output, in order; a layer's maps as one array."""
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
    """Pad an array with zeros to the length of the longest sequence."""
    tokens = array.shape[-2] if name != POOLED else longest
    if tokens == longest:
        return array
    after = (0, longest - tokens)
    return np.pad(array, ((0, 0), after, after) if name == ATTENTION else (after, (0, 0)))


def _write_json(head: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield the JSON of an answer, in pieces."""
    yield orjson.dumps(head)[:-1] + b',"outputs":['
    for index, tensor in enumerate(tensors):
        yield b"," if index else b""
        yield from tensor.write_json()
    yield b"]}"


async def answer_server(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2: the server and what it can do beyond the protocol."""
    names = {"name": "headlight", "version": version("headlight")}
    return json_reply({**names, "extensions": ["binary_tensor_data"]})


async def answer_live(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/health/live: the process answers."""
    return json_reply({"live": True})


async def answer_ready(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/health/ready: the forward path proved itself lately."""
    context.replica.check_ready()
    return json_reply({"ready": True})


async def answer_metadata(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v2/models/{model}: its inputs and outputs."""
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


# answered to an encoding: only other inputs and forms cause them
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
BINARY_BODY = {OCTETS: {"type": "string", "format": "binary"}}
JSON_LENGTH_HEADER = {"schema": {"type": "integer"}, "description": "of octets"}
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
            '"attention_heads": "5", "timeout": 1000000, "priority": 0, '
            '"binary_data_output": false}}',
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
    """Return the routes of a model, whose path may name its version."""
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
