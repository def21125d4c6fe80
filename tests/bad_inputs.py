"""What can be wrong with a request, as data: how it is sent, and what it is answered.

`ROWS` are HTTP requests, sent in process (tests/service/door/test_bad_inputs.py) and over
connections (tests/ray/test_bad_inputs.py); `WIRE` are bytes that only a connection can carry, with
one expectation for each door, HAProxy's and a replica's own, since what HAProxy refuses it answers
itself. The fixtures `bad_group` and `bad_wire` are parametrized with them in conftest.py.
"""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

KIB, MIB = 1024, 1024 * 1024
WIDTH, VOCABULARY = 384, 30_522  # of the bundled model
LIST = ",".join
SEQUENCE = f'{{"token_ids":[{LIST(["7"] * 250)}]}}'

Headers = tuple[tuple[bytes, bytes], ...]


class Row(NamedTuple):
    """One request.

    Args:
        code: of the refusal; None: the answer is no refusal of ours.
        haproxy: the status where HAProxy answers itself, in its own shape.
    """

    name: str
    body: Callable[[], bytes]
    status: int
    code: str | None
    headers: Headers = ()
    method: str = "POST"
    path: str = "/v1/encode"
    haproxy: int | None = None


class Wire(NamedTuple):
    """Some bytes, and the statuses that come back, by the door."""

    name: str
    sent: Callable[[], bytes]
    haproxy: tuple[int, ...]
    replica: tuple[int, ...]


def bodies(status: int, code: str | None, *rows: tuple[str, bytes | str]) -> Iterable[Row]:
    """Rows of POST /v1/encode that differ in their body alone."""
    for name, body in rows:
        sent = body.encode() if isinstance(body, str) else body
        yield Row(name, lambda sent=sent: sent, status, code)


def made(
    status: int, code: str | None, *rows: tuple[str, Callable[[], str | bytes]]
) -> Iterable[Row]:
    """The same of bodies too large to keep."""
    for name, make in rows:

        def sent(make: Callable[[], str | bytes] = make) -> bytes:
            body = make()
            return body.encode() if isinstance(body, str) else body

        yield Row(name, sent, status, code)


def item(given: str) -> str:
    """One input."""
    return f'{{"inputs":[{given}]}}'


def ids(given: str) -> str:
    """One input of token ids."""
    return item(f'{{"token_ids":[{given}]}}')


def types(given: str) -> str:
    """Two ids of these types."""
    return item(f'{{"token_ids":[101,102],"token_type_ids":[{given}]}}')


def vectors(number: str) -> str:
    """One embedding, all of one number."""
    return item(f'{{"embeddings":[[{LIST([number] * WIDTH)}]]}}')


def binary(shape: list[Any], data: str, dtype: str = "float32") -> str:
    """One embedding in base64."""
    return item(json.dumps({"embeddings": {"shape": shape, "dtype": dtype, "data": data}}))


def with_field(given: str) -> str:
    """A good request with a field more."""
    return f'{{"inputs":["All is well"],{given}}}'


def attention(given: str) -> str:
    """A good request that asks for attention."""
    return with_field(f'"attention":{{{given}}}')


def floats(*numbers: float, dtype: str = "<f4") -> str:
    """Numbers as base64 of their bytes."""
    return base64.b64encode(np.array(numbers, dtype).tobytes()).decode()


GOOD = item('"All is well"')

