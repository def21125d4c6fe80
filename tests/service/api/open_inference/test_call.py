"""The Open Inference Protocol: NVIDIA's own client, and what is refused."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
import tritonclient.http.aio
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from service.api.open_inference import call as inference_protocol
from service.engine.fair.rotation import FairRoom
from service.pipeline.replica import Replica
from service.shapes.answer import INFERENCE_HEADER as HEADER
from service.shapes.answer import OCTETS
from service.shapes.call import ModelFacts
from service.shapes.record import Record
from service.tables.refusals import refusal_of
from tests.conftest import post_of, posted
from tests.space_fields import (
    A_TEXT,
    GIVEN,
    Fields,
    Spaces,
    changes_form,
    changes_space,
    keeps_bits,
    names_no_space,
)

WITH_LAYERS, WITH_MAPS = [{"name": "layers"}], [{"name": "pooled"}, {"name": "attention"}]
INFER: Fields = {
    **{f"inputs{name}": GIVEN for name in ("", ".name", ".shape", ".datatype", ".data")},
    **{
        f"inputs.parameters{name}": GIVEN
        for name in ("", ".binary_data_size", ".shared_memory_region")
    },
    "id": keeps_bits(id="a"),
    "parameters": keeps_bits(parameters={}),
    "parameters.binary_data_output": changes_form(parameters={"binary_data_output": True}),
    "parameters.layers": names_no_space(parameters={"layers": "0"}, outputs=WITH_LAYERS),
    "parameters.attention_layers": keeps_bits(
        parameters={"attention_layers": "1"}, outputs=WITH_MAPS
    ),
    "parameters.attention_heads": keeps_bits(
        parameters={"attention_heads": "1"}, outputs=WITH_MAPS
    ),
    "parameters.timeout": keeps_bits(parameters={"timeout": 9_000_000}),
    "parameters.priority": keeps_bits(parameters={"priority": 1}),
    "parameters.sequence_id": keeps_bits(parameters={"sequence_id": 0}),
    "parameters.sequence_start": keeps_bits(parameters={"sequence_start": False}),
    "parameters.sequence_end": keeps_bits(parameters={"sequence_end": False}),
    "outputs": changes_space(outputs=[{"name": "tokens"}]),
    "outputs.name": names_no_space(outputs=[{"name": "pooled"}, *WITH_LAYERS]),
    "outputs.parameters": keeps_bits(outputs=[{"name": "pooled", "parameters": {}}]),
    "outputs.parameters.binary_data": changes_form(
        outputs=[{"name": "pooled", "parameters": {"binary_data": True}}]
    ),
    **{
        f"outputs.parameters.{name}": keeps_bits(outputs=[{"name": "pooled", "parameters": given}])
        for name, given in (
            ("classification", {"classification": 0}),
            ("shared_memory_region", {"shared_memory_region": None}),
        )
    },
}
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [A_TEXT]}
SPACE: Spaces = dict.fromkeys(
    ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"),
    ({"inputs": [TENSOR]}, INFER),
)
Array = NDArray[Any]
Result = TypeVar("Result")
Triton = Callable[[Callable[[InferenceServerClient], Result]], Awaitable[Result]]

MODEL = "all-MiniLM-L6-v2"
INFER = f"/v2/models/{MODEL}/infer"
TEXTS = ["All is well", "A dog ate the food because it was hungry", "Größe"]
IDS = [[101, 2035, 2003, 2092, 102], [101, 102]]
WIDTH, LAYERS, HEADS = 384, 6, 12
MOST_CALLS = 12_000  # of functions, in a turn


@pytest.fixture
def triton(address: str) -> Triton[Any]:
    """Runs a function of the client in a thread, where its greenlets belong."""

    def run(do: Callable[[InferenceServerClient], Any]) -> Any:
        with InferenceServerClient(address.removeprefix("http://")) as client:
            return do(client)

    return lambda do: asyncio.to_thread(run, do)


def tensor(name: str, array: Array, *, binary: bool = True) -> InferInput:
    """An input of the client's."""
    given = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def infer(
    inputs: list[InferInput], *outputs: str, binary: bool = True, **more: Any
) -> Callable[[InferenceServerClient], InferResult]:
    """A request of the client's."""
    asked = [InferRequestedOutput(name, binary_data=binary) for name in outputs]
    return lambda client: client.infer(MODEL, inputs, outputs=asked or None, **more)


