"""POST /v2/models/{model}/infer: the Open Inference Protocol, with binary tensors."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from service.api import dialect
from service.api.dialect import Answer, Problem, Sent, Served
from service.api.open_inference import inputs, writer
from service.api.open_inference.inputs import EMBEDS, IDS, TEXT, TYPES
from service.api.open_inference.request import (
    ATTENTION,
    LAYERS,
    LENGTHS,
    OUTPUTS,
    POOLED,
    TOKENS,
    VERSION,
    InferParameters,
    InferRequest,
)
from service.api.problem import sentence
from service.encode import answer
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, Encoded, collect
from service.encode.request import PARTS, Attention, Layout, Request
from service.engine.fair.rotation import Lock
from service.refusals import REFUSALS, Refused
from service.wording.fault import Loc
from service.wording.words import meant, place, quoted

PADDED = frozenset((TOKENS, LAYERS, ATTENTION))
NATIVE = {"text": TEXT, "token_ids": IDS, "token_type_ids": TYPES, "embeddings": EMBEDS}
CHOICES = {"layers": LAYERS, "attention_layers": ATTENTION, "attention_heads": ATTENTION}
TITLES = {"exactly_one_input": f"The inputs hold exactly one of {TEXT}, {IDS} and {EMBEDS}."}
LONGEST_HEADER = 9  # digits of bytes
BEYOND = "expected at most as many bytes of JSON as the body has"
ITEMS_A_TURN = 64  # that are made of an answer before other requests get a turn
BAD_REQUEST, UNPROCESSABLE = REFUSALS["invalid_json"].status, REFUSALS["invalid_type"].status


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(dialect.Call):
    """A request of POST /v2/models/{model}/infer.

    Args:
        outputs: those answered, in order, and whether each comes as bytes.
        id: the client's own, given back.
    """

    outputs: Mapping[str, bool]
    id: str | None

    async def write(self, encoded: Encoded, turn: Lock) -> Answer:
        """The answer as it is sent: JSON, then the bytes of tensors, where there are any."""
        items = await _items(encoded)
        pieces, data = writer.write(self.outputs, self.id, encoded.preamble["model"], items)
        head = await collect(pieces, turn)
        if self.media_type != OCTETS:
            return Answer(head)
        length = str(sum(map(len, head)))
        return Answer([*head, *await collect(data, turn)], {INFERENCE_HEADER: length})


def parse(body: bytes, sent: Sent, served: Served) -> Call:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    check_model(sent.path_params, served.name)
    header = _json_bytes(sent.headers.get(INFERENCE_HEADER))
    text, data = body[:header], memoryview(body)[len(body) if header is None else header :]
    if header is not None and header > len(body):
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=BEYOND)
    if len(text) > served.most_json:
        raise Refused("body_too_large")
    request = InferRequest.model_validate_json(text)
    outputs, parameters = _outputs(request), request.parameters
    native = Request(
        inputs=inputs.read(request.inputs, data, served.most_sequences),
        pooled=POOLED in outputs,
        tokens=TOKENS in outputs,
        layers=_hidden(parameters, served.layers) if LAYERS in outputs else [],
        attention=_attention(parameters) if ATTENTION in outputs else None,
        layout=Layout(
            numbers=[part for part in PARTS if not outputs.get(part, True)],
            padded=not PADDED.isdisjoint(outputs),
        ),
    )
    return Call(
        request=native,
        seconds=parameters.timeout / 1e6 or math.inf,
        media_type=OCTETS if any(outputs.values()) else JSON,
        outputs=outputs,
        id=request.id,
    )


def check_model(params: Mapping[str, str], name: str) -> None:
    """Refuse a path that names another model or version than the one of that name."""
    if params["model"] != name or params.get("version", VERSION) != VERSION:
        detail = f'this service serves "{name}", version {VERSION}'
        raise Refused.at("model_not_found", "model", detail=detail)


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as the protocol words it: its code, then where and what, tensors by their names."""
    told = sentence(refused, refused.faults, _where)
    if refused.code in TITLES:
        told = f"inputs: {TITLES[refused.code]}"
    return Problem(status(refused.code), orjson.dumps({"error": f"{refused.code}: {told}"}), JSON)


def status(code: str) -> int:
    """What the protocol answers where ours is 422: 400."""
    own = REFUSALS[code].status
    return BAD_REQUEST if own == UNPROCESSABLE else own


def _where(loc: Loc) -> str:
    """A place in the request: inputs_embeds[3] is a tensor's fourth sequence."""
    match loc:
        case ("inputs", int(index), str(name)) if name in NATIVE:
            return f"{NATIVE[name]}[{index}]"
        case _:
            return place(loc)


def _outputs(request: InferRequest) -> dict[str, bool]:
    """The outputs to answer, and whether each comes as bytes."""
    binary = request.parameters.binary_data_output
    outputs: dict[str, bool] = {}
    for index, output in enumerate(request.outputs):
        if output.name not in OUTPUTS or output.name in outputs:
            near = "" if output.name in OUTPUTS else meant(output.name, OUTPUTS)
            detail = f"expected {quoted(OUTPUTS)}, each once{near}"
            raise Refused.at("out_of_range", "outputs", index, "name", detail=detail)
        own = output.parameters.binary_data
        outputs[output.name] = binary if own is None else own
    for parameter, output_name in CHOICES.items():
        if getattr(request.parameters, parameter) is not None and output_name not in outputs:
            detail = f'it needs the output "{output_name}", which outputs do not name'
            raise Refused.at("out_of_range", "parameters", parameter, detail=detail)
    outputs = outputs or {POOLED: binary}
    if not PADDED.isdisjoint(outputs):
        outputs.setdefault(LENGTHS, binary)
    return outputs


def _hidden(parameters: InferParameters, layers: int) -> list[int]:
    """The hidden states asked for, all where none is named."""
    return _indices(parameters.layers) or list(range(layers + 1))


def _attention(parameters: InferParameters) -> Attention:
    layers, heads = _indices(parameters.attention_layers), _indices(parameters.attention_heads)
    return Attention(layers=layers or "all", heads=heads or "all")


def _indices(text: str | None) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


async def _items(encoded: Encoded) -> list[answer.Item]:
    """All items of an answer, since a padded array needs them all."""
    items = []
    for item in encoded.items:
        items.append(item)
        if len(items) % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)
    return items


def _json_bytes(length: str | None) -> int | None:
    """Return how many bytes of a body are JSON, as INFERENCE_HEADER says; None where all are.

    Raises:
        Refused: it is no such number.
    """
    if length is None:
        return None
    if not length.isdecimal() or not length.isascii() or len(length) > LONGEST_HEADER:
        detail = f"expected a number of bytes of up to {LONGEST_HEADER} digits"
        raise Refused.at("out_of_range", INFERENCE_HEADER, detail=detail)
    return int(length)