SYNTAX = [
    *bodies(
        400,
        "invalid_json",
        ("no body", b""),
        ("a space", b" "),
        ("truncated", '{"inputs":["a"]'),
        ("truncated in a string", '{"inputs":["a'),
        ("trailing garbage", GOOD + " x"),
        ("two documents", GOOD + GOOD),
        ("a trailing comma", '{"inputs":["a",]}'),
        ("a comment", '{"inputs":["a"]/**/}'),
        ("single quotes", "{'inputs':['a']}"),
        ("a bare key", '{inputs:["a"]}'),
        ("NUL", b"\0"),
        ("NUL in a text", b'{"inputs":["a\0"]}'),
        ("NUL after the end", GOOD.encode() + b"\0"),
        ("a raw newline in a text", b'{"inputs":["a\n"]}'),
        ("a raw escape in a text", b'{"inputs":["a\x1b[0m"]}'),
        ("an unknown escape", r'{"inputs":["\x41"]}'),
        ("half an escape", r'{"inputs":["\u00"]}'),
        ("a leading zero", ids("007")),
        ("a plus", ids("+1")),
        ("hexadecimal", ids("0x1f")),
        ("brackets crossed", '{"inputs":["a"}]'),
        ("XML", "<inputs><text>a</text></inputs>"),
        ("a form", "inputs=a"),
    ),
    *bodies(
        422,
        "invalid_type",
        ("null", "null"),
        ("a list", "[]"),
        ("a string", '"a"'),
        ("a number", "1"),
        ("true", "true"),
    ),
    *bodies(422, "missing_field", ("no field", "{}")),
]
DEPTH = [
    *bodies(422, "invalid_type", ("depth 9", with_field(f'"layers":{"[" * 8}{"]" * 8}'))),
    *made(
        400,
        "invalid_json",
        ("10,000 lists", lambda: "[" * 10_000),
        ("10,000 closed lists", lambda: "[" * 10_000 + "]" * 10_000),
        ("10,000 objects", lambda: '{"a":' * 10_000),
        ("deep by turns", lambda: '{"inputs":[' * 1000),
    ),
    *made(
        413,
        "too_many_values",
        ("100,000 closed lists", lambda: "[" * 100_000 + "]" * 100_000),
        ("2 MiB of lists", lambda: "[" * 2 * MIB),
        ("100,000 objects", lambda: '{"a":' * 100_000),
    ),
    *bodies(200, None, ("brackets in a text", item('"' + "[{" * 50 + '"'))),
]
ENCODING = [
    *bodies(
        400,
        "invalid_json",
        ("a byte order mark", b"\xef\xbb\xbf" + GOOD.encode()),
        ("UTF-16 with a mark", GOOD.encode("utf-16")),
        ("UTF-16LE", GOOD.encode("utf-16-le")),
        ("UTF-16BE", GOOD.encode("utf-16-be")),
        ("UTF-32LE", GOOD.encode("utf-32-le")),
        ("UTF-32BE", GOOD.encode("utf-32-be")),
        ("Latin-1", item('"\u00e9"').encode("latin-1")),
        ("an encoded surrogate", b'{"inputs":["\xed\xa0\x80"]}'),
        ("an overlong slash", b'{"inputs":["\xc0\xaf"]}'),
        ("beyond Unicode", b'{"inputs":["\xf5\x80\x80\x80"]}'),
        ("a cut character", b'{"inputs":["\xe2\x82"]}'),
        ("a lone 0xff", b"\xff"),
        ("pickle", b"\x80\x04\x95."),
    ),
]
KEYS = [
    *bodies(
        400,
        "duplicate_key",
        ("inputs twice", '{"inputs":["a"],"inputs":["b"]}'),
        ("the same twice", '{"inputs":["a"],"inputs":["a"]}'),
        ("text twice", item('{"text":"a","text":"b"}')),
        ("twice by an escape", r'{"inputs":["a"],"\u0069nputs":["b"]}'),
        ("twice with spaces", '{"inputs" :["a"], "inputs"\n: ["b"]}'),
        ("twice, far apart", '{"model":null,' + GOOD[1:-1] + ',"model":null}'),
        ("an unknown key twice", with_field('"x":1,"x":2')),
        ("a layer twice", attention('"heads":{"1":[0],"1":[1]}')),
        ("a scale twice", with_field('"gates":[{"layer":0,"head":0,"scale":1,"scale":0}]')),
    ),
    *bodies(200, None, ("the same key in two inputs", item('{"text":"a"},{"text":"b"}'))),
    *bodies(200, None, ("a key's name in a text", item(r'"\"inputs\":1,\"inputs\":2"'))),
]
SIZE = [
    *made(
        413,
        "body_too_large",
        ("a byte too many", lambda: GOOD + " " * (2 * MIB - len(GOOD) + 1)),
        ("4 MiB of zeros", lambda: bytes(4 * MIB)),
    ),
    *made(200, None, ("exactly 2 MiB", lambda: GOOD + " " * (2 * MIB - len(GOOD)))),
    *made(422, "batch_too_large", ("2,049 inputs", lambda: item(LIST(['"a"'] * 2049)))),
    *made(
        413,
        "too_many_tokens",
        ("300,250 tokens", lambda: item(LIST([SEQUENCE] * 1201))),
    ),
]
FIELDS = [
    *bodies(
        422,
        "exactly_one_input",
        ("text and ids", item('{"text":"a","token_ids":[1]}')),
        ("ids and embeddings", item('{"token_ids":[1],"embeddings":[[1]]}')),
        ("neither", item("{}")),
        ("a pair alone", item('{"pair":"a"}')),
        ("a pair with ids", item('{"pair":"a","token_ids":[1]}')),
        ("types alone", item('{"token_type_ids":[0]}')),
        ("types of a text", item('{"text":"a","token_type_ids":[0]}')),
    ),
    *bodies(
        422,
        "unknown_field",
        ("a misspelt field", with_field('"pooll":true')),
        ("a field in capitals", with_field('"POOLED":true')),
        ("an unknown field of an input", item('{"text":"a","lang":"en"}')),
        ("an unknown field of attention", attention('"layer":0')),
        ("a prototype", with_field('"__proto__":{}')),
    ),
    *bodies(
        422,
        "invalid_type",
        ("inputs is a text", '{"inputs":"a"}'),
        ("inputs is an object", '{"inputs":{"text":"a"}}'),
        ("an input is a number", item("1")),
        ("an input is null", item("null")),
        ("an input is a list", item('["a"]')),
        ("a text is a number", item('{"text":1}')),
        ("pooled is a word", with_field('"pooled":"mean"')),
        ("tokens is 1", with_field('"tokens":1')),
        ("tokens is a word", with_field('"tokens":"true"')),
        ("layers is a number", with_field('"layers":0')),
        ("a layer is a float", with_field('"layers":[1.0]')),
        ("a layer is true", with_field('"layers":[true]')),
        ("model is a number", with_field('"model":1')),
        ("classify is 1", with_field('"classify":1')),
        ("label_tokens is a word", with_field('"label_tokens":"word"')),
        ("sparse is a list", with_field('"sparse":[7]')),
        ("many vectors by a word", with_field('"multi_vector":"query"')),
    ),
    *bodies(
        404,
        "task_not_found",
        ("classes of an encoder", with_field('"classify":true')),
        ("labels of an encoder", with_field('"label_tokens":true')),
        ("a vocabulary of an encoder", with_field('"sparse":{"k":7}')),
        ("many vectors of an encoder", with_field('"multi_vector":true')),
    ),
    *bodies(422, "batch_empty", ("no input", '{"inputs":[]}')),
    *bodies(
        422,
        "out_of_range",
        ("an unknown truncation", with_field('"truncate":"up"')),
        ("an unknown encoding", with_field('"encoding":"hex"')),
        ("an unknown dtype", with_field('"dtype":"float64"')),
        ("an unknown pooling", with_field('"pooled":{"mode":"sum"}')),
        ("no dimension", with_field('"pooled":{"dimensions":0}')),
        ("a precision that is not there", with_field('"pooled":{"precision":"int4"}')),
        (
            "steps of any length",
            with_field('"pooled":{"precision":"int8","normalize":false}'),
        ),
        ("an unknown score", with_field('"classify":{"activation":"tanh"}')),
        ("a label of another thing", with_field('"label_tokens":{"level":"text"}')),
        ("no weight", with_field('"sparse":{"k":0}')),
        ("an unknown side", with_field('"multi_vector":{"role":"passage"}')),
        ("a weight below 0", with_field('"sparse":{"threshold":-1}')),
        ("a gate far out", with_field('"gates":[{"layer":0,"head":0,"scale":1e9}]')),
    ),
]
IDS = [
    *bodies(
        422,
        "token_out_of_range",
        ("an id below 0", ids("-1")),
        ("an id one too high", ids(str(VOCABULARY))),
        ("an id beyond 31 bits", ids(str(2**31))),
        ("an id of 63 bits", ids(str(2**63))),
        ("an id of 64 bits, negative", ids(str(-(2**63) - 1))),
        ("a high id among good ones", ids(f"101,7,{VOCABULARY},102")),
        ("a type too high", types("0,2")),
        ("a type below 0", types("-1,0")),
    ),
    *made(422, "token_out_of_range", ("an id of 4,000 digits", lambda: ids("1" * 4000))),
    *made(422, "out_of_range", ("an id of 5,000 digits", lambda: ids("1" * 5000))),
    *made(422, "out_of_range", ("an id of 1,000,000 digits", lambda: ids("1" * 1_000_000))),
    *bodies(
        422,
        "invalid_type",
        ("an id in quotes", ids('"1"')),
        ("an id with a point", ids("1.0")),
        ("an id with an exponent", ids("1e3")),
        ("an id that is true", ids("true")),
        ("an id that is null", ids("null")),
        ("an id in a list", ids("[1]")),
    ),
    *made(422, "invalid_type", ("20,000 wrong ids", lambda: ids(LIST(['"x"'] * 20_000)))),
    *made(413, "too_many_values", ("200,000 wrong ids", lambda: ids(LIST(['"x"'] * 200_000)))),
    *made(
        413,
        "too_many_tokens",
        (
            "400,000 ids, of which 256 stay",
            lambda: ids(LIST(["7"] * 400_000))[:-1] + ',"truncate":"right"}',
        ),
    ),
    *bodies(422, "sequence_empty", ("no id", ids(""))),
    *bodies(422, "shape_mismatch", ("too few types", types("0")), ("no types", types(""))),
    *bodies(422, "sequence_too_long", ("257 ids", ids(LIST(["7"] * 257)))),
    *bodies(200, None, ("the last id", ids(str(VOCABULARY - 1)))),
]
TEXTS = [
    *bodies(422, "sequence_empty", ("an empty text", item('""'))),
    *bodies(422, "sequence_empty", ("an empty pair", item('{"text":"a","pair":""}'))),
    *bodies(
        422,
        "invalid_text",
        ("half a surrogate pair", item(r'"\ud800"')),
        ("the other half", item(r'"\udc00"')),
        ("the halves exchanged", item(r'"\udc00\ud800"')),
        ("half a pair in a key", with_field(r'"\ud800":1')),
    ),
    *made(422, "text_too_long", ("262,145 letters", lambda: item(f'"{"a" * 262_145}"'))),
    *made(422, "text_too_long", ("a million points", lambda: item(f'"{"." * 1_000_000}"'))),
    *made(
        422,
        "sequence_too_long",
        ("262,144 points", lambda: item(f'"{"." * 262_144}"')),
        ("300 words", lambda: item(f'"{"a " * 300}"')),
        ("a pair too long", lambda: item(f'{{"text":"a","pair":"{"a " * 300}"}}')),
    ),
    *made(200, None, ("one word of 262,144 letters", lambda: item(f'"{"a" * 262_144}"'))),
    *bodies(
        200,
        None,
        ("a whole surrogate pair", item(r'"\ud83d\ude00"')),
        ("an escaped NUL", item(r'"a\u0000b"')),
        ("control characters", item(r'"\u0001\u001b[0m\u007f\u0085"')),
        ("right to left and back", item('"' + "\u202e\u202d\u2066\u2069" * 50 + '"')),
        ("joiners", item('"' + "\U0001f468\u200d" * 50 + '"')),
        ("a tower of accents", item('"e' + "\u0301" * 1000 + '"')),
        ("spaces alone", item('" "')),
        ("not a character", item(r'"\uffff\ufdd0"')),
    ),
]
EMBEDDINGS = [
    *bodies(
        422,
        "non_finite",
        ("NaN", vectors("NaN")),
        ("Infinity", vectors("Infinity")),
        ("-Infinity", vectors("-Infinity")),
        ("1e999", vectors("1e999")),
        ("beyond float32", vectors("1e39")),
        ("400 digits", vectors("1" * 400)),
        ("NaN in base64", binary([1, WIDTH], floats(*[0] * (WIDTH - 1), float("nan")))),
        (
            "infinity in half precision",
            binary([1, WIDTH], floats(*[float("inf")] * WIDTH, dtype="<f2"), "float16"),
        ),
    ),
    *bodies(
        422,
        "out_of_range",
        ("above 1e4", vectors("10001")),
        ("below -1e4", vectors("-10001")),
        ("1e38", vectors("1e38")),
        ("above 1e4 in base64", binary([1, WIDTH], floats(*[2e4] * WIDTH))),
        ("another byte order", binary([1, WIDTH], floats(*[0.0] * WIDTH, dtype=">f4"), ">f4")),
    ),
    *bodies(
        422,
        "shape_mismatch",
        ("ragged", item('{"embeddings":[[1,2],[3]]}')),
        ("too narrow", item('{"embeddings":[[1,2]]}')),
        ("no column", item('{"embeddings":[[]]}')),
        ("a negative shape", binary([-1, WIDTH], "")),
        ("twice negative", binary([-1, -WIDTH], floats(*[0.0] * WIDTH))),
        ("one axis", binary([WIDTH], floats(*[0.0] * WIDTH))),
        ("three axes", binary([1, 1, WIDTH], floats(*[0.0] * WIDTH))),
        ("exchanged axes", binary([WIDTH, 1], floats(*[0.0] * WIDTH))),
    ),
    *bodies(
        422,
        "sequence_empty",
        ("no row", item('{"embeddings":[]}')),
        ("a zero in the shape", binary([0, WIDTH], "")),
    ),
    *bodies(
        422,
        "payload_length_mismatch",
        ("too few bytes", binary([1, WIDTH], "AAAA")),
        ("too many bytes", binary([1, WIDTH], floats(*[0.0] * (WIDTH + 1)))),
        ("a shape of 2^64", binary([2**32, 2**32], "")),
        ("float32 called float16", binary([1, WIDTH], floats(*[0.0] * WIDTH), "float16")),
    ),
    *bodies(
        422,
        "bad_base64",
        ("not base64", binary([1, WIDTH], "!!!!")),
        ("wrong padding", binary([1, WIDTH], "AAA")),
        ("the URL alphabet", binary([1, WIDTH], "-_-_")),
        ("base64 with a line end", binary([1, WIDTH], "AAAA\n")),
        ("base64 that is not ASCII", binary([1, WIDTH], "\u00e9")),
    ),
    *bodies(
        422,
        "invalid_type",
        ("null for a number", vectors("null")),
        ("true for a number", vectors("true")),
        ("a word for a number", vectors('"1"')),
        ("a shape of floats", binary([1.5, WIDTH], "")),
        ("embeddings is a word", item('{"embeddings":"AAAA"}')),
    ),
    *bodies(
        200,
        None,
        ("10,000", vectors("10000")),
        ("-0.0", vectors("-0.0")),
        ("denormals", vectors("1e-41")),
    ),
]
ATTENTION = [
    *bodies(
        422,
        "index_out_of_range",
        ("layer 6 of 6", attention('"layers":[6]')),
        ("layer -7 of 6", attention('"layers":[-7]')),
        ("a layer from either end", attention('"layers":[5,-1]')),
        ("head -1", attention('"heads":[-1]')),
        ("a layer named twice", attention('"layers":[0,0]')),
        ("head 12 of 12", attention('"heads":[12]')),
        ("no head", attention('"heads":[]')),
        ("a head twice", attention('"heads":[1,1]')),
        ("a head of no layer", attention('"heads":{"6":[1]}')),
        ("all heads of no layer", attention('"heads":"L6"')),
        ("a layer that is a word", attention('"heads":{"x":[0]}')),
        ("a layer with a zero in front", attention('"heads":{"01":[0]}')),
        ("a row that is none", attention('"form":"rows","rows":[99]')),
        ("a row twice", attention('"form":"rows","rows":[1,1]')),
        ("a hidden state that is none", with_field('"layers":[7]')),
        ("a hidden state twice", with_field('"layers":[6,-1]')),
        ("a gate on no head", with_field('"gates":[{"layer":0,"head":12,"scale":0}]')),
    ),
    *made(
        422,
        "index_out_of_range",
        ("200,000 layers", lambda: attention(f'"layers":[{LIST(["1"] * 200_000)}]')),
        (
            "100,000 rows",
            lambda: attention(f'"form":"rows","rows":[{LIST(map(str, range(100_000)))}]'),
        ),
    ),
    *bodies(
        422,
        "out_of_range",
        ("more dimensions than there are", with_field('"pooled":{"dimensions":385}')),
        ("an unknown form", attention('"form":"half"')),
        ("k of no form", attention('"k":3')),
        ("k is 0", attention('"form":"top","k":0')),
        ("rows of no form", attention('"rows":[1]')),
        ("a form of no rows", attention('"form":"rows"')),
        ("a layer that is no list", attention('"layers":0')),
        ("a task without adapters", with_field('"task":"retrieval.query"')),
    ),
    *bodies(422, "prompt_not_found", ("an unknown prompt", with_field('"prompt_name":"x"'))),
    *bodies(
        422,
        "words_unknown",
        ("words of ids", '{"inputs":[{"token_ids":[7]}],"attention":{"level":"word"}}'),
    ),
    *bodies(
        413,
        "attention_too_large",
        (
            "more maps than an answer holds",
            f'{{"inputs":[{SEQUENCE}],"attention":{{}}}}',
        ),
    ),
    *bodies(
        413,
        "answer_too_large",
        (
            "more encodings of tokens than an answer holds",
            f'{{"inputs":[{LIST([SEQUENCE] * 60)}],"tokens":true}}',
        ),
    ),
]
NAMES = [
    *bodies(
        404,
        "model_not_found",
        ("a path", with_field('"model":"../x"')),
        ("an encoded path", with_field('"model":"%2e%2e%2f"')),
        ("a NUL in the model", with_field(r'"model":"all-MiniLM-L6-v2\u0000"')),
        ("another alphabet", with_field('"model":"\u0430ll-MiniLM-L6-v2"')),
        ("an empty model", with_field('"model":""')),
        ("a model of 10 kB", with_field(f'"model":"{"x" * 10_000}"')),
    ),
]


