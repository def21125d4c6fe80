"""What each route answers, held against its file in tests/golden, and each refusal's words.

`pytest tests/test_golden.py --golden FILE` writes all it sees into FILE instead; two commits that
write equal files on one machine answer alike to the bit. `--write-golden` renews the stored files,
which hold some numbers of each array.
"""

import base64
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

if TYPE_CHECKING:
    from tests.bad_inputs import Row

STORED = Path(__file__).with_name("golden")
TOLERANCE = 2e-5  # of a number, absolute or of itself: processors differ in the last bits
SOME_NUMBERS = 16
LINE = 160  # characters of JSON that stand in one line, where it is no refusal
# what changes from run to run, from machine to machine or from release to release
CHANGING = {
    "request_id",
    "queue_ms",
    "compute_ms",
    "numerics",
    "versions",
    "version",
    "sha",
    "release_date",
}
CHANGING |= {"estimate_ms", "batch_tokens", "tokenization_workers"}
CHANGING |= {"max_batch_tokens", "retry_after_s"}

WELL, DOG = "All is well", "A dog ate the food because it was hungry"
IDS = {"token_ids": [101, 2035, 2003, 102], "token_type_ids": [0, 0, 1, 1]}
VECTORS = np.linspace(-1, 1, 2 * 384, dtype="<f4").reshape(2, 384)
EMBEDDED = {
    "embeddings": {
        "shape": [2, 384],
        "dtype": "float32",
        "data": base64.b64encode(VECTORS.tobytes()).decode(),
    }
}
SOME = {"layers": [0, 5], "heads": [5, 11]}
FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "rows": {"rows": [1, 2]},
    "top": {"k": 2},
    "top by value norm": {"form": "top", "k": 2, "weight": "value_norm"},
    "blocks": {"size": 3},
    "means": {"form": "mean", "segments": [[1, 3], [7, 8]]},
    "mean of heads": {"form": "full", "heads": "mean"},
    "stats": {},
    "dominance": {},
    "rollout": {},
    "words": {"form": "full", "level": "word", "specials": "renormalize"},
    "no specials": {"form": "full", "specials": "drop"},
}
SAFETENSORS = {"accept": "application/vnd.safetensors"}


def encoded(**more: Any) -> dict[str, Any]:
    """A case of POST /v1/encode."""
    return {"path": "/v1/encode", "json": {"inputs": [WELL], **more}}


def infer(*outputs: str, binary: bool, **parameters: Any) -> dict[str, Any]:
    """A case of the Open Inference Protocol."""
    named = [{"name": name, "parameters": {"binary_data": binary}} for name in outputs]
    text = {"name": "text", "shape": [2], "datatype": "BYTES", "data": [WELL, "Yes"]}
    asked = {"id": "7", "inputs": [text], "outputs": named, "parameters": parameters}
    return {"path": "/v2/models/all-MiniLM-L6-v2/infer", "json": asked}