def texts(*shape: int) -> Array:
    """TEXTS as the client takes them."""
    return np.array([text.encode() for text in TEXTS], dtype=object).reshape(*shape)


def padded() -> tuple[Array, Array]:
    """IDS as one tensor, and its mask."""
    ids, mask = np.zeros((2, 5), np.int64), np.zeros((2, 5), np.int64)
    for row, own in enumerate(IDS):
        ids[row, : len(own)], mask[row, : len(own)] = own, 1
    return ids, mask


async def native(client: httpx.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    """The same of our own wire, arrays by name."""
    return (await posted(client, "/v1/encode", {"encoding": "base64", **asked}))["data"]


def decoded(told: dict[str, Any]) -> Array:
    """An array of our own wire."""
    return np.frombuffer(base64.b64decode(told["data"]), told["dtype"]).reshape(told["shape"])


def check(found: Array, told: list[dict[str, Any]]) -> None:
    """Each sequence is bit for bit what our own wire answers, and zeros follow it."""
    assert len(found) == len(told)
    for row, own in zip(found, map(decoded, told), strict=True):
        inside = tuple(slice(size) for size in own.shape)
        assert row[inside].tobytes() == own.tobytes()
        rest = row.copy()
        rest[inside] = 0
        assert not rest.any()


@pytest.mark.client("tritonclient", "text, binary and JSON")
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=["B", "B1"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_texts_are_encoded_bit_for_bit_as_our_own_wire_does(
    client: httpx.AsyncClient, triton: Triton[InferResult], binary: bool, shape: tuple[int, ...]
) -> None:
    """Both ways in and out; without outputs it is pooled, with nothing else."""
    given = tensor("text", texts(*shape), binary=binary)

    answer = await triton(infer([given]))
    named = await triton(infer([given], "pooled", binary=binary))

    own = [one["pooled"] for one in await native(client, inputs=TEXTS)]
    check(answer.as_numpy("pooled"), own)
    check(named.as_numpy("pooled"), own)
    assert [one["name"] for one in answer.get_response()["outputs"]] == ["pooled"]
    assert ("data" in named.get_output("pooled")) is not binary


@pytest.mark.client("tritonclient", "token ids with a mask")
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.bool_])
async def test_a_mask_says_how_long_each_row_of_ids_is(
    client: httpx.AsyncClient, triton: Triton[InferResult], kind: type
) -> None:
    """What the zeros cover is not read."""
    ids, mask = padded()
    ids[mask == 0] = -7

    given = [tensor("attention_mask", mask.astype(kind)), tensor("input_ids", ids)]
    answer = await triton(infer(given, "tokens", "pooled"))

    told = await native(client, inputs=[{"token_ids": row} for row in IDS], tokens=True)
    check(answer.as_numpy("tokens"), [one["token_vectors"] for one in told])
    check(answer.as_numpy("pooled"), [one["pooled"] for one in told])
    assert answer.as_numpy("lengths").tolist() == [5, 2]


@pytest.mark.client("tritonclient", "token types")
async def test_token_types_go_with_ids(
    client: httpx.AsyncClient, triton: Triton[InferResult]
) -> None:
    """As in a pair of texts."""
    types = np.array([[0, 0, 0, 1, 1]])
    ids = np.array(IDS[:1])

    answer = await triton(infer([tensor("input_ids", ids), tensor("token_type_ids", types)]))

    own = {"token_ids": IDS[0], "token_type_ids": types[0].tolist()}
    check(answer.as_numpy("pooled"), [one["pooled"] for one in await native(client, inputs=[own])])


@pytest.mark.client("tritonclient", "embeddings, FP32 and FP16")
@pytest.mark.parametrize("kind", [np.float32, np.float16])
async def test_embeddings_are_encoded(
    client: httpx.AsyncClient, triton: Triton[InferResult], kind: type
) -> None:
    """With a mask too."""
    vectors = np.random.default_rng(7).normal(size=(2, 5, WIDTH)).astype(kind)
    _, mask = padded()

    given = [tensor("inputs_embeds", vectors), tensor("attention_mask", mask)]
    answer = await triton(infer(given, "pooled"))

    own = [
        {
            "shape": list(rows.shape),
            "dtype": rows.dtype.name,
            "data": base64.b64encode(rows.tobytes()).decode(),
        }
        for rows in (vectors[0], vectors[1, :2])
    ]
    told = await native(client, inputs=[{"embeddings": one} for one in own])
    check(answer.as_numpy("pooled"), [one["pooled"] for one in told])