def with_headers(
    status: int, code: str | None, *rows: tuple[str, list[tuple[bytes, bytes]]]
) -> Iterable[Row]:
    """Rows of a good request that differ in their headers alone."""
    for name, headers in rows:
        yield Row(name, GOOD.encode, status, code, tuple(headers))


JSON, EVIL = (b"content-type", b"application/json"), (b"origin", b"https://evil.example")
HEADERS = [
    *with_headers(
        403,
        "forbidden_origin",
        ("a foreign origin", [EVIL]),
        ("a foreign origin, plain", [(b"content-type", b"text/plain;charset=UTF-8"), EVIL]),
        ("no origin that has a name", [(b"origin", b"null")]),
        (
            "its own name by another port",
            [(b"host", b"localhost:1"), (b"origin", b"http://localhost:2")],
        ),
        ("a page of another site", [(b"sec-fetch-site", b"cross-site")]),
        ("a page of another port", [(b"sec-fetch-site", b"same-site")]),
    ),
    *with_headers(
        415,
        "unsupported_media_type",
        ("plain text", [(b"content-type", b"text/plain")]),
        ("a form's type", [(b"content-type", b"application/x-www-form-urlencoded")]),
        ("multipart", [(b"content-type", b"multipart/form-data; boundary=x")]),
        ("XML's type", [(b"content-type", b"application/xml")]),
        ("pickle's type", [(b"content-type", b"application/python-pickle")]),
        ("an empty type", [(b"content-type", b"")]),
        ("a type that is no UTF-8", [(b"content-type", b"application/json\xff")]),
        ("bytes for JSON", [(b"content-type", b"application/octet-stream")]),
    ),
    *with_headers(
        415,
        "unsupported_encoding",
        ("gzip", [(b"content-encoding", b"gzip")]),
        ("br", [(b"content-encoding", b"br")]),
        ("identity, gzip", [(b"content-encoding", b"identity, gzip")]),
        ("zstd that is plain", [(b"content-encoding", b"zstd")]),
        ("zstd twice over", [(b"content-encoding", b"zstd, zstd")]),
    ),
    *with_headers(
        406,
        "not_acceptable",
        ("HTML wanted", [(b"accept", b"text/html")]),
        ("anything but JSON wanted", [(b"accept", b"application/json;q=0")]),
        ("something that is no UTF-8 wanted", [(b"accept", b"\xff")]),
    ),
    *with_headers(
        400,
        "bad_request",
        ("two types", [(b"content-type", b"application/json")] * 2),
        ("two encodings", [(b"content-encoding", b"identity")] * 2),
        ("two spaces", [(b"x-headlight-expect", b"s1-0123456789abcdef")] * 2),
        ("two deadlines", [(b"x-headlight-deadline-ms", b"9000")] * 2),
        ("an underscore twin of the id", [(b"x_request_id", b"a")]),
        ("an underscore twin of the length", [(b"content_length", b"3")]),
        ("an underscore twin of the transfer", [(b"transfer_encoding", b"chunked")]),
        ("a half underscored twin of the model", [(b"x-headlight_model", b"all-MiniLM-L6-v2")]),
    ),
    *with_headers(
        409,
        "space_changed",
        ("another space", [(b"x-headlight-expect", b"s1-0123456789abcdef")]),
    ),
    *with_headers(
        431,
        "headers_too_large",
        ("17 KiB in one header", [(b"x-a", b"a" * 17 * KIB)]),
        ("20 KiB in 20 headers", [(b"x-%d" % at, b"a" * KIB) for at in range(20)]),
        ("60 KiB in one header", [(b"x-a", b"a" * 60 * KIB)]),
    ),
    Row(
        "150 headers",
        GOOD.encode,
        200,
        None,
        tuple((b"x-%d" % at, b"a") for at in range(150)),
        haproxy=400,
    ),
    *with_headers(
        422,
        "out_of_range",
        ("a deadline in words", [(b"x-headlight-deadline-ms", b"soon")]),
        ("a negative deadline", [(b"x-headlight-deadline-ms", b"-1")]),
        ("a deadline of 5,000 digits", [(b"x-headlight-deadline-ms", b"1" * 5000)]),
        ("a deadline of NaN", [(b"x-headlight-deadline-ms", b"nan")]),
        ("a deadline that is no UTF-8", [(b"x-headlight-deadline-ms", b"\xff")]),
    ),
    *with_headers(
        422, "deadline_unreachable", ("no time at all", [(b"x-headlight-deadline-ms", b"0")])
    ),
    *with_headers(
        200,
        None,
        ("90 headers", [(b"x-%d" % at, b"a") for at in range(80)]),
        ("JSON by its charset", [(b"content-type", b"application/json; charset=utf-8")]),
        ("Ray's timeout of 0", [(b"x-request-timeout-seconds", b"0")]),
        ("Ray's timeout of NaN", [(b"x-request-timeout-seconds", b"nan")]),
        ("Ray's timeout of a nanosecond", [(b"x-request-timeout-seconds", b"1e-9")]),
        ("Ray's timeout, negative", [(b"x-request-timeout-seconds", b"-1")]),
        ("Ray's switch of disconnects", [(b"x-request-disconnect-disabled", b"?1")]),
        ("Ray's model", [(b"serve_multiplexed_model_id", b"../x")]),
        ("Ray's model with hyphens", [(b"serve-multiplexed-model-id", b"../x")]),
        ("Ray's router", [(b"x-serve-router-replica", b"x")]),
        ("Ray's model with both signs", [(b"serve_multiplexed-model_id", b"\xff")]),
        ("Ray's timeout that is no UTF-8", [(b"x_request-timeout_seconds", b"\xff")]),
        ("Ray's session", [(b"x-session-id", b"a")]),
        ("Ray's session that is no UTF-8", [(b"x-session-id", b"\xff")]),
        ("Ray's session with underscores", [(b"x_session_id", b"\xff")]),
        ("a trace's state that is no UTF-8", [(b"tracestate", b"\xff")]),
        ("an agent that is no UTF-8", [(b"user-agent", b"Gr\xf6\xdfe")]),
        ("a key that is no UTF-8, where none is asked", [(b"authorization", b"Bearer \xff")]),
        ("an origin that is no UTF-8", [(b"origin", b"\xff")]),
        ("a refusal from outside", [(b"x-headlight-refusal", b"internal")]),
        ("a wait from outside", [(b"x-headlight-waited", b"1000")]),
        ("an id that is no UTF-8", [(b"x-request-id", b"\xff")]),
        ("an id with a space", [(b"x-request-id", b"a b")]),
        ("an id of 10 kB", [(b"x-request-id", b"a" * 10_000)]),
        ("an id that is a script", [(b"x-request-id", b"<script>")]),
        ("two ids", [(b"x-request-id", b"a"), (b"x-request-id", b"b")]),
        ("a foreign origin, whose browser asked first", [JSON, EVIL]),
        ("its own origin", [(b"host", b"localhost:1"), (b"origin", b"http://localhost:1")]),
        ("its own page behind a proxy", [EVIL, (b"sec-fetch-site", b"same-origin")]),
        ("no page", [(b"sec-fetch-site", b"none")]),
        ("a trace that is none", [(b"traceparent", b"\xff-zz-0")]),
        ("a forged address", [(b"x-forwarded-for", b"' OR 1=1")]),
    ),
]