CASES: dict[str, dict[str, Any]] = {
    "encode": encoded(),
    "encode everything": encoded(
        inputs=[WELL, {"text": "Is it?", "pair": "It is"}, IDS, EMBEDDED],
        pooled={"mode": "cls", "normalize": True, "dimensions": 7},
        tokens=True,
        layers=[0, -1],
        encoding="base64",
    ),
    "encode spans": encoded(inputs=[{"text": WELL, "spans": [[0, 6], [1, 11]]}, "Yes"]),
    "encode spans as safetensors": encoded(
        inputs=[{"text": WELL, "spans": [[0, 6], [1, 11]]}], pooled=False, layers=[-1]
    )
    | {"headers": SAFETENSORS},
    "encode with gates": encoded(gates=[{"layer": 5, "head": 11, "scale": 0.5}]),
    "encode with gates and a patch of inputs": encoded(
        inputs=[
            {"text": WELL, "gates": [{"layer": 2, "head": 3, "scale": -1.0}]},
            {"text": "All is lost", "patch": [{"layer": 2, "head": 3, "from": 0}]},
        ],
        gates=[{"layer": 5, "head": 11, "scale": 0.5}],
    ),
    "encode with a sweep": encoded(inputs=[WELL, IDS], sweep="heads"),
    "encode with a sweep, a dry run": encoded(sweep="heads") | {"path": "/v1/encode?dry_run=true"},
    "encode, cut": encoded(inputs=["word " * 300], truncate="left"),
    **{
        f"attention, {name}": encoded(inputs=[DOG], attention={"form": name, **SOME, **form})
        for name, form in FORMS.items()
        if "form" not in form
    },
    **{
        f"attention, {name}": encoded(inputs=[DOG], attention={**SOME, **form})
        for name, form in FORMS.items()
        if "form" in form
    },
    "a safetensors answer": encoded(attention=SOME, tokens=True) | {"headers": SAFETENSORS},
    "a dry run": encoded(attention=SOME) | {"path": "/v1/encode?dry_run=true"},
    "similarity": {"path": "/v1/similarity", "json": {"left": WELL, "right": [DOG, IDS]}},
    "similarity, words": {
        "path": "/v1/similarity",
        "json": {"left": WELL, "right": [DOG, "Yes"], "level": "word", "specials": "drop"}
        | {"form": "top", "k": 3, "encoding": "base64"},
    },
    "similarity, a sweep": {
        "path": "/v1/similarity",
        "json": {"left": WELL, "right": [DOG], "form": "score"}
        | {"sweep": {"heads": {"5": [11], "0": [1, 5]}, "scale": 2.0}},
    },
    "similarity, a safetensors answer": {
        "path": "/v1/similarity",
        "json": {"left": WELL, "right": [EMBEDDED, DOG]},
        "headers": SAFETENSORS,
    },
    "similarity, a dry run": {
        "path": "/v1/similarity?dry_run=true",
        "json": {"left": WELL, "right": [DOG]},
    },
    "attend": {
        "path": "/v1/attend",
        "json": {"query": [[1, 2, 3, 4]], "key": [[1, 0, 1, 0]] * 3, "value": [[1, 2, 3, 4]] * 3}
        | {"heads": 2},
    },
    "explain": {"path": "/v1/explain", "json": {"text": "Yes", "layer": 1}},
    "heads": {"path": "/v1/heads"},
    "info": {"path": "/info"},
    "live": {"path": "/live"},
    "ready": {"path": "/ready"},
    "health": {"path": "/health"},
    "OpenAI": {"path": "/v1/embeddings", "json": {"model": "all-MiniLM-L6-v2", "input": [WELL]}},
    "OpenAI, base64": {
        "path": "/v1/embeddings",
        "json": {"model": "all-MiniLM-L6-v2", "input": [[101, 102]], "encoding_format": "base64"},
    },
    "OpenAI's models": {"path": "/v1/models"},
    "TEI": {"path": "/embed", "json": {"inputs": [WELL, DOG]}},
    "TEI, every token": {"path": "/embed_all", "json": {"inputs": "Yes"}},
    "TEI, at the root": {"path": "/", "json": {"inputs": "Yes"}},
    "TEI, similarity": {
        "path": "/similarity",
        "json": {"inputs": {"source_sentence": WELL, "sentences": [DOG, "Yes"]}},
    },
    "TEI, tokenize": {"path": "/tokenize", "json": {"inputs": WELL}},
    "TEI, decode": {"path": "/decode", "json": {"ids": [101, 2035, 102]}},
    "TEI, no such task": {"path": "/rerank", "json": {"query": "a", "texts": ["b"]}},
    "TEI, no classes": {"path": "/predict", "json": {"inputs": [["a"], ["a", "b"]]}},
    "TEI, no sparse vectors": {"path": "/embed_sparse", "json": {"inputs": "a"}},
    "rerank, no such task": {"path": "/v1/rerank", "json": {"query": "a", "documents": ["b"]}},
    "rerank by the other path": {"path": "/v2/rerank", "json": {"query": "a", "documents": ["b"]}},
    "encode, no such task": encoded(sparse={"k": 7}),
    "maxsim, no such task": {"path": "/v1/maxsim", "json": {"query": "a", "documents": ["b"]}},
    "the protocol": {"path": "/v2"},
    "the protocol's model": {"path": "/v2/models/all-MiniLM-L6-v2"},
    "the protocol's readiness": {"path": "/v2/models/all-MiniLM-L6-v2/ready"},
    "infer": infer("pooled", binary=False),
    "infer, padded": infer("tokens", "layers", binary=True, layers="0,-1"),
    "infer, maps": infer("attention", binary=True, attention_layers="5", attention_heads="11"),
    "infer, wrong": infer("nothing", binary=False),
    "no such route": {"path": "/v1/nothing"},
    "the wrong method": {"path": "/v1/encode"},
    "the wrong method of the protocol": {"path": "/v2/models/a/infer"},
}


async def test_every_route_answers_as_before(
    client: httpx.AsyncClient, rows: "dict[str, list[Row]]", pytestconfig: pytest.Config
) -> None:
    """Encodings, maps, lessons, other APIs' answers, refusals and the names of metrics."""
    seen = {name: await answer(client, **case) for name, case in CASES.items()}
    seen |= {f"bad input, {row.name}": await bad(client, row) for row in every(rows)}
    seen["metrics"] = described((await client.get("/metrics")).text)

    hold(json.loads(json.dumps(seen)), pytestconfig)


def hold(seen: Any, config: pytest.Config) -> None:
    """Compare what was seen with what is stored, or write it where the options say so."""
    if path := config.getoption("--golden"):
        Path(path).write_text(json.dumps(seen, indent=1, sort_keys=True))
    elif config.getoption("--write-golden"):
        for route, answers in by_route(thin(seen)).items():
            each = (
                f"{json.dumps(name)}: {lines(answer)}" for name, answer in sorted(answers.items())
            )
            (STORED / f"{route}.json").write_text("{\n" + ",\n".join(each) + "\n}\n")
    else:
        stored = {file.stem: json.loads(file.read_text()) for file in STORED.iterdir()}
        assert [*differences(plain(stored), by_route(thin(seen)), "")][:9] == []


