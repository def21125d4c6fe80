"""POST /v2/models/{model}/infer: the Open Inference Protocol, with binary tensors.

Inputs are exactly one of text, input_ids and inputs_embeds. Outputs are padded with zeros to the
batch's longest sequence; `lengths` comes with those that can be. inference_answer.py writes them.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api import dialect
from service.api.dialect import Problem, Written
from service.api.open_inference import tensors, writer
from service.api.open_inference.request import (
    ATTENTION,
    LAYERS,
    LENGTHS,
    OUTPUTS,
    POOLED,
    TOKENS,
    InferInput,
    InferParameters,
    InferRequest,
)
from service.encode import answer
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, Encoded, join
from service.encode.request import Attention, EncodeRequest, Item
from service.refusals import REFUSALS, Refused

Array = NDArray[Any]

PADDED = frozenset((TOKENS, LAYERS, ATTENTION))
TEXT, IDS, TYPES, EMBEDS, MASK = (
    "text",
    "input_ids",
    "token_type_ids",
    "inputs_embeds",
    "attention_mask",
)
# what each input may be: its datatypes, and how many axes it may have
INPUTS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    TEXT: (("BYTES",), (1, 2)),
    IDS: (("INT64",), (2,)),
    TYPES: (("INT64",), (2,)),
    EMBEDS: (("FP32", "FP16"), (3,)),
    MASK: (("INT64", "INT32", "BOOL"), (2,)),
}
BESIDE = {TYPES: (IDS,), MASK: (IDS, EMBEDS)}  # inputs that need one of others
NATIVE = {"text": TEXT, "token_ids": IDS, "token_type_ids": TYPES, "embeddings": EMBEDS}
CHOOSES = {"layers": LAYERS, "attention_layers": ATTENTION, "attention_heads": ATTENTION}
TITLES = {"exactly_one_input": f"The inputs hold exactly one of {TEXT}, {IDS} and {EMBEDS}."}
LONGEST_HEADER = 9  # digits of bytes
ITEMS_A_TURN = 64  # that are made of an answer before other requests get a turn
BAD_REQUEST, UNPROCESSABLE = REFUSALS["invalid_json"].status, REFUSALS["invalid_type"].status


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request is read against.

    Args:
        most_json: bytes of JSON that are read.
        most_sequences: sequences in a request.
        layers: of the model.
    """

    most_json: int
    most_sequences: int
    layers: int


@dataclass(frozen=True, slots=True)
class Call(dialect.Call):
    """One request, and how its answer is written.

    Args:
        outputs: those answered, in order, and whether each comes as bytes.
        id: the client's own, given back.
        seconds: that it may take; inf where it does not say.
    """

    request: EncodeRequest
    outputs: Mapping[str, bool]
    id: str | None
    seconds: float

    @property
    def numbers(self) -> bool:
        """Whether attention is written as JSON numbers."""
        return not self.outputs.get(ATTENTION, True)

    @property
    def padded(self) -> bool:
        """Whether sequences are padded to the longest."""
        return not PADDED.isdisjoint(self.outputs)

    @property
    def media_type(self) -> str:
        return OCTETS if any(self.outputs.values()) else JSON

    async def write(self, encoded: Encoded, turn: asyncio.Lock) -> Written:
        """The answer as it is sent: JSON, then the bytes of tensors, where there are any."""
        items = await _made(encoded)
        told, data = writer.written(self.outputs, self.id, encoded.head["model"], items)
        head = await join(told, turn)
        body = await join(chain([head], data), turn)
        octets = self.media_type == OCTETS
        return Written(body, {INFERENCE_HEADER: str(len(head))} if octets else {})


def parse(body: bytes, header: int | None, limits: Limits) -> Call:
    """Read a request.

    Args:
        header: how many of the body's first bytes are JSON; None where all are.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    told, data = body[:header], memoryview(body)[len(body) if header is None else header :]
    if header is not None and header > len(body):
        raise Refused.at("out_of_range", INFERENCE_HEADER)
    if len(told) > limits.most_json:
        raise Refused("body_too_large")
    asked = InferRequest.model_validate_json(told)
    outputs = _outputs(asked)
    given = _read(asked.inputs, data, limits.most_sequences)
    request = EncodeRequest(
        inputs=_items(given),
        pooled=POOLED in outputs,
        tokens=TOKENS in outputs,
        layers=_hidden(asked.parameters, limits.layers) if LAYERS in outputs else [],
        attention=_attention(asked.parameters) if ATTENTION in outputs else None,
    )
    timeout = asked.parameters.timeout
    return Call(request, outputs, asked.id, timeout / 1e6 if timeout else math.inf)


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as the protocol words it: one sentence, that says which tensor."""
    title = TITLES.get(refused.code, REFUSALS[refused.code].title)
    said = [refused.code, *(_where(fault.loc) for fault in refused.faults[:1]), title]
    facts = [f"{name} {fact}" for name, fact in refused.facts.items() if isinstance(fact, int)]
    sentence = ": ".join(filter(None, said)) + (f" ({', '.join(facts)})" if facts else "")
    return Problem(status(refused.code), orjson.dumps({"error": sentence}), JSON)


def status(code: str) -> int:
    """What the protocol answers where ours is 422: 400."""
    own = REFUSALS[code].status
    return BAD_REQUEST if own == UNPROCESSABLE else own