@pytest.mark.client("tritonclient", "attention and hidden states as outputs")
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_attention_is_an_output(
    client: httpx.AsyncClient, triton: Triton[InferResult], binary: bool
) -> None:
    """Every head of every layer, and all hidden states, padded with zeros."""
    outputs = ("attention", "layers", "lengths")

    answer = await triton(infer([tensor("text", texts(3))], *outputs, binary=binary))

    told = await native(client, inputs=TEXTS, layers=list(range(LAYERS + 1)), attention={})
    lengths = [one["length"] for one in told]
    longest = max(lengths)
    maps, states = answer.as_numpy("attention"), answer.as_numpy("layers")
    assert maps.shape == (3, LAYERS, HEADS, longest, longest) and maps.dtype == np.float32
    assert states.shape == (3, LAYERS + 1, longest, WIDTH)
    assert answer.as_numpy("lengths").tolist() == lengths
    for layer in range(LAYERS):
        for head in range(HEADS):
            own = [one["attention"]["maps"][str(layer)][str(head)] for one in told]
            check(maps[:, layer, head], own)
    for state in range(LAYERS + 1):
        check(states[:, state], [one["layers"][str(state)] for one in told])
    assert [one["name"] for one in answer.get_response()["outputs"]] == list(outputs)


@pytest.mark.client("tritonclient", "chosen layers and heads")
async def test_layers_and_heads_are_chosen_by_parameters(
    client: httpx.AsyncClient, triton: Triton[InferResult]
) -> None:
    """Lists as the protocol's parameters can hold them; answered in the model's order."""
    chosen = {"layers": "-1,0", "attention_layers": "5", "attention_heads": "11,3"}

    answer = await triton(
        infer([tensor("text", texts(3))], "attention", "layers", **{"parameters": chosen})
    )

    told = await native(client, inputs=TEXTS, layers=[0, 6], attention={"heads": {"5": [3, 11]}})
    maps, states = answer.as_numpy("attention"), answer.as_numpy("layers")
    assert maps.shape[1:3] == (1, 2) and states.shape[1] == 2
    for place, head in enumerate(("3", "11")):
        check(maps[:, 0, place], [one["attention"]["maps"]["5"][head] for one in told])
    for place, state in enumerate(("0", "6")):
        check(states[:, place], [one["layers"][state] for one in told])


@pytest.mark.client("tritonclient", "asyncio")
async def test_the_client_for_asyncio_works_too(address: str) -> None:
    """It says application/octet-stream of everything it sends."""
    async with tritonclient.http.aio.InferenceServerClient(
        address.removeprefix("http://")
    ) as client:
        for binary in (True, False):
            given = tensor("text", texts(3), binary=binary)
            answer = await client.infer(MODEL, [given], model_version="1", request_id="a-7")
            assert answer.as_numpy("pooled").shape == (3, WIDTH)
            assert answer.get_response()["id"] == "a-7"


@pytest.mark.client("tritonclient", "metadata and readiness")
async def test_the_server_and_the_model_describe_themselves(triton: Triton[Any]) -> None:
    """With and without a version; another model is not ready."""
    server = await triton(lambda client: client.get_server_metadata())
    model = await triton(lambda client: client.get_model_metadata(MODEL, "1"))
    ready = await triton(
        lambda client: [
            client.is_server_live(),
            client.is_server_ready(),
            client.is_model_ready(MODEL),
            client.is_model_ready(MODEL, "1"),
            client.is_model_ready(MODEL, "2"),
            client.is_model_ready("another"),
        ]
    )

    assert server["name"] == "headlight" and "binary_tensor_data" in server["extensions"]
    assert (model["name"], model["versions"]) == (MODEL, ["1"])
    assert {one["name"]: (one["datatype"], one["shape"]) for one in model["inputs"]} == {
        "text": ("BYTES", [-1]),
        "input_ids": ("INT64", [-1, -1]),
        "token_type_ids": ("INT64", [-1, -1]),
        "inputs_embeds": ("FP32", [-1, -1, WIDTH]),
        "attention_mask": ("INT64", [-1, -1]),
    }
    assert {one["name"]: (one["datatype"], one["shape"]) for one in model["outputs"]} == {
        "pooled": ("FP32", [-1, WIDTH]),
        "tokens": ("FP32", [-1, -1, WIDTH]),
        "layers": ("FP32", [-1, -1, -1, WIDTH]),
        "attention": ("FP32", [-1, -1, -1, -1, -1]),
        "lengths": ("INT64", [-1]),
    }
    assert ready == [True, True, True, True, False, False]