def by_route(seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same by the path of the route, and all refusals together."""
    routes: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, answer in seen.items():
        path = CASES[name]["path"] if name in CASES else name
        route = re.sub(r"\W+", "-", path.partition("?")[0].strip("/")) or "root"
        refused = isinstance(answer, dict) and answer["status"] >= 400
        routes["refusals" if refused else route][name] = answer
    return routes


def lines(value: Any) -> str:
    """JSON with in a line what is short, refusals and lists of numbers."""
    line = json.dumps(value, sort_keys=True)
    if len(line) <= LINE or not isinstance(value, dict | list) or _numbers(value):
        return line
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(lines, value)) + "]"
    if value.get("status", 200) >= 400:
        return line
    return (
        "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(value[key])}" for key in sorted(value)) + "}"
    )


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, float | int) for each in value)


def every(rows: "dict[str, list[Row]]") -> Iterator["Row"]:
    """The bad inputs that are refused."""
    return (row for group in rows.values() for row in group if row.code is not None)


async def bad(client: httpx.AsyncClient, row: "Row") -> dict[str, Any]:
    """What a bad input is answered."""
    how = {"content": row.body(), "headers": list(row.headers)}
    return shown(await client.request(row.method, row.path, **how))


async def answer(client: httpx.AsyncClient, path: str, **how: Any) -> dict[str, Any]:
    """What a case is answered."""
    return shown(await client.request("POST" if "json" in how else "GET", path, **how))


def shown(answer: httpx.Response) -> dict[str, Any]:
    """An answer without what changes, its arrays as numbers."""
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    length = answer.headers.get("inference-header-content-length")
    body: Any = answer.text if media_type.startswith("text/") else None
    if media_type.endswith("safetensors"):
        length_of_header = int.from_bytes(answer.content[:8], "little")
        header = json.loads(answer.content[8 : 8 + length_of_header])["__metadata__"]
        arrays = {name: array.tolist() for name, array in load(answer.content).items()}
        body = [plain(json.loads(header["headlight"])), arrays]
    elif length is not None:
        body = [
            plain(json.loads(answer.content[: int(length)])),
            floats(answer.content[int(length) :]),
        ]
    elif body is None and answer.content:
        body = plain(json.loads(answer.content))
    return {"status": answer.status_code, "type": media_type, "body": body}


def floats(data: bytes) -> list[float]:
    """Bytes as numbers; lengths, which are no floats, come out as tiny ones."""
    return np.nan_to_num(np.frombuffer(data, "<f4")).tolist()


def plain(told: Any) -> Any:
    """A JSON value without what changes; what is in base64 as numbers."""
    if isinstance(told, dict):
        if told.keys() == {"shape", "dtype", "data"}:
            dtype = {"float16": "<f2", "int32": "<i4"}.get(told["dtype"], "<f4")
            return np.frombuffer(base64.b64decode(told["data"]), dtype).tolist()
        if isinstance(told.get("embedding"), str):  # OpenAI's base64, which says nothing of itself
            numbers = np.frombuffer(base64.b64decode(told["embedding"]), "<f4")
            told = told | {"embedding": numbers.tolist()}
        return {name: plain(value) for name, value in told.items() if name not in CHANGING}
    if isinstance(told, str):
        told = re.sub(r"at least \d+ ms", "at least so many ms", told)  # as measured
        told = re.sub(r"^embd-.{36}$", "embd-..", told)  # of each answer its own
        return re.sub(r"(?<=POST of ).*(?=; GET /docs)", "..", told)  # every path that there is
    return [plain(value) for value in told] if isinstance(told, list) else told


def thin(told: Any) -> Any:
    """The same with SOME_NUMBERS of each long list of numbers, and its length."""
    if isinstance(told, dict):
        return {name: thin(value) for name, value in told.items()}
    if not isinstance(told, list):
        return told
    if len(told) > SOME_NUMBERS and _numbers(told):
        return [len(told), *told[:: len(told) // SOME_NUMBERS]]
    return [thin(value) for value in told]


def described(page: str) -> list[str]:
    """The names, the kinds and the help of all metrics."""
    return sorted(line for line in page.splitlines() if line.startswith("# "))


def differences(stored: Any, seen: Any, place: str) -> Iterator[str]:
    """Where two transcripts differ."""
    if isinstance(stored, dict) and isinstance(seen, dict):
        for name in stored.keys() | seen.keys():
            if name not in stored or name not in seen:
                yield f"{place}/{name} is {'gone' if name in stored else 'new'}"
            else:
                yield from differences(stored[name], seen[name], f"{place}/{name}")
    elif isinstance(stored, list) and isinstance(seen, list) and len(stored) == len(seen):
        for index, (one, other) in enumerate(zip(stored, seen, strict=True)):
            yield from differences(one, other, f"{place}/{index}")
    elif isinstance(stored, float) and isinstance(seen, float | int):
        if not math.isclose(stored, seen, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{place} is {seen}, was {stored}"
    elif stored != seen:
        yield f"{place} is {str(seen)[:80]!r}, was {str(stored)[:80]!r}"