def asked(status: int, code: str | None, method: str, path: str) -> Row:
    """A request without a body, named by its first line."""
    return Row(f"{method} {path}"[:60], bytes, status, code, (), method, path)


PATHS = [
    asked(405, "method_not_allowed", "GET", "/v1/encode"),
    asked(405, "method_not_allowed", "DELETE", "/v1/encode"),
    asked(405, "method_not_allowed", "PUT", "/v1/encode"),
    asked(405, "method_not_allowed", "PATCH", "/v1/encode"),
    asked(405, "method_not_allowed", "OPTIONS", "/v1/encode"),
    asked(405, "method_not_allowed", "TRACE", "/live"),
    asked(405, "method_not_allowed", "POST", "/info"),
    asked(405, "method_not_allowed", "POST", "/metrics"),
    asked(404, "not_found", "GET", "/v1"),
    asked(404, "not_found", "POST", "/v1/encode/x"),
    asked(404, "not_found", "POST", "/V1/ENCODE"),
    asked(404, "not_found", "GET", "/v1/encode%00"),
    asked(404, "not_found", "GET", "/%2e%2e/etc/passwd"),
    asked(404, "not_found", "GET", "/%ff"),
    asked(404, "not_found", "GET", "/.git/config"),
    asked(404, "not_found", "GET", "/live;a=b"),
    asked(404, "not_found", "GET", "/" + "a" * 2000),
    asked(431, "headers_too_large", "GET", "/v1" + "/encode" * 5000),
    asked(431, None, "GET", "/v2/models/" + "/infer" * 10_000),
    asked(431, "headers_too_large", "GET", "/live?" + "a&" * 1024),
    *(
        Row(f"{method} with a body", GOOD.encode, status, code, (), method, "/live")
        for method, status, code in (
            ("GET", 400, "bad_request"),
            ("OPTIONS", 400, "bad_request"),
            ("PUT", 405, "method_not_allowed"),
        )
    ),
    asked(422, "out_of_range", "POST", "/v1/encode?dry_run=yes")._replace(body=GOOD.encode),
    *(
        asked(422, code, "POST", f"/v1/encode?{query}")._replace(body=GOOD.encode)
        for query, code in (
            ("dryrun=true", "unknown_field"),
            ("DRY_RUN=true", "unknown_field"),
            ("dry_run=true&x", "unknown_field"),
            ("dry_run=false&dry_run=true", "out_of_range"),
        )
    ),
    asked(422, "unknown_field", "GET", "/live?verbose=1"),
]


