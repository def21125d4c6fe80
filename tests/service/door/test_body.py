"""A body's text is looked through before it is parsed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.deciding import ALL_OPTIONS
from service.door.body import MOST_KEYS, Bounds, scan
from service.questions.decide import MOST_OPTIONS, MOST_QUESTIONS
from service.tables.refusals import Refused
from service.tables.settings import Settings as Limits

DEEPEST = 7
LIMITS = Limits()
BOUNDS = Bounds.of(LIMITS)


def keys(count: int) -> bytes:
    """An object of so many keys."""
    return json.dumps(dict.fromkeys(map(str, range(count)))).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"a":1,"a":2}', "duplicate_key"),
        (b'{"a" \n:1 , "a"\t: 2}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b'{"a\\"":1,"a\\u0022":2}', "duplicate_key"),
        (b'{"a\\\\":1,"a\\\\":2}', "duplicate_key"),
        (b'{"x":[{"a":{},"b":[1],"a":2}]}', "duplicate_key"),
        (b'{"a":{"b":{}},"c":0,"a":2}', "duplicate_key"),
        (b'{"a":{"a":{"a":1}}}', None),
        (b'[{"a":1},{"a":2}]', None),
        (b'{"a":"a","b":"a"}', None),
        (b'{"a":"\\"a\\":","b":"{\\"b\\":"}', None),
        (b'{"a\\\\":1,"a":2}', None),
        (b'{"a":[' * 4 + b"{}" + b"]}" * 4, None),
        (b"[" * 10_000, None),
        (b'{"a":' * 10_000, None),
        (b'{"a":' * 9_000 + b'{"b":1,"b":2' + b"}" * 9_001, "duplicate_key"),
        (b"[" * 1_000_000, "too_many_values"),
        (b"]" * 1_000_000, "too_many_values"),
        (b'{"a":' * 100_000, "too_many_values"),
        (b"}" * 100_000, "too_many_values"),
        (b"1," * 1_000_000, "too_many_values"),
        (b'"",' * 100_000, "too_many_values"),
        (keys(513), "too_many_values"),
        (keys(512), None),
        (b"[" + b",".join([keys(64)] * 600) + b"]", None),
        (b'["' + b'\\"[{,' * 300_000 + b'"]', None),
        (b'["' + b"[" * 100 + b'"]', None),
        (b'{"inputs":[', None),
        (b"", None),
        (b"}}}{]", None),
        ('{"a":1}'.encode("utf-16"), None),
        (b'["\xc0\xaf"]', None),
        (b'{"\xff":1,"\xff":2}', "duplicate_key"),
        (b"\0", None),
        ('["\u00e9\U0001f600"]'.encode(), None),
    ],
)
def test_each_fault_has_its_code_and_nothing_else_has_one(body: bytes, code: str | None) -> None:
    """What is no JSON for other reasons is left to the parser."""
    assert coded(body) == code


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b'{"inputs":1,"inputs":2}', 'the key "inputs"'),
        (b'{"canary":1,"canary":2}', 'the key "canary"'),
        (b'{"a canary":1,"a canary":2}', "the key of 8 characters"),
    ],
    ids=["ours", "another", "no name"],
)
def test_a_key_that_stands_twice_is_named_where_it_is_a_name(body: bytes, about: str) -> None:
    """Of any other the length is said: it may be a text."""
    with pytest.raises(Refused) as refused:
        scan(body, BOUNDS)

    assert refused.value.detail == f"{about} occurs twice in one object"


def coded(body: bytes) -> str | None:
    """The code of what is wrong with a body."""
    try:
        scan(body, BOUNDS)
    except Refused as refused:
        return refused.code
    return None


TEXTS = [{"text": "a", "pair": "b"}] * LIMITS.max_sequences
IDS = [7] * (LIMITS.max_request_tokens // LIMITS.max_sequences)
GATES = [{"layer": i, "head": j, "scale": 0.5} for i in range(48) for j in range(40)]


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": TEXTS, "gates": GATES, "layers": list(range(49))},
        {"inputs": [{"token_ids": IDS, "token_type_ids": IDS}] * LIMITS.max_sequences},
        {"inputs": [{"embeddings": [[1.5] * 128] * 2048}]},
        {"inputs": TEXTS, "attention": {"heads": {str(i): list(range(40)) for i in range(48)}}},
    ],
    ids=["texts and gates", "token ids and types", "embeddings", "heads by layer"],
)
def test_the_largest_requests_are_within_the_bounds(body: dict[str, Any]) -> None:
    """What each limit lets through by itself, no bound of the body refuses."""
    scan(json.dumps(body).encode(), BOUNDS)


OPTIONS = [f"n{number}" for number in range(MOST_OPTIONS)]
CHOICES = {"type": "choice", "choices": [{"value": name} for name in OPTIONS]}
DESCRIBED = {"type": "choice", "criteria": {name: "a" for name in OPTIONS}}


@pytest.mark.parametrize(
    "body",
    [
        {"state": "a", "questions": {f"q{n}": DESCRIBED for n in range(MOST_QUESTIONS)}},
        {"input": "a", "questions": [CHOICES] * MOST_QUESTIONS},
        {"state": {f"k{n}": n for n in range(MOST_KEYS)}, "questions": {}},
    ],
    ids=["TypeSafe", "OpenAI", "a state"],
)
def test_all_questions_with_all_options_are_within_the_bounds_of_their_routes(body: Any) -> None:
    """Those of other routes stay as they are."""
    written = json.dumps(body, separators=(",", ":")).encode()
    assert len(written) < LIMITS.max_body_bytes

    scan(written, Bounds.of(LIMITS, ALL_OPTIONS))
    assert (coded(written) == "too_many_values") == (body["questions"] != {})


def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys must differ."""
    if len(dict(found)) != len(found):
        raise KeyError
    return dict(found)


def as_json_reads_it(body: bytes) -> bool:
    """Whether Python's own parser finds a key twice."""
    try:
        json.loads(body, object_pairs_hook=pairs)
    except KeyError:
        return True
    return False


KEYS = st.sampled_from(["a", "b", '"', "\\", "\\u0061", "a:", "{", "\u00e9", ""])
SPACE = st.sampled_from(["", " ", "\n\t"])


@st.composite
def texts(draw: st.DrawFn, depth: int = DEEPEST) -> str:
    """JSON with any keys, spaces and escapes."""
    kind = draw(st.sampled_from(["number", "string", "list", "object"] if depth else ["number"]))
    if kind == "number":
        return draw(st.sampled_from(["0", "-1.5e3", "true", "null"]))
    if kind == "string":
        return json.dumps(draw(KEYS), ensure_ascii=draw(st.booleans()))
    parts = draw(st.lists(texts(depth=depth - 1), max_size=3))
    if kind == "object":
        parts = [
            json.dumps(draw(KEYS), ensure_ascii=draw(st.booleans())).replace(
                "a", draw(st.sampled_from(["a", "\\u0061"]))
            )
            + draw(SPACE)
            + ":"
            + part
            for part in parts
        ]
    inside = f"{draw(SPACE)},{draw(SPACE)}".join(parts)
    return f"[{inside}]" if kind == "list" else f"{{{inside}}}"


@given(texts())
def test_a_key_stands_twice_exactly_where_pythons_parser_says_so(text: str) -> None:
    """For any JSON."""
    try:
        expected = as_json_reads_it(text.encode())
    except ValueError:  # an escape cut into nonsense by the replacement above
        return

    assert (coded(text.encode()) == "duplicate_key") == expected