def _where(loc: Sequence[str | int]) -> str:
    """A place in the request: inputs_embeds[3] is a tensor's fourth sequence."""
    match loc:
        case ("inputs", int(index), str(name)) if name in NATIVE:
            return f"{NATIVE[name]}[{index}]"
        case _:
            parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc]
            return "".join(parts).removeprefix(".")


def _outputs(asked: InferRequest) -> dict[str, bool]:
    """The outputs to answer, and whether each comes as bytes."""
    every = asked.parameters.binary_data_output
    outputs: dict[str, bool] = {}
    for index, output in enumerate(asked.outputs):
        if output.name not in OUTPUTS or output.name in outputs:
            raise Refused.at("out_of_range", "outputs", index, "name")
        own = output.parameters.binary_data
        outputs[output.name] = every if own is None else own
    for parameter, output_name in CHOOSES.items():
        if getattr(asked.parameters, parameter) is not None and output_name not in outputs:
            raise Refused.at("out_of_range", "parameters", parameter)
    outputs = outputs or {POOLED: every}
    if not PADDED.isdisjoint(outputs):
        outputs.setdefault(LENGTHS, every)
    return outputs


def _hidden(parameters: InferParameters, layers: int) -> list[int]:
    """The hidden states asked for, all where none is named."""
    return _listed(parameters.layers) or list(range(layers + 1))


def _attention(parameters: InferParameters) -> Attention:
    layers, heads = _listed(parameters.attention_layers), _listed(parameters.attention_heads)
    return Attention(layers=layers or "all", heads=heads or "all")


def _listed(said: str | None) -> list[int]:
    return [int(number) for number in said.split(",")] if said else []


def _read(inputs: Sequence[InferInput], data: memoryview, most: int) -> dict[str, Any]:
    """The inputs by name, texts as a list and numbers as arrays, each checked by itself.

    In their order they take the bytes that follow the JSON.
    """
    sequences: set[int] = set()
    for index, given in enumerate(inputs):
        if given.name not in INPUTS or given.name in [one.name for one in inputs[:index]]:
            raise Refused.at("out_of_range", "inputs", index, "name")
        _check_kind(given, most)
        sequences.add(given.shape[0])
    if len(sequences) > 1:
        raise Refused.at("shape_mismatch", "inputs")
    found: dict[str, Any] = {}
    for given in inputs:
        size = given.parameters.binary_data_size
        if (size is None) == (given.data is None):
            raise Refused.at("missing_field" if size is None else "out_of_range", given.name)
        part, data = (None, data) if size is None else (data[:size], data[size:])
        if part is not None and len(part) != size:
            raise Refused.at("payload_length_mismatch", given.name)
        read = tensors.strings if given.name == TEXT else tensors.numbers
        found[given.name] = read(given, part)
    if len(data):
        raise Refused.at("payload_length_mismatch", "inputs")
    return found


def _check_kind(given: InferInput, most: int) -> None:
    """Refuse a datatype or a shape that the input cannot have."""
    datatypes, axes = INPUTS[given.name]
    if given.datatype not in datatypes:
        raise Refused.at("invalid_type", given.name)
    columns = given.shape[1] if given.name == TEXT and len(given.shape) > 1 else 1
    if len(given.shape) not in axes or min(given.shape) < 0 or columns != 1:
        raise Refused.at("shape_mismatch", given.name)
    if not given.shape[0]:
        raise Refused.at("batch_empty", given.name)
    if given.shape[0] > most:
        raise Refused("batch_too_large", limit=most)
    if 0 in given.shape:
        raise Refused.at("sequence_empty", given.name)


def _items(given: Mapping[str, Any]) -> list[str | Item]:
    """The inputs as our own wire has them."""
    if sum(name in given for name in (TEXT, IDS, EMBEDS)) != 1:
        raise Refused.at("exactly_one_input", "inputs")
    for name, others in BESIDE.items():
        if name in given and not any(other in given for other in others):
            raise Refused.at("out_of_range", name)
    if TEXT in given:
        return list(given[TEXT])
    rows = given[IDS] if IDS in given else given[EMBEDS]
    for name in BESIDE:
        if name in given and given[name].shape != rows.shape[:2]:
            raise Refused.at("shape_mismatch", name)
    lengths = _lengths(given[MASK]) if MASK in given else [rows.shape[1]] * len(rows)
    if EMBEDS in given:
        return [Item(embeddings=row[:end]) for row, end in zip(rows, lengths, strict=True)]
    types = given[TYPES] if TYPES in given else np.zeros_like(rows)
    return [
        Item(token_ids=row[:end].tolist(), token_type_ids=of_row[:end].tolist())
        for row, of_row, end in zip(rows, types, lengths, strict=True)
    ]


def _lengths(mask: Array) -> list[int]:
    """How long each sequence is: ones, then zeros; anything else is no length."""
    lengths = (mask != 0).sum(1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        raise Refused.at("out_of_range", MASK)
    if not lengths.all():
        raise Refused.at("sequence_empty", MASK)
    return [int(length) for length in lengths]


async def _made(encoded: Encoded) -> list[answer.Item]:
    """All items of an answer, since a padded array needs them all."""
    items = []
    for item in encoded.items:
        items.append(item)
        if len(items) % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)
    return items


def header(length: str | None) -> int | None:
    """How many bytes of a body are JSON, as INFERENCE_HEADER says; None where all are.

    Raises:
        Refused: it is no such number.
    """
    if length is None:
        return None
    if not length.isdecimal() or not length.isascii() or len(length) > LONGEST_HEADER:
        raise Refused.at("out_of_range", INFERENCE_HEADER)
    return int(length)