def announced(path: str, body: str, *lengths: str, status: int, code: str | None) -> Iterable[Row]:
    """Rows whose header says how much of their body is JSON."""
    for length in lengths:
        headers = ((b"inference-header-content-length", length.encode()),)
        name = f"{path}: JSON of {len(body)} bytes announced as {length}"
        yield Row(name, body.encode, status, code, headers, path=path)


TWICE = '{"inputs":["a"],"inputs":["b"]}'
INFER = "/v2/models/all-MiniLM-L6-v2/infer"
# where the header is not read, it changes nothing; where it is, nothing else is
ANNOUNCED = [
    *announced(
        "/v1/encode",
        TWICE,
        *("0", "7", "+0", "-1", "9" * 9, "9" * 30, "x"),
        status=400,
        code="duplicate_key",
    ),
    *announced("/v1/encode", GOOD, "0", "9" * 30, status=200, code=None),
    *announced("/v1/attend", '{"a":1,"a":1}', "0", status=400, code="duplicate_key"),
    *announced(
        INFER,
        '{"id":"a","id":"b","inputs":[]}',
        *("0", "7", "31", "32", "+0", "-1", "9" * 9, "9" * 30, "x"),
        status=400,
        code=None,
    ),
]


def elsewhere(path: str, *rows: tuple[str, int, str]) -> Iterable[Row]:
    """Rows of another API, which words its refusals itself."""
    for name, status, body in rows:
        yield Row(f"{path}: {name}", body.encode, status, None, path=path)


def compared(status: int, code: str, *rows: tuple[str, str]) -> Iterable[Row]:
    """Rows of POST /v1/similarity that differ in their body alone."""
    for name, fields in rows:
        body = f"{{{fields}}}"
        yield Row(f"a similarity: {name}", body.encode, status, code, path="/v1/similarity")


def scored(status: int, code: str, *rows: tuple[str, str]) -> Iterable[Row]:
    """Rows of POST /v1/maxsim that differ in their body alone."""
    for name, fields in rows:
        yield Row(f"a score: {name}", f"{{{fields}}}".encode, status, code, path="/v1/maxsim")


def labelled(status: int, code: str, *rows: tuple[str, str]) -> Iterable[Row]:
    """Rows of POST /v1/classify that differ in their body alone."""
    for name, body in rows:
        yield Row(f"labels: {name}", body.encode, status, code, path="/v1/classify")


def highlighted(status: int, code: str, *rows: tuple[str, dict[str, Any]]) -> Iterable[Row]:
    """Rows of POST /v1/highlight that differ in their body alone."""
    for name, fields in rows:
        body = json.dumps({"query": "a", "documents": ["b"], **fields})
        yield Row(f"evidence: {name}", body.encode, status, code, path="/v1/highlight")


def labels(**body: Any) -> str:
    """A request for labels."""
    return json.dumps({"inputs": ["a"], "labels": ["b"], **body})


def embed_v2(**body: Any) -> str:
    """A request of Cohere's."""
    own = {"model": "all-MiniLM-L6-v2", "input_type": "clustering", "texts": ["a"]}
    return json.dumps({**own, **body})


def spans(given: str) -> str:
    """A text of 11 characters with spans."""
    return item(f'{{"text":"All is well","spans":{given}}}')


HEAD = {"layer": 0, "head": 0, "from": 1}
MANY = [str(number) for number in range(1000)]
LABELS = [
    *highlighted(
        422,
        "out_of_range",
        ("another unit", {"unit": "page"}),
        ("another method", {"method": "shares"}),
        ("nothing shown", {"top": 0}),
        ("too much shown", {"top": 1025}),
        ("more than all kept", {"prune": 1.01}),
        ("less than nothing kept", {"prune": -0.1}),
    ),
    *highlighted(
        422,
        "invalid_type",
        ("a query of ids", {"query": [101, 102]}),
        ("documents in one string", {"documents": "b"}),
        ("a document of another kind", {"documents": [7]}),
        ("a control by word", {"control": "no"}),
    ),
    *highlighted(
        422,
        "unknown_field",
        ("a field of others", {"threshold": 0.5}),
        ("a query with a pair", {"query": {"text": "a", "pair": "b"}}),
        ("a query in spans", {"query": {"text": "a", "spans": [[0, 1]]}}),
        ("a query with a patch", {"query": {"text": "a", "patch": [HEAD]}}),
    ),
    *highlighted(
        422,
        "exactly_one_input",
        ("a query of two kinds", {"query": {"text": "a", "token_ids": [101]}}),
    ),
    *highlighted(422, "token_out_of_range", ("no such id", {"query": {"token_ids": [-1]}})),
    *highlighted(
        422,
        "index_out_of_range",
        ("no such head", {"gates": [{"layer": 99, "head": 0, "scale": 0}]}),
    ),
    *highlighted(422, "batch_empty", ("no document", {"documents": []})),
    *highlighted(422, "batch_too_large", ("too many documents", {"documents": ["b"] * 65})),
    *highlighted(
        422, "sequence_empty", ("an empty query", {"query": ""}), ("no text", {"documents": [""]})
    ),
    *highlighted(422, "prompt_not_found", ("no such prompt", {"prompt_name": "query"})),
    *labelled(404, "task_not_found", ("a task of others", labels())),
    *labelled(422, "batch_empty", ("no text", labels(inputs=[]))),
    *labelled(
        422,
        "out_of_range",
        ("no label", labels(labels=[])),
        ("an empty label", labels(labels=["b", ""])),
        ("a label twice", labels(labels=["b", "b"])),
        ("no place for a label", labels(hypothesis_template="it is")),
        ("two places for a label", labels(hypothesis_template="{} {}")),
        ("a place with a format", labels(hypothesis_template="{} {0.real}")),
    ),
    *labelled(
        422,
        "invalid_type",
        ("labels in one string", labels(labels="b, c")),
        ("a label of another kind", labels(labels=["b", 7])),
        ("a text of another kind", labels(inputs=[{"text": "a"}])),
        ("several by word", labels(multi_label="yes")),
    ),
    *labelled(422, "missing_field", ("no labels", '{"inputs":["a"]}')),
    *labelled(422, "unknown_field", ("labels of others", labels(candidate_labels=["b"]))),
    *labelled(422, "batch_too_large", ("too many pairs", labels(inputs=MANY, labels=MANY))),
    *labelled(
        422,
        "text_too_long",
        ("a text too often", labels(inputs=["a" * 20_000], labels=MANY)),
        (
            "a template too often",
            labels(labels=MANY, hypothesis_template="{}" + "a" * 20_000),
        ),
    ),
]
SPANS = [
    *bodies(
        422,
        "invalid_type",
        ("spans by name", spans('"sentences"')),
        ("one span alone", spans("[0,3]")),
        ("a span of fractions", spans("[[0.5,3]]")),
        ("a span of words", spans('["All"]')),
    ),
    *bodies(
        422,
        "out_of_range",
        ("a span of one number", spans("[[3]]")),
        ("a span of three numbers", spans("[[0,3,7]]")),
        ("a span backwards", spans("[[3,0]]")),
        ("a span before the text", spans("[[-1,3]]")),
        ("a span behind the text", spans("[[4,12]]")),
        ("a span of 19 digits", spans(f"[[0,{'9' * 18}]]")),
        ("spans in another order", spans("[[4,6],[0,3]]")),
        ("2,049 spans", spans(f"[{LIST(['[0,3]'] * 2049)}]")),
    ),
    *bodies(
        422,
        "span_empty",
        ("a span of nothing", spans("[[3,3]]")),
        ("a span of a space", spans("[[3,4]]")),
    ),
    *bodies(
        422,
        "exactly_one_input",
        ("spans of ids", item('{"token_ids":[7],"spans":[[0,1]]}')),
        ("spans of a pair", item('{"text":"a","pair":"b","spans":[[0,1]]}')),
    ),
]


