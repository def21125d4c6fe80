"""A file of texts: its format, its column, and a copy of what can be read only once."""

import os
import threading
from pathlib import Path

import pytest

from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Unusable


@pytest.mark.parametrize(
    ("name", "column", "line"),
    [
        ("a.csv", None, "a.csv needs --column: a name in its first row, or a number from 1"),
        ("a.txt", "text", "--column is for csv, tsv and parquet; a.txt is read as txt"),
        ("a.csv", "0", "--column counts from 1"),
    ],
)
def test_a_column_is_for_csv_and_csv_has_one(name: str, column: str | None, line: str) -> None:
    """Said before the file is read."""
    with pytest.raises(Unusable, match=line):
        TextFile.of(Path(name), None, column)


def test_what_can_be_read_only_once_is_copied_and_leaves_nothing(tmp_path: Path) -> None:
    """A pipe; a file that lies there is read where it lies."""
    (tmp_path / "texts.jsonl").touch()
    there = TextFile.of(tmp_path / "texts.jsonl", None, None)
    os.mkfifo(tmp_path / "pipe.txt")
    writer = threading.Thread(target=(tmp_path / "pipe.txt").write_bytes, args=(b"a dog\na cat",))
    writer.start()

    with TextFile.of(tmp_path / "pipe.txt", None, None).as_regular_file(tmp_path) as copy:
        texts = copy.path.read_bytes()
        names = {path.name for path in tmp_path.iterdir()}
    writer.join()

    assert texts == b"a dog\na cat" and names == {"pipe.txt", "texts.jsonl"}
    with there.as_regular_file(tmp_path) as same:
        assert same is there
