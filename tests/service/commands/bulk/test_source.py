"""A file of texts, checked before anything is sent."""

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.commands.bulk import source as sources
from service.commands.bulk.source import check_lines
from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Failed, Unusable

INFO = {"limits": {"max_text_characters": 20}}
GOOD = b"""\xef\xbb\xbf"All is well"
{"text": "a dog"}\r
{"text": "a dog", "pair": "a cat", "id": 7}
 {"id": "x", "text": "caf\\u00e9"}
"no end" """


def file(
    folder: Path, content: bytes, name: str = "texts.jsonl", column: str | None = None
) -> TextFile:
    """A file of lines."""
    path = folder / name
    path.write_bytes(content)
    return TextFile.of(path, None, column)


def json_lines(texts: list[Any]) -> bytes:
    """Lines of JSON."""
    return b"".join(orjson.dumps(text) + b"\n" for text in texts)


def test_a_json_line_is_a_string_or_an_object(tmp_path: Path) -> None:
    """With a pair or without; a mark of the encoding, line ends and ids are no text."""
    path = file(tmp_path, GOOD)
    source = check_lines(path, INFO)

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
    """JSON too; its spaces are its own, and its name may be in capitals."""
    path = file(tmp_path, b'  a dog \r\n"a\x0bcat"\r\n', "TEXTS.TXT")

    assert list(check_lines(path, INFO).texts(0)) == ["  a dog ", '"a\x0bcat"']


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a dog", "not JSON"),
        (b"", "not JSON"),
        (b'"a" "b"', "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"7", 'neither a string nor an object with "text"'),
        (b"null", 'neither a string nor an object with "text"'),
        (b'["a"]', 'neither a string nor an object with "text"'),
        (b'{"text": 7}', "text must be a string"),
        (b'{"pair": "a"}', "text is missing"),
        (b'{"text": "a", "title": "b"}', "title is an unknown field"),
        (b'{"text": "a", "id": [1]}', "id must be a string"),
        (b'""', "the text is empty"),
        (b'{"text": ""}', "the text is empty"),
        (b'{"text": "a", "pair": ""}', "the text is empty"),
        (b'"123456789012345678901"', "the text has 21 characters; the service takes at most 20"),
        (b'{"text": "a", "pair": "123456789012345678901"}', "the text has 21 characters"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: bytes, why: str) -> None:
    """And why, without repeating it."""
    path = file(tmp_path, b'"fine"\n"fine"\n' + line + b'\n"fine"\n')

    with pytest.raises(Unusable) as refused:
        check_lines(path, INFO)

    assert str(refused.value).startswith(f"{path.name}: line 3: {why}")


def test_a_bad_line_leaves_no_file_open(tmp_path: Path) -> None:
    """Not even while the refusal is kept, and with it what was running."""
    path = file(tmp_path, b'"fine"\n7\n"fine"\n')

    with pytest.raises(Unusable) as refused:
        check_lines(path, INFO)

    assert path.path not in [each.resolve() for each in Path("/proc/self/fd").iterdir()]
    assert refused.traceback


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"fine\n\nfine", "line 2: the text is empty"), (b"fine\n\xff\n", "line 2: not UTF-8")],
    ids=["empty", "bytes"],
)
def test_a_bad_line_of_txt_is_named_too(tmp_path: Path, content: bytes, line: str) -> None:
    """Nothing is passed over."""
    with pytest.raises(Unusable, match=line):
        check_lines(file(tmp_path, content, "texts.txt"), INFO)


CSV = b"""\xef\xbb\xbfid,text\r
7,"a dog, a cat"\r
8,"two\r
lines"\r
9,caf\xc3\xa9
10,"said ""no"" so"
"""


@pytest.mark.parametrize(
    ("column", "start", "texts"),
    [
        ("text", 0, ["a dog, a cat", "two\r\nlines", "caf\u00e9", 'said "no" so']),
        ("2", 0, ["text", "a dog, a cat", "two\r\nlines", "caf\u00e9", 'said "no" so']),
        ("id", 2, ["9", "10"]),
        ("text", 2, ["caf\u00e9", 'said "no" so']),
    ],
)
def test_a_column_of_csv_is_found_by_name_or_number(
    tmp_path: Path, column: str, start: int, texts: list[str]
) -> None:
    """With commas, quotes and line ends inside its cells; a number takes the first row too."""
    source = check_lines(file(tmp_path, CSV, "texts.csv", column), INFO)

    assert list(source.texts(start)) == texts
    assert source.lines == start + len(texts)
    assert (source.origin["source_format"], source.origin["source_column"]) == ("csv", column)


