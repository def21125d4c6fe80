"""HAProxy and a replica may read `model` differently: then a request is refused, never misled.

HAProxy takes the first `model` of a body whose key has no escapes, as far as its buffer goes; a
replica takes the last, in the whole body. Whatever is sent, an answer carries the weights of the
model that its body names, as our parsers read it; also on a route that alone ignores `model`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cluster.haproxy import BUFFER_BYTES
from service.pipeline.find.names import find_name
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.laya_models import make_laya
from tests.several_models import EMBEDDER, FIRST, LARGE, RERANKER, Address, one_address

NAMES = (FIRST, EMBEDDER, RERANKER)
# Each with the key of its texts; the last knows no `model`, by which HAProxy leads all the same
ROUTES = {"/v1/encode": "inputs", "/v1/embeddings": "input", "/embed": "inputs"}
PIECES = 3  # of a body that is sent in chunks
PATIENCE_SECONDS = 60
TEXTS, A, B = '"inputs": ["All is well"]', f'"model": "{FIRST}"', f'"model": "{EMBEDDER}"'
DECIDER = "tiny-decider"
DECIDED = {  # in place of texts, of routes that decide
    "/v1/systemone": '"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}',
    "/v1/decisions": '"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]',
}
ESCAPED = f'"mod\\u0065l": "{EMBEDDER}"'


class Client:
    """One connection, kept, of a client that holds each answer against what it sent."""

    def __init__(self, address: Address) -> None:
        self._weights = address.weights()
        place = address.url.removeprefix("http://")
        self._connection = HTTPConnection(place, timeout=PATIENCE_SECONDS)
        self.close = self._connection.close

    def ask(self, path: str, body: bytes, *, chunked: bool = False) -> int:
        """POST a body, whole or in chunks; the status."""
        size = -(-len(body) // PIECES) or 1
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        sent, headers = pieces if chunked else body, {"content-type": "application/json"}
        self._connection.request("POST", path, sent, headers, encode_chunked=chunked)
        with self._connection.getresponse() as answer:
            told = json.load(answer)
        if answer.status != 200:
            assert 400 <= answer.status < 500 and "data" not in told, told
            return answer.status
        named = json.loads(body).get("model")  # the last of several, as our parsers
        unnamed = DECIDER if path in DECIDED else FIRST  # which alone has the task
        meant = unnamed if named is None else find_name(named, [*self._weights])
        assert answer.headers["x-headlight-weights"] == self._weights[meant], body[:200]
        if isinstance(told, dict):  # TEI's answers are lists
            assert told["model"] == meant
        return 200


def padded(size: int, name: str, *, last: bool) -> bytes:
    """A body of so many bytes that names a model, first or last."""
    text = "a" * min(size - len(TEXTS) - len(name) - 20, 200_000)
    members = [f'"inputs": ["{text}"]', f'"model": "{name}"']
    body = "{" + ", ".join(members if last else members[::-1]) + "}"
    return body.encode() + b" " * (size - len(body))


AROUND = (-2048, -1024, -512, -300, -200, -100, -1, 0, 1, 512)  # from the size of the buffer
SIZES = (*(BUFFER_BYTES + each for each in AROUND), 2 * BUFFER_BYTES, LARGE)
# What every reader understands alike: answered, by the model that is named
PLAIN: Mapping[str, bytes] = {
    **{f"{n} first": f'{{"model": "{n}", {TEXTS}}}'.encode() for n in (FIRST, EMBEDDER)},
    **{f"{n} last": f'{{{TEXTS}, "model": "{n}"}}'.encode() for n in (FIRST, EMBEDDER)},
    "in the middle": f'{{{TEXTS}, {B}, "encoding": "base64"}}'.encode(),
    "none": f"{{{TEXTS}}}".encode(),
    "null": f'{{{TEXTS}, "model": null}}'.encode(),
    "an escaped value": f'{{{TEXTS}, "model": "tiny\\u002dembedder"}}'.encode(),
    "case": f'{{{TEXTS}, "model": "Tiny-EMBEDDER"}}'.encode(),
    "latest": f'{{{TEXTS}, "model": "tiny-embedder:Latest"}}'.encode(),
    "an organisation": f'{{{TEXTS}, "model": "org/tiny-embedder"}}'.encode(),
    "blanks": f'\r\n\t {{ \n"inputs":["a"]\t,"model"\r:\n{B[9:]} }} \n'.encode(),
    "named in a text": f'{{"inputs": ["\\"model\\": \\"tiny-embedder\\""], {A}}}'.encode(),
    "an object in a text": f'{{"inputs": [{json.dumps("{" + B + "}")}]}}'.encode(),
    "unicode before it": f'{{"inputs": ["\U0001f600 \u00e9 \\ud83d\\ude00"], {B}}}'.encode(),
    **{f"{size} bytes": padded(size, EMBEDDER, last=True) for size in SIZES},
    **{f"{size} bytes, first": padded(size, EMBEDDER, last=False) for size in SIZES[4:9]},
}
# What readers may take for this or that: answered by the model that it names, or refused
DOUBTFUL: Mapping[str, bytes] = {
    name: f"{{{text}}}".encode()
    for name, text in {
        "two": f"{A}, {TEXTS}, {B}",
        "two, reversed": f"{B}, {TEXTS}, {A}",
        "the same twice": f"{B}, {B}, {TEXTS}",
        "null, then a name": f'"model": null, {TEXTS}, {B}',
        "a name, then null": f'{B}, {TEXTS}, "model": null',
        "an unknown one, then a name": f'"model": "nope", {TEXTS}, {B}',
        "a name, then an unknown one": f'{B}, {TEXTS}, "model": "nope"',
        "a number, then a name": f'"model": 7, {TEXTS}, {B}',
        "an object, then a name": f'"model": {{"model": "{FIRST}"}}, {TEXTS}, {B}',
        "an escaped key": f"{ESCAPED}, {TEXTS}",
        "an escaped key, then a plain one": f"{ESCAPED}, {TEXTS}, {A}",
        "a plain key, then an escaped one": f"{A}, {TEXTS}, {ESCAPED}",
        "an unknown one, then an escaped key": f'"model": "nope", {TEXTS}, {ESCAPED}',
        "a key in capitals": f'"Model": "{EMBEDDER}", {TEXTS}',
        "a key with a zero": f'"model\\u0000": "{EMBEDDER}", {TEXTS}',
        "a key with a point": f'"model.x": "{EMBEDDER}", "$.model": "{EMBEDDER}", {TEXTS}',
        "a key with a quote": f'"\\"model\\"": "{EMBEDDER}", {TEXTS}',
        "an empty key": f'"": {{{B}}}, {TEXTS}',
        "nested before": f'"options": {{{B}}}, {A}, {TEXTS}',
        "nested alone": f'"options": {{{B}}}, {TEXTS}',
        "in a list": f'"options": [{{{B}}}], {TEXTS}',
        "as an input": f'"inputs": [{{"text": "a", {B}}}]',
        "a list of names": f'"model": ["{EMBEDDER}"], {TEXTS}',
        "an object": f'"model": {{"model": "{EMBEDDER}"}}, {TEXTS}',
        "true": f'"model": true, {TEXTS}',
        "empty": f'"model": "", {TEXTS}',
        "of latest alone": f'"model": ":latest", {TEXTS}',
        "latest twice": f'"model": "{EMBEDDER}:latest:latest", {TEXTS}',
        "a blank behind": f'"model": "{EMBEDDER} ", {TEXTS}',
        "a blank before": f'"model": " {EMBEDDER}", {TEXTS}',
        "a newline": f'"model": "{EMBEDDER}\\n", {TEXTS}',
        "a zero": f'"model": "{EMBEDDER}\\u0000", {TEXTS}',
        "the value of the map": f'"model": "/{EMBEDDER}", {TEXTS}',
        "two organisations": f'"model": "a/b/{EMBEDDER}", {TEXTS}',
        "any organisation": f'"model": "*/{EMBEDDER}", {TEXTS}',
        "no organisation": f'"model": "/{EMBEDDER}", {TEXTS}',
        "full width": f'"model": "\uff54iny-embedder", {TEXTS}',
        "the sign of Kelvin": f'"model": "my-reran\u212aer", {TEXTS}',
        "a comma behind": f"{B}, {TEXTS},",
        "no colon": f'"model" "{EMBEDDER}", {TEXTS}',
        "single quotes": f"'model': '{EMBEDDER}', {TEXTS}",
        "half a pair": f'"model": "{EMBEDDER}\\ud83d", {TEXTS}',
    }.items()
} | {
    "a byte order mark": b"\xef\xbb\xbf" + f"{{{B}, {TEXTS}}}".encode(),
    "UTF-16": f"{{{B}, {TEXTS}}}".encode("utf-16"),
    "latin-1": f'{{{B}, "inputs": ["\u00e9"]}}'.encode("latin-1"),
    "two objects": f"{{{A}, {TEXTS}}} {{{B}}}".encode(),
    "a list around": f"[{{{B}, {TEXTS}}}]".encode(),
    "an object, cut off": f"{{{B}, {TEXTS}".encode(),
    "a comment": f"/* {{{B}}} */ {{{TEXTS}}}".encode(),
    "empty": b"",
    "two, the second beyond the buffer": f"{{{A}, ".encode()
    + padded(LARGE, EMBEDDER, last=True)[1:],
    "an escaped key beyond it": padded(LARGE, EMBEDDER, last=True).replace(
        b"model", b"mod\\u0065l"
    ),
    "nested, then beyond it": f'{{"x": {{{A}}}, '.encode() + padded(LARGE, EMBEDDER, last=True)[1:],
}


async def test_what_all_read_alike_is_answered_by_the_model_that_it_names(
    address: Address,
) -> None:
    """Of any size, whole and in chunks."""
    assert await asyncio.to_thread(check_bodies, address, PLAIN) == {200: 2 * len(PLAIN)}


@pytest_asyncio.fixture
async def deciding(replica: Replica, tmp_path: Path) -> AsyncIterator[Address]:
    """The first model, which decides nothing, and one that does."""
    settings = Settings(model=str(make_laya(tmp_path / DECIDER)), threads=1, device="cpu")
    decider = await Replica.start(settings, f"{DECIDER}-1")
    try:
        async with one_address({FIRST: replica, DECIDER: decider}, tmp_path) as address:
            yield address
    finally:
        await decider.close()


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/decisions"])
async def test_no_decision_is_another_models(deciding: Address, path: str) -> None:
    """Whatever may be read in two ways; the model that decides nothing answers 404."""
    asked, names = DECIDED[path].encode(), (EMBEDDER.encode(), DECIDER.encode())
    bodies = {
        name: body.replace(TEXTS.encode(), asked).replace(*names)
        for name, body in {**PLAIN, **DOUBTFUL}.items()
        if TEXTS.encode() in body
    }
    statuses = await asyncio.to_thread(check_bodies, deciding, bodies, path)

    assert statuses[200] and statuses[404]


@pytest.mark.parametrize("path", ["/v1/encode", "/embed"])
async def test_what_may_be_read_in_two_ways_is_never_answered_by_another_model(
    address: Address, path: str
) -> None:
    """It is answered by the one that our parser reads, or refused."""
    statuses = await asyncio.to_thread(check_bodies, address, DOUBTFUL, path)

    assert 0 < statuses[200] < statuses.total()


def check_bodies(
    address: Address, bodies: Mapping[str, bytes], path: str = "/v1/encode"
) -> Counter[int]:
    """Send each body in two ways; how many had which status."""
    statuses = Counter[int]()
    with closing(Client(address)) as client:
        for name, body in bodies.items():
            for chunked in (False, True):
                try:
                    statuses[client.ask(path, body, chunked=chunked)] += 1
                except AssertionError as error:
                    error.add_note(f"{name}, {chunked=}")
                    raise
    return statuses


KEYS = st.sampled_from(
    ['"model"'] * 4 + ['"mod\\u0065l"', '"\\u006dodel"', '"Model"', '"x"', '"model "', '"mode"']
)
SPELLED = st.sampled_from(
    [f'"{name}"' for name in (*NAMES, EMBEDDER.upper(), f"{RERANKER}:latest", "nope", "")]
    + ["null", "7", '"tiny\\u002dembedder"', '"\\u0074iny-embedder"', '"a\\/tiny-embedder"']
)
VALUES = st.recursive(
    SPELLED | st.text(max_size=5).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda values: f"[{','.join(values)}]")
        | st.tuples(KEYS, inner).map(lambda pair: f"{{{pair[0]}:{pair[1]}}}")
    ),
    max_leaves=3,
)
BLANKS = st.sampled_from(["", " ", "\n\t", " " * (BUFFER_BYTES - 512), " " * BUFFER_BYTES])


@st.composite
def bodies(draw: st.DrawFn, texts: str) -> bytes:
    """An object, about one of which in two is plain JSON with some `model`."""
    members = draw(st.lists(st.tuples(KEYS, SPELLED | VALUES), max_size=3))
    members.insert(draw(st.integers(0, len(members))), (f'"{texts}"', '["a"]'))
    blank, place = draw(BLANKS), draw(st.integers(0, len(members) - 1))
    written = [f"{key}:{value}" for key, value in members]
    written[place] = blank + written[place]
    mark = draw(st.sampled_from(["", "", "", "\ufeff"]))
    return f"{mark}{{{','.join(written)}}}".encode("utf-8", "surrogatepass")


async def test_no_body_is_answered_by_a_model_that_it_does_not_name(address: Address) -> None:
    """Random ones, on routes that read `model`."""
    await asyncio.to_thread(check_random_bodies, address)


def check_random_bodies(address: Address) -> None:
    """Send random bodies; each in chunks or whole."""
    with closing(Client(address)) as client:

        @settings(max_examples=settings.default.max_examples // 4)
        @given(st.data(), st.sampled_from(sorted(ROUTES)), st.booleans())
        def ask(data: st.DataObject, path: str, chunked: bool) -> None:
            client.ask(path, data.draw(bodies(ROUTES[path])), chunked=chunked)

        ask()