def edited(*items: str) -> str:
    """Inputs "a", and "b" with each of these fields."""
    each = (f'{{"text":"b",{fields}}}' for fields in items)
    return f'{{"inputs":["a",{LIST(each)}]}}'


def swept(how: str, more: str = "") -> str:
    """A sweep of one text."""
    return f'{{"inputs":["a"],"sweep":{how}{more}}}'


TEXT = '"a"'
PATCHED = '{"layer":5,"head":11,"from":0}'
PATCH, GATE = '"layer":5,"head":11', '{"layer":5,"head":11,"scale":0}'
INTERVENTIONS = [
    *bodies(
        422,
        "invalid_type",
        ("a gate of an input that is text", edited(f'"gates":{GATE}')),
        ("a gate of a whole layer", with_field('"gates":[{"head":"L0","scale":0}]')),
        ("a patch that is no list", edited(f'"patch":{{{PATCH},"from":0}}')),
        ("a patch from a name", edited(f'"patch":[{{{PATCH},"from":"a"}}]')),
        ("a patch from a fraction", edited(f'"patch":[{{{PATCH},"from":0.5}}]')),
        ("a sweep with a scale in words", swept('{"scale":"0"}')),
        ("a sweep with a scale of null", swept('{"scale":null}')),
        ("a sweep that is a list", swept('{"heads":[["L0H5"]]}')),
    ),
    *bodies(
        422,
        "out_of_range",
        ("a sweep of all", swept('"all"')),
        ("a sweep of a head by number and name", swept('{"heads":["L0",3]}')),
        ("a sweep that is true", swept("true")),
        ("a sweep far out", swept('{"scale":-100.5}')),
        ("a sweep by 1e999", swept('{"scale":1e999}')),
        ("a gate of no layer", edited('"gates":[{"head":11,"scale":0}]')),
        ("a gate of two layers", edited('"gates":[{"layer":0,"head":"L5H11","scale":0}]')),
        ("a sweep of nothing", swept('"heads"', ',"pooled":false')),
    ),
    *bodies(400, "invalid_json", ("a sweep by NaN", swept('{"scale":nan}'))),
    *bodies(
        422,
        "unknown_field",
        ("a patch of a source", edited(f'"patch":[{{{PATCH},"from":0,"source":0}}]')),
        ("a patch of a request", f'{{"inputs":["a"],"patch":[{{{PATCH},"from":0}}]}}'),
        ("a sweep of an input", edited('"sweep":"heads"')),
        ("a sweep with rows", swept('{"rows":[1]}')),
    ),
    *bodies(422, "missing_field", ("a patch from nowhere", edited(f'"patch":[{{{PATCH}}}]'))),
    *bodies(
        422,
        "index_out_of_range",
        ("a gate twice on an input", edited(f'"gates":[{GATE},{{"head":"L5H11","scale":1}}]')),
        ("a gate of an input on no head", edited('"gates":[{"layer":5,"head":12,"scale":0}]')),
        ("a patch twice", edited(f'"patch":[{PATCHED},{PATCHED}]')),
        ("a patch on no layer", edited('"patch":[{"layer":-1,"head":0,"from":0}]')),
        ("a patch from itself", edited(f'"patch":[{{{PATCH},"from":1}}]')),
        ("a patch from behind the last", edited(f'"patch":[{{{PATCH},"from":2}}]')),
        ("a patch from before the first", edited(f'"patch":[{{{PATCH},"from":-1}}]')),
        ("a head gated and patched", edited(f'"gates":[{GATE}],"patch":[{{{PATCH},"from":0}}]')),
        (
            "a patch of what is patched",
            edited(f'"patch":[{{{PATCH},"from":0}}]', f'"patch":[{{{PATCH},"from":1}}]'),
        ),
        ("a sweep of no head", swept('{"heads":[12]}')),
        ("a sweep of a head twice", swept('{"heads":[3,3]}')),
        ("a sweep of no layer", swept('{"layers":[]}')),
    ),
    *bodies(
        422,
        "patch_mismatch",
        ("a patch of another length", edited(f'"patch":[{{{PATCH},"from":0}}],"pair":"c"')),
    ),
    *made(
        422,
        "batch_too_large",
        ("57 sweeps", lambda: f'{{"inputs":[{LIST([TEXT] * 57)}],"sweep":"heads"}}'),
    ),
    *made(
        413,
        "too_many_tokens",
        (
            "sweeps of 28 long texts",
            lambda: f'{{"inputs":[{LIST([SEQUENCE] * 28)}],"sweep":"heads"}}',
        ),
    ),
    *made(
        413,
        "too_many_values",
        (
            "20,000 patches",
            lambda: edited(f'"patch":[{LIST([PATCHED] * 20_000)}]'),
        ),
    ),
    *made(
        422,
        "index_out_of_range",
        ("10,000 patches", lambda: edited(f'"patch":[{LIST([PATCHED] * 10_000)}]')),
    ),
]
PATCHED_TEXT = '{"text":"a","patch":[{"layer":0,"head":0,"from":0}]}'
RIGHT, RIGHTS = '"right":["b"]', ['"b"'] * 257
SIMILARITIES = [
    *compared(422, "missing_field", ("no left", RIGHT), ("no right", '"left":"a"')),
    *compared(
        422,
        "invalid_type",
        ("a list on the left", f'"left":["a"],{RIGHT}'),
        ("a text on the right", '"left":"a","right":"b"'),
        ("a number on the right", '"left":"a","right":[7]'),
        ("a prompt that is a list", f'"left":"a",{RIGHT},"prompt_name":["query"]'),
    ),
    *compared(422, "batch_empty", ("nothing on the right", '"left":"a","right":[]')),
    *compared(422, "batch_too_large", ("257 on the right", f'"left":"a","right":[{LIST(RIGHTS)}]')),
    *compared(
        422,
        "unknown_field",
        ("a pair on the left", f'"left":{{"text":"a","pair":"b"}},{RIGHT}'),
        ("spans on the left", f'"left":{{"text":"a","spans":[[0,1]]}},{RIGHT}'),
        ("a pair on the right", '"left":"a","right":[{"text":"a","pair":"b"}]'),
        ("inputs", f'"left":"a",{RIGHT},"inputs":["a"]'),
        ("a prompt of another side", f'"left":"a",{RIGHT},"prompt_name":{{"top":"query"}}'),
        ("a task of another side", f'"left":"a",{RIGHT},"task":{{"top":"query"}}'),
    ),
    *compared(
        422,
        "out_of_range",
        ("a form of attention's", f'"left":"a",{RIGHT},"form":"stats"'),
        ("no pairs", f'"left":"a",{RIGHT},"form":"top","k":0'),
        ("65,537 pairs", f'"left":"a",{RIGHT},"form":"top","k":65537'),
        ("k without top", f'"left":"a",{RIGHT},"k":2'),
        ("words of a score", f'"left":"a",{RIGHT},"form":"score","level":"word"'),
        ("specials renormalized", f'"left":"a",{RIGHT},"specials":"renormalize"'),
        ("a task without adapters", f'"left":"a",{RIGHT},"task":{{"left":"query"}}'),
        ("inputs of a score", f'"left":"a",{RIGHT},"by":"input","form":"score"'),
        ("heads of shares by input", f'"left":"a",{RIGHT},"by":"input","sweep":"heads"'),
        ("heads of words left out", f'"left":"a",{RIGHT},"form":"occlusion","sweep":"heads"'),
        ("a patch and words left out", f'"left":"a","right":[{PATCHED_TEXT}],"form":"occlusion"'),
    ),
    *compared(422, "sequence_empty", ("an empty text", '"left":"a","right":["b",""]')),
    *compared(422, "sequence_too_long", ("a long text", f'"left":"{"a " * 300}",{RIGHT}')),
    *compared(
        422, "words_unknown", ("words of ids", f'"left":{{"token_ids":[7]}},{RIGHT},"level":"word"')
    ),
    *compared(
        422,
        "nothing_left",
        ("special tokens alone", f'"left":{{"token_ids":[101]}},{RIGHT},"specials":"drop"'),
        ("its one token left out", f'"left":{{"token_ids":[7]}},{RIGHT},"form":"occlusion"'),
    ),
    *compared(422, "prompt_not_found", ("a prompt", f'"left":"a",{RIGHT},"prompt_name":"x"')),
    *compared(
        422,
        "index_out_of_range",
        ("a gate", f'"left":"a",{RIGHT},"gates":[{{"layer":9,"head":0,"scale":0}}]'),
    ),
    *compared(404, "model_not_found", ("another model", f'"left":"a",{RIGHT},"model":"gpt"')),
]
SCORES = [
    *scored(422, "missing_field", ("no query", '"documents":["b"]'), ("no text", '"query":"a"')),
    *scored(
        422,
        "invalid_type",
        ("a list as the query", '"query":["a"],"documents":["b"]'),
        ("a text as documents", '"query":"a","documents":"b"'),
        ("a number as a document", '"query":"a","documents":["b",7]'),
    ),
    *scored(422, "batch_empty", ("no document", '"query":"a","documents":[]')),
    *scored(
        422,
        "unknown_field",
        ("a pair as a document", '"query":"a","documents":[{"text":"a","pair":"b"}]'),
        ("a form", '"query":"a","documents":["b"],"form":"top"'),
        ("a prompt of no side", '"query":"a","documents":["b"],"prompt_name":{"left":"x"}'),
    ),
    *scored(404, "task_not_found", ("of an encoder", '"query":"a","documents":["b"]')),
    *scored(404, "model_not_found", ("another", '"query":"a","documents":["b"],"model":"gpt"')),
]

