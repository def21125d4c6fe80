"""What a waiting request is counted for is what it keeps in memory, whatever its body was.

`python -m pytest -s` prints the figures that the constants of service/pipeline/admission.py follow.
"""

import asyncio
import base64
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from starlette.types import ASGIApp, Message

from service.pipeline.replica import Replica
from service.shapes.answer import INFERENCE_HEADER, JSON, OCTETS
from service.tables.memory import PROCESS
from tests.replica_internals import stalled

KIB = 1024
PIECE_BYTES = 64 * KIB  # of a body that come at once
WIDTH, ROWS, TOKENS, MANY = 384, 700, 250, 60
MOST_TIMES, LEAST_TIMES = 1.2, 0.75  # of what is counted
FEW_BYTES, SENDS = 4 * KIB, 20  # a smaller body goes more than once, to stand out of the rest
SPARE_BYTES = 16 * KIB  # what others of the process make meanwhile, or keep at its first use
PATIENCE_SECONDS = 30
INFER = "/v2/models/all-MiniLM-L6-v2/infer"
WORDS = "the quick brown fox jumps over it and sleeps under a green tree "
REAL = np.random.default_rng(7).standard_normal((TOKENS, WIDTH)).astype(np.float32)
IDS = np.full((MANY, TOKENS), 29999)

Sent = tuple[str, bytes, dict[str, str]]  # path, body, headers


def native(inputs: list[Any], **more: Any) -> Sent:
    """Inputs of POST /v1/encode."""
    return as_json("/v1/encode", {"inputs": inputs, "truncate": "right", **more})


def as_json(path: str, body: dict[str, Any]) -> Sent:
    """A body of JSON."""
    return path, orjson.dumps(body), {"content-type": JSON}


def as_base64(dtype: str) -> Sent:
    """Embeddings of POST /v1/encode as base64."""
    data = base64.b64encode(REAL.astype(dtype).tobytes()).decode()
    return native([{"embeddings": {"shape": REAL.shape, "dtype": dtype, "data": data}}] * 4)


def infer(name: str, kind: str, array: NDArray[Any], *, binary: bool = False) -> Sent:
    """A tensor of the Open Inference Protocol."""
    tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": kind}
    if not binary:
        return as_json(INFER, {"inputs": [{**tensor, "data": array.reshape(-1).tolist()}]})
    data = array.tobytes()
    head = orjson.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]})
    return INFER, head + data, {"content-type": OCTETS, INFERENCE_HEADER: str(len(head))}


HALVES = np.zeros((20, TOKENS, WIDTH), np.float16)
KINDS: dict[str, Callable[[], Sent]] = {
    "a short text": lambda: native(["All is well"]),
    "many short texts": lambda: native([f"a{i}" for i in range(1000)]),
    "texts": lambda: native([WORDS * 15] * MANY),
    "long texts": lambda: native([WORDS * 1000] * 7),
    "a wide sign": lambda: native([WORDS * 1000 + "\U0001f600"] * 7),
    "shown texts": lambda: native([WORDS * 15] * MANY, attention={"form": "stats"}),
    "pairs": lambda: native([{"text": WORDS, "pair": WORDS}] * MANY),
    "small ids": lambda: native([{"token_ids": [999] * TOKENS}] * MANY),
    "ids and types": lambda: native(
        [{"token_ids": [999] * TOKENS, "token_type_ids": [1] * TOKENS}] * MANY
    ),
    "zeros": lambda: native([{"embeddings": [[0] * WIDTH] * ROWS}]),
    "numbers": lambda: native([{"embeddings": REAL.tolist()}]),
    "base64": lambda: as_base64("float32"),
    "halves in base64": lambda: as_base64("float16"),
    "infer texts": lambda: infer("text", "BYTES", np.array([WORDS] * 200)),
    "infer ids": lambda: infer("input_ids", "INT64", IDS),
    "infer ids as bytes": lambda: infer("input_ids", "INT64", IDS, binary=True),
    "infer numbers": lambda: infer("inputs_embeds", "FP32", REAL[None]),
    "infer halves as bytes": lambda: infer("inputs_embeds", "FP16", HALVES, binary=True),
    "infer floats as bytes": lambda: infer("inputs_embeds", "FP32", REAL[None], binary=True),
    "similarity": lambda: as_json(
        "/v1/similarity", {"left": WORDS, "right": [WORDS] * 200, "form": "score"}
    ),
    "embed": lambda: as_json("/embed", {"inputs": [WORDS * 15] * MANY}),
    "openai ids": lambda: as_json(
        "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": IDS.tolist()}
    ),
}


async def ask(app: ASGIApp, sent: Sent, codes: list[int]) -> None:
    """Send a request in pieces that nothing here keeps."""
    path, body, headers = sent
    given = {"host": "localhost", "content-length": str(len(body)), **headers}
    starts = iter(range(0, len(body), PIECE_BYTES))

    async def receive() -> Message:
        start = next(starts, None)
        if start is None:
            await asyncio.Event().wait()  # the client stays
        end = (start or 0) + PIECE_BYTES
        return {"type": "http.request", "body": body[start:end], "more_body": end < len(body)}

    async def send(message: Message) -> None:
        codes.append(message.get("status", 0))

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await app(scope, receive, send)


# one of each way that a body is read; the others by `make prove`
SOME = {"a short text", "many short texts", "a wide sign", "shown texts", "zeros", "base64"}
SOME |= {"file of F16", "file of I64", "infer ids", "infer halves as bytes", "openai ids"}


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """What other tests have left, a million objects, is looked through once."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in SOME else pytest.mark.prove) for kind in KINDS],
)
async def test_a_request_that_waits_keeps_what_is_counted_of_it(
    app: ASGIApp, replica: Replica, kind: str
) -> None:
    """No body, no list of numbers, no second copy; within a fifth, and not counted much higher."""
    codes: list[int] = []
    await ask(app, native(["All is well"]), codes)  # what is kept for good is made
    replica.observer.report()  # else told meanwhile, on a busy machine
    sent = KINDS[kind]()
    sends = SENDS if len(sent[1]) < FEW_BYTES else 1
    stall = ExitStack()
    stall.enter_context(stalled(replica.batcher))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tasks = [asyncio.create_task(ask(app, sent, codes)) for _ in range(sends)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while replica.batcher.waiting_requests < sends and not any(t.done() for t in tasks):
                await asyncio.sleep(0.01)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        held = dict(PROCESS.bytes)
    finally:
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        stall.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while replica.batcher.waiting_requests or replica.batcher.busy:  # it may just have begun
            await asyncio.sleep(0.01)

    counted = held["bodies"]  # arrays and answers are yet to be made
    print(
        f"{kind:22} body {len(sent[1]) / KIB:6.0f} KiB, counted {counted / KIB:6.0f}, "
        f"kept {grown / KIB:6.0f}: {grown / max(counted, 1):.2f}"
    )
    assert codes[2:] == [] and counted
    assert LEAST_TIMES * counted < grown < MOST_TIMES * counted + SPARE_BYTES
    assert not any(PROCESS.bytes.values())
