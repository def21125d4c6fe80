"""Whatever bytes come, a dialect gives a call or a refusal that is the client's fault."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.api.open_inference import call as inference_protocol
from service.api.own import make_parser, problem
from service.files.weights import BUNDLED_MODEL
from service.observe.metrics import Record
from service.pipeline.replica import Replica
from service.questions.encode import EncodeRequest
from service.shapes.answer import INFERENCE_HEADER
from service.shapes.ask import Ask
from service.shapes.call import ModelFacts, Reply
from service.tables.refusals import REFUSALS, refusal_of
from tests.conftest import post_of

MOST_JSON = 1 << 20
CODES = {kind.status for kind in REFUSALS.values()}
FAULTS = {status for status in CODES if status < REFUSALS["internal"].status}
IDS = np.array([[101, 2035, 102]])

Decode = Callable[[bytes], Ask]
ENCODE: dict[str, Any] = {
    "model": None,
    "inputs": [
        "a",
        {"text": "a", "pair": "b"},
        {"token_ids": [101, 102], "token_type_ids": [0, 0]},
        {"embeddings": {"shape": [1, 1], "dtype": "float32", "data": "AAAAAA=="}},
    ],
    "truncate": "right",
    "pooled": {"mode": "mean", "normalize": True, "dimensions": 7},
    "layers": [0, -1],
    "attention": {"form": "top", "k": 2, "heads": {"5": [11]}, "level": "token"},
    "gates": [{"layer": 5, "head": 11, "scale": 0.5}],
}
INFER: dict[str, Any] = {
    "id": "7",
    "inputs": [
        {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[101, 2035, 102]]},
        {"name": "attention_mask", "shape": [1, 3], "datatype": "BOOL", "data": [True] * 3},
    ],
    "outputs": [{"name": "layers", "parameters": {"binary_data": True}}, {"name": "attention"}],
    "parameters": {"layers": "0,-1", "attention_heads": "11"},
}
BINARY: dict[str, Any] = {
    "inputs": [
        {
            "name": "input_ids",
            "shape": [1, 3],
            "datatype": "INT64",
            "parameters": {"binary_data_size": IDS.nbytes},
        }
    ]
}
TEXTS: dict[str, Any] = {
    "inputs": [
        {
            "name": "text",
            "shape": [2, 1],
            "datatype": "BYTES",
            "parameters": {"binary_data_size": 10},
        }
    ],
    "outputs": [{"name": "pooled"}],
}


SERVED = ModelFacts([BUNDLED_MODEL], (), 6, MOST_JSON, 64)


def of_json(body: bytes) -> Ask:
    """Our own wire."""
    return make_parser(EncodeRequest)(body, post_of("/"), SERVED).request


def of_inference(body: bytes) -> Ask:
    """The Open Inference Protocol; the header stands on a first line here, if there is one."""
    header, line, rest = body.partition(b"\n")
    announced = int(header) if line and header.isdigit() and len(header) < 9 else None
    if announced is None:
        return inference_protocol.parse(body, post_of("/"), SERVED).request
    around = post_of("/", **{INFERENCE_HEADER: str(announced)})
    return inference_protocol.parse(rest, around, SERVED).request


def as_json(tree: Any) -> bytes:
    """A tree as JSON."""
    return json.dumps(tree).encode()


def as_inference(data: bytes) -> Callable[[Any], bytes]:
    """What writes a tree and these bytes after it, as `of_inference` reads them."""

    def written(tree: Any) -> bytes:
        told = as_json(tree)
        return str(len(told)).encode() + b"\n" + told + data

    return written


DECODERS: dict[str, tuple[Decode, Callable[[Any], bytes], Any]] = {
    "JSON": (of_json, as_json, ENCODE),
    "infer": (of_inference, as_json, INFER),
    "infer, ids as bytes": (of_inference, as_inference(IDS.tobytes()), BINARY),
    "infer, texts as bytes": (of_inference, as_inference(b"\1\0\0\0a\1\0\0\0b"), TEXTS),
}
EVERY = pytest.mark.parametrize(("decode", "written", "whole"), DECODERS.values(), ids=DECODERS)
ODD = (b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'"\\ud800"', b"9" * 25, b"\xff", b"true")
QUICK = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
surrogates = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2)
trees = st.recursive(
    scalars | surrogates | st.integers(-3, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a tree."""
    here = [at] if at else []
    if not isinstance(tree, dict | list):
        return here
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    return here + [found for key in keys for found in places(tree[key], (*at, key))]


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """A tree with something else at some of its places."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        if not tree:
            break
        *path, last = draw(st.sampled_from(places(tree)))
        parent = tree
        for key in path:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(trees)
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=5))] = parent.pop(last)
        else:
            parent.append(parent[last])
    return tree


@st.composite
def torn(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of which some are others."""
    body = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        body[start : start + draw(st.integers(0, 9))] = draw(
            st.binary(max_size=9) | st.sampled_from(ODD)
        )
    return bytes(body)


async def check(replica: Replica, decode: Decode, body: bytes) -> None:
    """All that happens to a request before its work ends well, or in the client's fault."""
    try:
        request = decode(body)
        assert isinstance(request, Ask)
        await replica.gateway.encode(request, time.monotonic() + 30, Record("/"))
    except Exception as error:
        refused = refusal_of(error)
        assert refused.status in FAULTS, error
        assert_worded(problem(refused, "id"))
        assert_worded(inference_protocol.problem(refused, "id"))


def assert_worded(worded: Reply) -> None:
    """A refusal is small, and JSON, in every dialect."""
    assert worded.length <= 4096 and isinstance(json.loads(worded.pieces[0]), dict)
    assert worded.status in FAULTS


@EVERY
async def test_what_is_changed_here_is_right_as_it_was(
    replica: Replica, decode: Decode, written: Callable[[Any], bytes], whole: Any
) -> None:
    """Else the tests below would change what is refused anyway."""
    request = decode(written(whole))

    assert request.texts()
    if whole is not ENCODE:  # whose embeddings are those of a model one wide
        told = await replica.gateway.dry_run(request, time.monotonic() + 30, Record("/"))
        assert told["admitted"]


@EVERY
@pytest.mark.parametrize("of", ["fields", "bytes"])
@QUICK
@given(data=st.data())
async def test_a_request_changed_anywhere_is_read_or_refused(
    replica: Replica,
    decode: Decode,
    written: Callable[[Any], bytes],
    whole: Any,
    of: str,
    data: st.DataObject,
) -> None:
    """Other types, other names, other numbers, something twice; or cut, torn, lengthened."""
    body = written(data.draw(changed(whole))) if of == "fields" else data.draw(torn(written(whole)))
    await check(replica, decode, body)


@pytest.mark.parametrize("decode", [of_json, of_inference])
@QUICK
@given(body=st.binary(max_size=99))
async def test_any_bytes_are_read_or_refused(replica: Replica, decode: Decode, body: bytes) -> None:
    """Of whatever kind."""
    await check(replica, decode, body)


@pytest.mark.parametrize("decode", [of_json, of_inference])
@pytest.mark.parametrize("opening", [b"[", b'{"inputs":[', b'{"a":', b'{"inputs":[{"data":['])
async def test_brackets_in_brackets_are_refused(decode: Decode, opening: bytes) -> None:
    """A hundred thousand deep."""
    body = opening * 100_000

    with pytest.raises(Exception) as raised:
        decode(body)

    assert refusal_of(raised.value).code in ("invalid_json", "body_too_large")