GIVEN = [tensor("text", texts(3))]
LONG = [tensor("input_ids", np.ones((2, 250), np.int64))]
NARROW = [tensor("inputs_embeds", np.ones((2, 3, 7), np.float32))]
LATE = {"x-headlight-deadline-ms": "0"}
REFUSED: dict[str, tuple[Callable[[InferenceServerClient], Any], str, str]] = {
    "output": (infer(GIVEN, "logits"), "400", "out_of_range: outputs[0].name: "),
    "width": (infer(NARROW), "400", "shape_mismatch: inputs_embeds[0]: "),
    "length": (
        infer([tensor("input_ids", np.ones((1, 999), np.int64))]),
        "400",
        "takes at most 256",
    ),
    "large": (infer(LONG, "attention", binary=False), "413", "attention_too_large"),
    "compressed": (
        infer(GIVEN, request_compression_algorithm="gzip"),
        "415",
        "unsupported_encoding",
    ),
    "sequence": (
        infer(GIVEN, sequence_id=7, sequence_start=True),
        "400",
        "out_of_range: parameters.sequence_id",
    ),
    "named sequence": (
        infer(GIVEN, sequence_id="a", sequence_end=True),
        "400",
        "out_of_range: parameters.sequence_id",
    ),
    "timeout": (infer(GIVEN, timeout=-1), "400", "out_of_range: parameters.timeout"),
    "timeout in words": (infer(GIVEN, timeout="1"), "400", "invalid_type: parameters.timeout"),
    "priority": (infer(GIVEN, priority=-1), "400", "out_of_range: parameters.priority"),
    "late": (infer(GIVEN, headers=LATE), "400", "deadline_unreachable"),
    "model": (lambda client: client.get_model_metadata("another"), "404", "model_not_found"),
    "version": (lambda client: client.get_model_metadata(MODEL, "2"), "404", "model_not_found"),
    "repository": (lambda client: client.get_model_repository_index(), "404", "not_found"),
    "loading": (lambda client: client.load_model(MODEL), "404", "not_found"),
}


@pytest.mark.client("tritonclient", "timeout and priority")
@pytest.mark.parametrize(
    "more",
    [
        {"timeout": 20_000_000},
        {"parameters": {"rate": 2}},
        {"timeout": 0},
        {"timeout": 2**63},
        {"priority": 1},
        {"priority": 2**64 - 1},
        {"priority": 3, "timeout": 9_000_000, "request_id": "7"},
        {
            "sequence_start": True,
            "sequence_end": True,
        },  # which the client leaves out, without an id
        {"headers": {"x-a": "b"}, "query_params": {}},
        {"response_compression_algorithm": "gzip"},
        {"response_compression_algorithm": "deflate"},
    ],
    ids=str,
)
async def test_what_the_client_can_add_to_a_request_changes_no_answer(
    client: httpx.AsyncClient, triton: Triton[InferResult], more: dict[str, Any]
) -> None:
    """All that asks for nothing which a model without state and levels cannot honour."""
    answer = await triton(infer([tensor("text", texts(3))], "pooled", **more))

    check(answer.as_numpy("pooled"), [one["pooled"] for one in await native(client, inputs=TEXTS)])


@pytest.mark.client("tritonclient", "timeout and priority")
async def test_the_clients_timeout_is_a_deadline_that_the_service_keeps(
    triton: Triton[InferResult], served: Callable[..., httpx.AsyncClient]
) -> None:
    """A microsecond is too little for anything; no number lengthens the service's own."""
    with pytest.raises(InferenceServerException, match=r"deadline_unreachable: .*deadline is 0 ms"):
        await triton(infer(GIVEN, timeout=1))

    asked = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    async with served(deadline_seconds=1e-6) as hasty:
        answers = [
            await hasty.post(INFER, json={**asked, "parameters": {"timeout": timeout}})
            for timeout in (0, 60_000_000)
        ]
    assert all(a.status_code == 400 and "deadline_unreachable" in a.text for a in answers)