DIALECTS = [
    *elsewhere(
        "/v1/embeddings",
        ("an id past the table", 400, '{"model":"all-MiniLM-L6-v2","input":[30522]}'),
        ("a picture of Jina's", 400, '{"model":"all-MiniLM-L6-v2","input":[{"image":"a"}]}'),
        ("an object without a text", 400, '{"model":"all-MiniLM-L6-v2","input":{}}'),
        ("ids and an object", 400, '{"model":"all-MiniLM-L6-v2","input":[101,{"text":"a"}]}'),
    ),
    *elsewhere(
        "/rerank",
        ("a task of others", 404, '{"query":"a","texts":["b"]}'),
        ("no text", 400, '{"query":"a","texts":[]}'),
        ("a text of numbers", 422, '{"query":"a","texts":[1]}'),
        ("no rank", 422, '{"query":"a","texts":["b"],"top_n":0}'),
        ("documents of others", 404, '{"query":"a","documents":["b"]}'),
        ("documents and texts", 422, '{"query":"a","documents":["b"],"texts":["b"]}'),
    ),
    *elsewhere(
        "/predict",
        ("a task of others", 404, '{"inputs":[["a","b"]]}'),
        ("three texts of a pair", 422, '{"inputs":["a","b","c"]}'),
        ("a number of classes below 1", 422, '{"inputs":"a","parameters":{"top_k":0}}'),
    ),
    *elsewhere(
        "/embed_sparse",
        ("a task of others", 404, '{"inputs":"a"}'),
        ("a number as a text", 422, '{"inputs":[7,"a"],"normalize":true}'),
    ),
    *elsewhere(
        "/v1/rerank",
        ("a task of others", 404, '{"query":"a","documents":["b"]}'),
        ("no query", 422, '{"documents":["b"]}'),
        ("a document of another kind", 422, '{"query":"a","documents":[{"title":"b"}]}'),
        ("nothing of a document", 422, '{"query":"a","documents":["b"],"max_tokens_per_doc":0}'),
    ),
    *elsewhere(
        "/v2/rerank",
        ("a task of others", 404, '{"query":"a","documents":["b"]}'),
        (
            "a query too often",
            422,
            json.dumps({"query": "a" * 2049, "documents": ["b"] * 1024}),
        ),
    ),
    *elsewhere(
        "/v2/embed",
        ("another model", 404, embed_v2(model="embed-v4.0")),
        ("no text", 422, embed_v2(texts=[])),
        ("an empty text of few tokens", 422, embed_v2(texts=[""], max_tokens=3)),
        ("a picture", 422, embed_v2(input_type="image")),
        ("pictures", 422, embed_v2(images=["data:"])),
        ("no kind", 422, embed_v2(embedding_types=[])),
        ("a kind a thousand times", 422, embed_v2(embedding_types=["float"] * 1000)),
        ("the first tokens of an end", 422, embed_v2(max_tokens=3, truncate="START")),
        ("a priority beyond all numbers", 422, embed_v2(priority="9" * 30)),
    ),
    *elsewhere(
        "/v2/models/all-MiniLM-L6-v2/infer",
        (
            "a shape beyond all numbers",
            400,
            '{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[9223372036854775807,9],'
            '"data":[1]}]}',
        ),
    ),
]
ROWS: dict[str, list[Row]] = {
    "syntax": SYNTAX,
    "depth": DEPTH,
    "encoding": ENCODING,
    "keys": KEYS,
    "size": SIZE,
    "fields": FIELDS,
    "ids": IDS,
    "texts": TEXTS,
    "embeddings": EMBEDDINGS,
    "attention": ATTENTION,
    "names": NAMES,
    "headers": HEADERS,
    "similarities": SIMILARITIES,
    "scores": SCORES,
    "labels": LABELS,
    "spans": SPANS,
    "interventions": INTERVENTIONS,
    "paths": PATHS,
    "dialects": DIALECTS,
    "announced": ANNOUNCED,
}

JSON_BODY = GOOD.encode()
WHOLE = b"%x\r\n%s\r\n0\r\n\r\n" % (len(JSON_BODY), JSON_BODY)
REFUSED, ANSWERED = (400,), (200,)


def head(*lines: bytes, body: bytes = JSON_BODY, length: bool = True) -> bytes:
    """A request with these header lines too."""
    named = [b"POST /v1/encode HTTP/1.1", b"Host: localhost", *lines]
    named += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*named, b"", body])


def chunked(body: bytes, *lines: bytes) -> bytes:
    """A request whose body comes in chunks."""
    return head(b"Transfer-Encoding: chunked", *lines, body=body, length=False)