def test_tsv_is_csv_between_tabs(tmp_path: Path) -> None:
    """Its commas are text."""
    path = file(tmp_path, b"id\ttext\n7\ta, b\n", "texts.tsv", "text")

    assert list(check_lines(path, INFO).texts(0)) == ["a, b"]


@pytest.mark.parametrize(
    ("content", "column", "line"),
    [
        (b"id,text\n7,a\n8,a, b\n", "text", "record 2: 3 columns where the first row has 2"),
        (b"id,text\n7,a\n\n8,b\n", "text", "record 2: 0 columns where the first row has 2"),
        (b"id,text\n7,a\n8,\n", "text", "record 2: the text is empty"),
        (b"7,a\n8,123456789012345678901\n", "2", "record 2: the text has 21 characters"),
        (
            b"id,text\n7,a\n",
            "txt",
            "line 1: 0 columns have the name 'txt'; there are 2: ['id', 'text']",
        ),
        (
            b"text,text\n7,a\n",
            "text",
            "line 1: 2 columns have the name 'text'; there are 2: ['text', 'text']",
        ),
        (b"7,a\n8,b\n", "3", "line 1: there is no column 3, only 2: ['7', 'a']"),
        (b'7,a\n8,"b\n9,c\n', "2", "line 3: not CSV: unexpected end of data"),
        (b'7,a\n8,"b"c\n', "2", "line 2: not CSV: ',' expected after '\"'"),
        (b"7,a\n8,\xff\n", "2", "line 2: not UTF-8"),
        (b"id,text\n", "text", "the file is empty"),
        (b"", "text", "the file is empty"),
    ],
)
def test_a_bad_record_is_named_by_its_number(
    tmp_path: Path, content: bytes, column: str, line: str
) -> None:
    """An unquoted comma does not cut a text short."""
    with pytest.raises(Unusable) as refused:
        check_lines(file(tmp_path, content, "texts.csv", column), INFO)

    assert line in str(refused.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """There is nothing to encode."""
    with pytest.raises(Unusable, match="the file is empty"):
        check_lines(file(tmp_path, b""), INFO)


def test_a_line_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused when so much of it was read."""
    monkeypatch.setattr(sources, "LONGEST_BYTES", 50)

    with pytest.raises(Unusable, match="line 2: longer than 50 bytes"):
        check_lines(file(tmp_path, b'"fine"\n"' + b"a" * 1000), INFO)


@pytest.mark.parametrize(
    ("then", "before"),
    [
        (["a", "b", "c", "d", "x"], ["a", "b", "c", "d"]),
        (["a", "b", "x", "d", "e"], ["a", "b"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"]),
        (["a", "b", "c", "d", "e", "f"], ["a", "b", "c", "d"]),
        (["a", "b", "c", "d", "e", "f", "g"], ["a", "b", "c", "d"]),
        (["a", "b", 7, "d", "e"], ["a", "b"]),
        ([], []),
    ],
    ids=["last", "middle", "shorter", "longer", "two longer", "not a text", "empty"],
)
def test_a_file_that_changes_in_between_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: list[Any], before: list[str]
) -> None:
    """Before a text of what changed is used."""
    monkeypatch.setattr(sources, "BATCH_TEXTS", 2)
    source = check_lines(file(tmp_path, json_lines(["a", "b", "c", "d", "e"])), INFO)
    source.file.path.write_bytes(json_lines(then))
    texts = []

    with pytest.raises(Failed, match="was changed while it was read"):
        for text in source.texts(0):
            texts.append(text)

    assert texts == before


def test_a_file_is_the_same_however_its_texts_fall_into_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last batch is full; reading may begin anywhere."""
    monkeypatch.setattr(sources, "BATCH_TEXTS", 2)
    for texts in (["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
        source = check_lines(file(tmp_path, json_lines(texts)), INFO)
        for start in range(len(texts) + 1):
            assert list(source.texts(start)) == texts[start:]


def test_a_cell_may_be_as_long_as_a_text(tmp_path: Path) -> None:
    """Python's own bound of a cell is half of the longest text that the service reads."""
    text = "a" * 200_000
    path = file(tmp_path, f'id,text\n1,"{text}"\n'.encode(), "texts.csv", "text")

    assert list(check_lines(path, {"limits": {"max_text_characters": 262_144}}).texts(0)) == [text]