@pytest.mark.client("tritonclient", "errors")
@pytest.mark.parametrize(("ask", "status", "said"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_is_the_clients_own_exception(
    triton: Triton[Any], ask: Callable[[InferenceServerClient], Any], status: str, said: str
) -> None:
    """With the status and a sentence."""
    with pytest.raises(InferenceServerException) as raised:
        await triton(ask)

    assert raised.value.status() == status
    assert said in raised.value.message()


def tensor_of(name: str, shape: list[int], datatype: str, data: Any) -> dict[str, Any]:
    """A tensor on the wire, in JSON."""
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def ids(shape: list[int], data: Any) -> dict[str, Any]:
    """Token ids on the wire."""
    return tensor_of("input_ids", shape, "INT64", data)


def mask(*row: int, datatype: str = "INT64") -> dict[str, Any]:
    """A mask of one row on the wire."""
    return tensor_of("attention_mask", [1, len(row)], datatype, list(row))


def text(*given: str) -> dict[str, Any]:
    """Texts on the wire."""
    return tensor_of("text", [len(given)], "BYTES", list(given))


TEXT, ROW = text("a"), ids([1, 3], [1, 2, 3])
VECTOR = tensor_of("inputs_embeds", [1, 1, WIDTH], "FP32", [1e39] * WIDTH)
WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no inputs": ([], "exactly_one_input: inputs: "),
    "two kinds": ([TEXT, ROW], "exactly_one_input: inputs: "),
    "twice": ([TEXT, TEXT], "out_of_range: inputs[1].name: "),
    "unknown": ([{**TEXT, "name": "x"}], "out_of_range: inputs[0].name: "),
    "mask of texts": ([TEXT, mask(1)], "out_of_range: attention_mask: "),
    "types of texts": (
        [TEXT, {**mask(1), "name": "token_type_ids"}],
        "out_of_range: token_type_ids",
    ),
    "datatype": ([{**ROW, "datatype": "FP32"}], "invalid_type: input_ids: "),
    "FP16 in JSON": ([{**VECTOR, "datatype": "FP16"}], "invalid_type: inputs_embeds: "),
    "float as id": ([ids([1, 1], [1.0])], "invalid_type: input_ids: "),
    "bool as id": ([ids([1, 1], [True])], "invalid_type: input_ids: "),
    "number as text": ([{**TEXT, "data": [1]}], "invalid_type: text: "),
    "id past int64": ([ids([1, 1], [2**63])], "out_of_range: input_ids: "),
    "id of another vocabulary": ([ids([1, 1], [30_522])], "token_out_of_range: input_ids[0]: "),
    "1e39": ([VECTOR], "non_finite: inputs_embeds[0]: "),
    "negative shape": ([ids([-1, -3], [1, 2, 3])], "shape_mismatch: input_ids: "),
    "no shape": ([ids([], [])], "shape_mismatch: input_ids: "),
    "one axis": ([ids([3], [1, 2, 3])], "shape_mismatch: input_ids: "),
    "two columns of text": ([{**text("a", "b"), "shape": [1, 2]}], "shape_mismatch: text: "),
    "too few": ([ids([1, 3], [1, 2])], "shape_mismatch: input_ids: "),
    "too many": ([ids([1, 1], [1, 2])], "shape_mismatch: input_ids: "),
    "ragged": ([ids([2, 2], [[1, 2], [3]])], "shape_mismatch: input_ids: "),
    "nested otherwise": ([ids([2, 2], [[1], [2], [3], [4]])], "shape_mismatch: input_ids: "),
    "no rows": ([{**text(), "shape": [0]}], "batch_empty: text: "),
    "2,049 texts": ([text(*["a"] * 2049)], "batch_too_large"),
    "an empty text": ([text("")], "sequence_empty: text[0]: "),
    "neither data nor bytes": ([{**ROW, "data": None}], "missing_field: input_ids: "),
    "a hole in the mask": ([ROW, mask(1, 0, 1)], "out_of_range: attention_mask: "),
    "2 in the mask": ([ROW, mask(2, 0, 0)], "out_of_range: attention_mask: "),
    "1 as bool": ([ROW, mask(1, 1, 1, datatype="BOOL")], "invalid_type: attention_mask: "),
    "masked whole": ([ROW, mask(0, 0, 0)], "sequence_empty: attention_mask: "),
    "mask of another shape": ([ROW, mask(1, 1)], "shape_mismatch: attention_mask: "),
    "mask of another batch": ([ids([3, 1], [1, 2, 3]), mask(1)], "shape_mismatch: inputs: "),
}
CHOSEN: dict[str, tuple[dict[str, Any], str]] = {
    "layers of no output": ({"parameters": {"layers": "1"}}, "out_of_range: parameters.layers: "),
    "layer 7 of 6": (
        {"outputs": [{"name": "layers"}], "parameters": {"layers": "7"}},
        "index_out_of_range: layers: ",
    ),
    "layers in words": (
        {"outputs": [{"name": "layers"}], "parameters": {"layers": "one"}},
        "invalid_type: parameters.layers: ",
    ),
    "head 12 of 12": (
        {"outputs": [{"name": "attention"}], "parameters": {"attention_heads": "12"}},
        "index_out_of_range: attention: ",
    ),
    "an output twice": ({"outputs": [{"name": "tokens"}] * 2}, "out_of_range: outputs[1].name: "),
    "classes": (
        {"outputs": [{"name": "pooled", "parameters": {"classification": 3}}]},
        "out_of_range: outputs[0].parameters.classification: ",
    ),
    "an id that is none": ({"id": 7}, "invalid_type: id: "),
}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(({"inputs": inputs}, said) for inputs, said in WRONG.values()),
        *(({"inputs": [TEXT], **more}, said) for more, said in CHOSEN.values()),
    ],
    ids=[*WRONG, *CHOSEN],
)
async def test_a_tensor_that_is_not_what_it_says_is_a_400_that_names_it(
    client: httpx.AsyncClient, replica: Replica, asked: dict[str, Any], said: str
) -> None:
    """Before any work."""
    before = replica.metrics.freeze()().split(b"headlight_tokens_total{")[1].split(b"\n")[0]

    answer = await client.post(INFER, json=asked)

    assert answer.status_code == 400
    assert answer.json().keys() == {"error"} and answer.json()["error"].startswith(said)
    assert before in replica.metrics.freeze()()