def both(name: str, sent: bytes, statuses: tuple[int, ...]) -> Wire:
    """Bytes that both doors take alike."""
    return Wire(name, lambda: sent, statuses, statuses)


def apart(name: str, sent: bytes, haproxy: tuple[int, ...], replica: tuple[int, ...]) -> Wire:
    """Bytes that the doors take differently."""
    return Wire(name, lambda: sent, haproxy, replica)


SWITCH = (b"Connection: upgrade", b"Upgrade: foo")
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n"
ELSEWHERE = (421,)  # the services listen on this machine alone
WIRE = [
    both("HTTP/1.0", b"GET /live HTTP/1.0\r\nHost: localhost\r\n\r\n", ANSWERED),
    both("HTTP/1.0 with a body", head().replace(b"HTTP/1.1", b"HTTP/1.0"), ANSWERED),
    apart("HTTP/0.9", b"GET /info\r\n\r\n", REFUSED, ELSEWHERE),
    apart("HTTP/1.2", LIVE.replace(b"1.1", b"1.2") + b"\r\n", ANSWERED, REFUSED),
    both("no host", b"GET /info HTTP/1.1\r\n\r\n", ELSEWHERE),
    both("another host", b"GET /info HTTP/1.1\r\nHost: evil.example\r\n\r\n", ELSEWHERE),
    both("two hosts", LIVE + b"Host: b\r\n\r\n", REFUSED),
    apart("a folded header", head(b"X-A: b\r\n c"), ANSWERED, REFUSED),
    apart("bare line feeds", head().replace(b"\r\n", b"\n"), ANSWERED, REFUSED),
    both("length and chunks, body plain", head(b"Transfer-Encoding: chunked"), REFUSED),
    apart(
        "length and chunks, body chunked",
        head(b"Transfer-Encoding: chunked", body=WHOLE),
        ANSWERED,  # and the connection is closed: the length is not used
        REFUSED,
    ),
    apart("one length twice", head(b"Content-Length: %d" % len(JSON_BODY)), ANSWERED, REFUSED),
    both("two lengths", head(b"Content-Length: 3"), REFUSED),
    both("a negative length", head(b"Content-Length: -1", length=False), REFUSED),
    both("a length with a plus", head(b"Content-Length: +16", length=False), REFUSED),
    both("a length of 20 digits", head(b"Content-Length: " + b"9" * 20, length=False), REFUSED),
    both(
        "a length of 5,000 digits", head(b"Content-Length: " + b"1" * 5000, length=False), REFUSED
    ),
    both(
        "chunked twice",
        head(b"Transfer-Encoding: chunked, chunked", body=WHOLE, length=False),
        REFUSED,
    ),
    apart(
        "gzip and chunked",
        head(b"Transfer-Encoding: gzip, chunked", body=WHOLE, length=False),
        (422,),
        REFUSED,
    ),
    both("identity as a transfer", head(b"Transfer-Encoding: identity"), REFUSED),
    both("chunks", chunked(WHOLE), ANSWERED),
    both("a chunk extension", chunked(WHOLE.replace(b"\r\n", b";a=b\r\n", 1)), ANSWERED),
    both("a trailer", chunked(WHOLE[:-2] + b"X-A: b\r\n\r\n"), ANSWERED),
    both(
        "chunks of a byte",
        chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in JSON_BODY) + b"0\r\n\r\n"),
        ANSWERED,
    ),
    Wire(
        "100,000 chunks of a byte",
        lambda: chunked(
            b"".join(b"1\r\n%c\r\n" % byte for byte in JSON_BODY)
            + b"1\r\n \r\n" * 100_000
            + b"0\r\n\r\n"
        ),
        ANSWERED,
        ANSWERED,
    ),
    both("a chunk's size in letters", chunked(b"zz\r\n%s\r\n0\r\n\r\n" % JSON_BODY), REFUSED),
    both("a chunk's size below 0", chunked(b"-1\r\n%s\r\n0\r\n\r\n" % JSON_BODY), REFUSED),
    both("a chunk's size of 68 bits", chunked(b"f" * 17 + b"\r\n%s" % JSON_BODY), REFUSED),
    both("a chunk without its end", chunked(WHOLE.replace(b"\r\n0", b"X0")), REFUSED),
    both("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), REFUSED),
    both("a TLS hello", bytes.fromhex("16030100c5010000c10303") + b"\x11" * 190, REFUSED),
    both("noise", b"\xff\xfe\x00noise\r\n\r\n", REFUSED),
    both("NUL in a header", head(b"X-A: a\0b"), REFUSED),
    both("ESC in a header", head(b"X-A: a\x1bb"), REFUSED),
    both("a space before the colon", head(b"X-A : b"), REFUSED),
    both("a header without a name", head(b": b"), REFUSED),
    both(
        "CONNECT", b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n", (404,)
    )._replace(replica=REFUSED),
    both("a method that is none", LIVE.replace(b"GET", b"FOO") + b"\r\n", REFUSED),
    both("a method in small letters", LIVE.replace(b"GET", b"get") + b"\r\n", REFUSED),
    both("two slashes", LIVE.replace(b"/live", b"//") + b"\r\n", ANSWERED),
    both("dots", LIVE.replace(b"/live", b"/../live") + b"\r\n", (404,)),
    both("a whole address", LIVE.replace(b"/live", b"http://localhost/live") + b"\r\n", ANSWERED),
    apart(
        "the address of another",
        LIVE.replace(b"/live", b"http://x/live") + b"\r\n",
        REFUSED,
        ANSWERED,
    ),
    both("OPTIONS *", LIVE.replace(b"GET /live", b"OPTIONS *") + b"\r\n", (404,)),
    both("a path that is no ASCII", LIVE.replace(b"/live", b"/\xff") + b"\r\n", REFUSED),
    both("a path of 70 kB", LIVE.replace(b"/live", b"/" + b"a" * 70_000) + b"\r\n", REFUSED),
    both("a header of 1 MB", head(b"X-A: " + b"a" * 1_000_000), REFUSED),
    both("three at once", head() + head() + LIVE + b"\r\n", (200, 200, 200)),
    both("a good one behind a bad one", head(body=b"{") + head(), (400, 200)),
    both("100-continue", head(b"Expect: 100-continue"), (100, 200)),
    both("another expectation", head(b"Expect: 200-ok"), ANSWERED),
    apart(
        "a websocket",
        LIVE
        + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        ANSWERED,  # as if it had not asked for another protocol
        ANSWERED,  # and the connection is closed
    ),
    apart("another protocol, and a body", head(*SWITCH), ANSWERED, REFUSED),
    apart(
        "another protocol, then a good one",
        head(*SWITCH) + head(),
        (200, 200),
        REFUSED,  # and the connection is closed
    ),
    both("a header's name that is no UTF-8", LIVE + b"X-\xff: a\r\n\r\n", REFUSED),
    both(
        "an upgrade to HTTP/2",
        LIVE
        + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        ANSWERED,
    ),
    apart(
        "a body with a GET, then another",
        LIVE + b"Content-Length: 5\r\n\r\nhello" + LIVE + b"\r\n",
        (400, 200),
        REFUSED,  # and the connection is closed
    ),
    both(
        "a request in the body of a GET",
        LIVE + b"Content-Length: %d\r\n\r\n%s\r\n" % (len(LIVE) + 2, LIVE),
        REFUSED,
    ),
    both("empty lines first", b"\r\n\r\n" + head(), ANSWERED),
    both(
        "100-continue, then silence",
        head(b"Expect: 100-continue", b"Content-Length: 9", body=b"", length=False),
        (100, 408),
    ),
    both("half a body, then silence", head(b"Content-Length: 99", body=b"{", length=False), (408,)),
]
