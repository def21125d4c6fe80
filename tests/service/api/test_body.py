"""A body's text is looked through before it is parsed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.body import MOST_DEPTH, check

DEEPEST = MOST_DEPTH - 1


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
        (b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, None),
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "json_too_deep"),
        (b'{"a":[' * 4 + b"{}" + b"]}" * 4, "json_too_deep"),
        (b"[" * 100_000, "json_too_deep"),
        (b'{"a":' * 100_000, "json_too_deep"),
        (b'["' + b"[" * 100 + b'"]', None),
        (b'{"inputs":[', None),
        (b"", None),
        (b"}}}{]", None),
        (b"\xef\xbb\xbf{}", "invalid_encoding"),
        ('{"a":1}'.encode("utf-16"), "invalid_encoding"),
        ('{"a":1}'.encode("utf-16-le"), "invalid_encoding"),
        ('{"a":1}'.encode("utf-16-be"), "invalid_encoding"),
        ('{"a":1}'.encode("utf-32-be"), "invalid_encoding"),
        ('["\u00e9"]'.encode("latin-1"), "invalid_encoding"),
        (b'["\xed\xa0\x80"]', "invalid_encoding"),
        (b'["\xc0\xaf"]', "invalid_encoding"),
        (b"\0", None),
        ('["\u00e9\U0001f600"]'.encode(), None),
    ],
)
def test_each_fault_has_its_code_and_nothing_else_has_one(body: bytes, code: str | None) -> None:
    """What is no JSON for other reasons is left to the parser."""
    assert check(body) == code


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


@settings(max_examples=300)
@given(texts())
def test_a_key_stands_twice_exactly_where_pythons_parser_says_so(text: str) -> None:
    """For any JSON that is not too deep."""
    try:
        expected = as_json_reads_it(text.encode())
    except ValueError:  # an escape cut into nonsense by the replacement above
        return

    assert (check(text.encode()) == "duplicate_key") == expected