MIB = 1024 * 1024
UNREADABLE: dict[str, tuple[dict[str, str], bytes, int, str]] = {
    "JSON": ({}, b"{", 400, "invalid_json"),
    "no JSON": ({HEADER: "0"}, b"{}", 400, "invalid_json"),
    "header past the body": ({HEADER: "3"}, b"{}", 400, f"out_of_range: {HEADER}"),
    "header below zero": ({HEADER: "-1"}, b"{}", 400, f"out_of_range: {HEADER}"),
    "header of 99 digits": ({HEADER: "9" * 99}, b"{}", 400, f"out_of_range: {HEADER}"),
    "large JSON": ({}, bytes(2 * MIB + 1), 413, "body_too_large"),
    "as octets": ({"content-type": OCTETS}, bytes(2 * MIB + 1), 413, "body_too_large"),
    "in a header": ({HEADER: str(2 * MIB + 1)}, bytes(2 * MIB + 1), 413, "body_too_large"),
    "large body": ({HEADER: "9"}, bytes(8 * MIB + 1), 413, "body_too_large"),
    "text": ({"content-type": "text/plain"}, b"{}", 415, "unsupported_media_type"),
    "compressed": ({"content-encoding": "gzip"}, b"{}", 415, "unsupported_encoding"),
}


@pytest.mark.parametrize(("headers", "body", "status", "said"), UNREADABLE.values(), ids=UNREADABLE)
async def test_a_body_that_cannot_be_read_is_refused_in_the_protocols_words(
    client: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, said: str
) -> None:
    """However large it is announced to be, no more JSON is read than our own wire reads."""
    answer = await client.post(INFER, content=body, headers=headers)

    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


