"""A file of texts, checked before anything is sent."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from service.commands.bulk import lines
from service.commands.bulk.lines import BadLine, Changed, check

INFO = {"limits": {"max_text_characters": 20}}
GOOD = b"""\xef\xbb\xbf"All is well"
{"text": "a dog"}\r
{"text": "a dog", "pair": "a cat", "id": 7}
 {"id": "x", "text": "caf\\u00e9"}
"no end" """


def file(folder: Path, content: bytes, name: str = "texts.jsonl") -> Path:
    """A file of lines."""
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_json_line_is_a_string_or_an_object(tmp_path: Path) -> None:
    """With a pair or without; a mark of the encoding, line ends and ids are no text."""
    path = file(tmp_path, GOOD)
    source = check(path, INFO)

    assert list(source.texts(0)) == [
        "All is well",
        "a dog",
        ("a dog", "a cat"),
        "caf\u00e9",
        "no end",
    ]
    assert (source.lines, source.sha256) == (5, hashlib.sha256(GOOD).hexdigest())
    assert list(source.texts(3)) == ["caf\u00e9", "no end"]


def test_a_line_of_txt_is_a_text_as_it_stands(tmp_path: Path) -> None:
    """JSON too; its spaces are its own."""
    path = file(tmp_path, b'  a dog \r\n"a\x0bcat"\r\n', "texts.txt")

    assert list(check(path, INFO).texts(0)) == ["  a dog ", '"a\x0bcat"']


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a dog", "not JSON"),
        (b"", "not JSON"),
        (b'"a" "b"', "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b'"\xff"', "not JSON"),
        (b"7", 'neither a string nor an object with "text"'),
        (b"null", 'neither a string nor an object with "text"'),
        (b'["a"]', 'neither a string nor an object with "text"'),
        (b'{"text": 7}', "text: Input should be a valid string"),
        (b'{"pair": "a"}', "text: Field required"),
        (b'{"text": "a", "title": "b"}', "title: Extra inputs are not permitted"),
        (b'{"text": "a", "id": [1]}', "id: Input should be a valid string"),
        (b'""', "the text is empty"),
        (b'{"text": ""}', "the text is empty"),
        (b'{"text": "a", "pair": ""}', "the text is empty"),
        (b'"123456789012345678901"', "21 characters, the service reads 20"),
        (b'{"text": "a", "pair": "123456789012345678901"}', "21 characters"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: bytes, why: str) -> None:
    """And why, without repeating it."""
    path = file(tmp_path, b'"fine"\n"fine"\n' + line + b'\n"fine"\n')

    with pytest.raises(BadLine) as refused:
        check(path, INFO)

    assert str(refused.value).startswith(f"line 3: {why}")


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"fine\n\nfine", "line 2: the text is empty"), (b"fine\n\xff\n", "line 2: not UTF-8")],
    ids=["empty", "bytes"],
)
def test_a_bad_line_of_txt_is_named_too(tmp_path: Path, content: bytes, line: str) -> None:
    """Nothing is passed over."""
    with pytest.raises(BadLine, match=line):
        check(file(tmp_path, content, "texts.txt"), INFO)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """There is nothing to encode."""
    with pytest.raises(BadLine, match="the file is empty"):
        check(file(tmp_path, b""), INFO)


def test_a_line_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused when so much of it was read."""
    monkeypatch.setattr(lines, "LONGEST_BYTES", 50)

    with pytest.raises(BadLine, match="line 2: longer than 50 bytes"):
        check(file(tmp_path, b'"fine"\n"' + b"a" * 1000), INFO)


@pytest.mark.parametrize("then", [b'"a"\n"c"\n', b'"a"\n"b"\n"c"\n'], ids=["other", "longer"])
def test_a_file_that_changes_in_between_is_noticed(tmp_path: Path, then: Any) -> None:
    """Before a line of it is used."""
    path = file(tmp_path, b'"a"\n"b"\n')
    source = check(path, INFO)
    path.write_bytes(then)

    with pytest.raises(Changed):
        next(source.texts(0))