async def test_bytes_may_take_more_than_json(client: httpx.AsyncClient) -> None:
    """3 MiB of embeddings, as the header alone announces them; elsewhere it announces nothing."""
    vectors = np.ones((8, 256, WIDTH), np.float32)
    given = {"name": "inputs_embeds", "shape": vectors.shape, "datatype": "FP32"}
    given["parameters"] = {"binary_data_size": vectors.nbytes}
    told = json.dumps({"inputs": [given]}).encode()
    headers = {HEADER: str(len(told))}

    answer = await client.post(INFER, content=told + vectors.tobytes(), headers=headers)
    ours = await client.post("/v1/encode", content=bytes(vectors.nbytes), headers=headers)

    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["shape"] == [8, WIDTH]
    assert ours.status_code == 413


async def test_padding_is_paid_for(client: httpx.AsyncClient) -> None:
    """One long sequence among many short ones would make an answer of mostly zeros."""
    many, some = text("dog " * 200, *["a"] * 1499), text("dog " * 200, *["a"] * 99)

    async def said(inputs: dict[str, Any], output: str) -> tuple[int, str]:
        asked = {
            "inputs": [inputs],
            "outputs": [{"name": output, "parameters": {"binary_data": True}}],
        }
        answer = await client.post(INFER, json=asked)
        return answer.status_code, answer.json()["error"] if answer.is_error else ""

    assert (await said(many, "pooled"))[0] == 200
    status, sentence = await said(many, "tokens")
    assert (status, sentence[:15]) == (413, "too_many_tokens") and "303,000" in sentence
    status, sentence = await said(some, "attention")
    assert (status, sentence[:19]) == (413, "attention_too_large")
    assert f"{100 * 72 * 202 * 202 * 4:,} bytes" in sentence


async def test_many_small_maps_are_written_in_many_turns(replica: Replica) -> None:
    """Each of few calls, so that other requests wait for no long one."""
    given, turns = tensor_of("input_ids", [512, 1], "INT64", [7] * 512), list[int]()
    output = {"name": "attention", "parameters": {"binary_data": True}}
    sent = json.dumps({"inputs": [given], "outputs": [output]}).encode()
    served = ModelFacts([MODEL], (), 6, 1 << 20, 2048)
    call = inference_protocol.parse(sent, post_of(INFER, MODEL), served)
    due, record = time.monotonic() + 60, Record("other")
    encoded = await replica.gateway.encode(call.request, due, record, call.custom)

    def count(_frame: object, event: str, _given: object) -> None:
        turns[-1] += event in ("call", "c_call")

    async def go_round() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    going = asyncio.create_task(go_round())
    await asyncio.sleep(0)
    sys.setprofile(count)
    try:
        await call.write(encoded, FairRoom())
    finally:
        sys.setprofile(None)
        going.cancel()

    assert max(turns) <= MOST_CALLS


async def test_what_the_path_names_is_counted_by_its_template(client: httpx.AsyncClient) -> None:
    """No client can make a series."""
    for path in ("/v2/models/x-7f3a/infer", "/v2/models/x-7f3a/versions/1/infer"):
        assert (await client.post(path, content=b"{}")).status_code == 404
    await client.get("/v1/models/x-7f3a/name")

    metrics = (await client.get("/metrics")).text

    assert 'route="/v2/models/{model}/infer"' in metrics
    assert 'route="/v1/models/{id}"' in metrics
    assert "x-7f3a" not in metrics and "/versions" not in metrics


async def test_a_model_with_a_slash_in_its_name_has_a_path(client: httpx.AsyncClient) -> None:
    """Nothing that follows it is taken for a part of the name that is ours."""
    for path in (f"/v2/models/a/b/{MODEL}", f"/v2/models/{MODEL}/ready/ready"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"][:15]) == (404, "model_not_found")


async def test_a_refusal_never_repeats_the_input() -> None:
    """Neither names of tensors nor values."""
    secret = "canary-7f3a"
    body = {"inputs": [tensor_of(secret, [1], secret, [secret])], secret: 1}
    request, served = post_of(INFER, "m"), ModelFacts(["m"], (), 6, 999, 9)

    with pytest.raises(Exception) as raised:
        inference_protocol.parse(json.dumps(body).encode(), request, served)

    assert (
        secret.encode() not in inference_protocol.problem(refusal_of(raised.value), "id").pieces[0]
    )
