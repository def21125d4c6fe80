"""`headlight encode --file texts.parquet` against the real replica."""

import asyncio
import datetime
import gc
import io
import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from service.cli import main
from service.commands.bulk import parquet
from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Failed

TEXTS = [f"text number {i} of a dog" for i in range(13)]
LITTLE = {"max_sequences": 3}  # so that 13 texts take five requests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, of whose files few rows are read at a time."""
    monkeypatch.setattr(parquet, "TEXT_ROWS", 5)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    return tmp_path


async def run(folder: Path, url: str, *more: str, out: str = "out.parquet") -> tuple[int, str]:
    """Encode in.parquet of a folder: status, and the last line of what it said."""
    paths = ("--file", str(folder / "in.parquet"), "--out", str(folder / out))
    command = ["encode", *paths, "--column", "text", "--url", url, *more]

    def invoke() -> tuple[int, str]:
        done = CliRunner().invoke(main, command)
        return done.exit_code, (done.output.splitlines() or [""])[-1]

    said = await asyncio.to_thread(invoke)
    gc.collect()  # a traceback holds the rows so far, and these the lock of their file
    return said


def names(folder: Path) -> list[str]:
    """The files of a folder."""
    return sorted(os.listdir(folder))


def table(**columns: Any) -> pa.Table:
    """13 texts and other columns."""
    return pa.table({"text": TEXTS, **columns})


AWKWARD = {
    "id": pa.array([None, *range(2**62, 2**62 + 12)], pa.int64()),
    "unsigned": pa.array(range(13), pa.uint8()),
    "uuid": pa.array([bytes([i]) * 16 for i in range(13)], pa.binary(16)),
    "day": pa.array([datetime.date(2026, 1, 1), *[None] * 12]),
    "at": pa.array([datetime.datetime(2026, 1, 1)] * 13, pa.timestamp("us", "UTC")),
    "price": pa.array([Decimal("1.10")] * 13, pa.decimal128(9, 2)),
    "tags": pa.array([["a", None], [], None, *[["b"]] * 10], pa.list_(pa.string())),
    "meta": pa.array([{"a": 1, "b": "x"}, None, *[{"a": None, "b": ""}] * 11]),
    "kind": pa.array(["x", "y", None, *["x"] * 10]).dictionary_encode(),
    "note": pa.array(["", None, "\u00e9\U0001f600", *["n"] * 10], pa.large_string()),
    "a.b": pa.array([True, None, *[False] * 11]),
}


async def test_every_other_column_and_row_is_kept_and_each_vector_is_that_of_its_text_alone(
    folder: Path, address: str, alone: Any
) -> None:
    """Of any type, with nulls, over several row groups; the file says what made it."""
    given = table(**AWKWARD).replace_schema_metadata({"owner": "us"})
    pq.write_table(given, folder / "in.parquet", row_group_size=3)

    status, said = await run(folder, address)

    assert (status, said) == (0, f"13 vectors in {folder / 'out.parquet'}")
    written = pq.read_table(folder / "out.parquet")
    assert written.drop_columns("pooled").equals(given)
    assert written.drop_columns("pooled").schema.equals(given.schema)
    assert written.schema.field("pooled").type == pa.list_(pa.float32(), 384)
    for text, row in zip(TEXTS, written["pooled"], strict=True):
        np.testing.assert_array_equal(row.values.to_numpy(), await alone(text), strict=True)
    told = written.schema.metadata
    assert told[b"owner"] == b"us" and json.loads(told[b"headlight"])["source_lines"] == "13"
    assert names(folder) == ["in.parquet", "out.parquet"]
    groups = pq.read_metadata(folder / "out.parquet")
    assert max(groups.row_group(i).num_rows for i in range(groups.num_row_groups)) <= 4


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
async def test_texts_may_be_of_any_of_the_types_of_text(
    folder: Path, address: str, alone: Any, kind: pa.DataType
) -> None:
    """Vectors are the same, and the column keeps its type."""
    given = pa.table({"text": pa.array(TEXTS[:5]).cast(kind)})
    pq.write_table(given, folder / "in.parquet")

    status, said = await run(folder, address)

    assert status == 0, said
    written = pq.read_table(folder / "out.parquet")
    assert written["text"].type == kind
    last = written["pooled"][4].values.to_numpy()
    np.testing.assert_array_equal(last, await alone(TEXTS[4]), strict=True)


async def test_smaller_vectors_and_other_outputs_are_those_of_the_same_texts_as_lines(
    folder: Path, address: str
) -> None:
    """Parquet is only another way to give texts, and to take vectors."""
    pq.write_table(table(), folder / "in.parquet")
    lines = folder / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS))
    command = ["encode", "--file", str(lines), "--out", str(folder / "b.npy"), "--url", address]

    small = await run(folder, address, "--precision", "ubinary")
    plain = await run(folder, address, "--precision", "ubinary", out="a.safetensors")
    more = ["--precision", "ubinary"]
    await asyncio.to_thread(CliRunner().invoke, main, [*command, *more])

    assert small[0] == plain[0] == 0
    expected = np.load(folder / "b.npy")
    column = pq.read_table(folder / "out.parquet")["pooled"]
    np.testing.assert_array_equal(np.array(column.to_pylist(), np.uint8), expected, strict=True)
    np.testing.assert_array_equal(load_file(folder / "a.safetensors")["pooled"], expected)


async def test_an_interrupted_job_goes_on_where_it_was(
    folder: Path, failing: Any, listen: Any
) -> None:
    """No row is computed twice, and the result has the same bytes."""
    long = [*TEXTS[:10], "well " * 400, *TEXTS[11:]]
    pq.write_table(pa.table({"text": long, "id": range(13)}), folder / "in.parquet")
    layer = failing(limits=LITTLE)

    async with listen(layer) as url:
        refused = await run(folder, url)
        before = [text for body in layer.bodies for text in body["inputs"]]
        resumed = await run(folder, url, "--truncate", "right")
        after = [text for body in layer.bodies for text in body["inputs"]][len(before) :]
        os.rename(folder / "out.parquet", folder / "resumed.parquet")
        whole = await run(folder, url, "--truncate", "right")

    assert refused[0] == 1
    assert refused[1].startswith("headlight: row 11: it has 402 tokens, and the model takes")
    assert refused[1].endswith("(sequence_too_long); the work so far is kept")
    assert resumed[0] == whole[0] == 0 and after == long[9:]
    assert (folder / "resumed.parquet").read_bytes() == (folder / "out.parquet").read_bytes()


async def test_a_job_killed_while_it_writes_only_writes_again(
    folder: Path, failing: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All vectors are there; nothing is sent, and half a file never has the name."""
    pq.write_table(table(), folder / "in.parquet", row_group_size=4)
    write, layer = pq.ParquetWriter.write_table, failing()

    def fail(self: pq.ParquetWriter, *given: Any) -> None:
        write(self, *given)
        raise OSError("disk full")

    async with listen(layer) as url:
        with monkeypatch.context() as broken:
            broken.setattr(pq.ParquetWriter, "write_table", fail)
            failed = await run(folder, url)
        left, sent = names(folder), len(layer.bodies)
        again = await run(folder, url)

    assert failed == (1, "headlight: disk full")
    assert left == ["in.parquet", "out.parquet.partial"]
    assert again == (0, f"13 vectors in {folder / 'out.parquet'}") and len(layer.bodies) == sent
    assert pq.read_table(folder / "out.parquet").num_rows == 13


async def test_a_source_that_changed_is_never_mixed(
    folder: Path, failing: Any, listen: Any
) -> None:
    """Neither while vectors are made, nor between the vectors and the file."""
    pq.write_table(table(), folder / "in.parquet")
    other = table().set_column(0, "text", [[*TEXTS[:12], "edited"]])
    layer = failing(limits=LITTLE)
    ours = layer.app

    async def editing(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/encode":
            pq.write_table(other, folder / "in.parquet")
        await ours(scope, receive, send)

    layer.app = editing
    async with listen(layer) as url:
        status, line = await run(folder, url)
        second = await run(folder, url)

    assert status == 1 and line.endswith("in.parquet was changed while it was read")
    assert not (folder / "out.parquet").exists()
    assert second[0] == 2 and "belongs to another job: source_sha256 was" in second[1]


@pytest.mark.parametrize("rows", [13, 12], ids=["changed", "longer"])
async def test_a_file_that_changed_beside_its_texts_is_not_written_with_their_vectors(
    folder: Path, rows: int
) -> None:
    """Its other columns would be of another time than they."""
    pq.write_table(table(id=range(13)), folder / "in.parquet")
    file = TextFile.of(folder / "in.parquet", None, "text")
    vectors = np.zeros((rows, 3), np.float32)

    with pytest.raises(Failed, match="was changed while it was read"):
        parquet.write_vectors(file, {"source_sha256": "0" * 64}, io.BytesIO(), vectors)


NOT_PARQUET = b"text\na dog\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": ["a", None, "b"]}, "in.parquet: row 2: the text is null"),
        ({"text": ["a", "b", ""]}, "in.parquet: row 3: the text is empty"),
        (
            {"text": ["a" * 2_000_000]},
            "row 1: the text has 2000000 characters; the service takes",
        ),
        ({"text": [1, 2]}, "in.parquet: the column 'text' is of int64, not of text"),
        ({"text": [["a"]]}, "the column 'text' is of list<"),
        ({"body": ["a"]}, "in.parquet: 0 columns have the name 'text'; there are ['body']"),
        ({"text": pa.array([], pa.string())}, "in.parquet: row 1: the file is empty"),
        ({"text": ["a"], "pooled": [1]}, "in.parquet has a column 'pooled' already"),
        (NOT_PARQUET, "in.parquet: Parquet magic bytes not found"),
        (b"", "in.parquet: "),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[:40],
)
async def test_what_cannot_be_encoded_is_refused_before_anything_is_sent(
    folder: Path, failing: Any, listen: Any, given: Any, said: str
) -> None:
    """In one line that says where."""
    source, layer = folder / "in.parquet", failing()
    if isinstance(given, bytes):
        source.write_bytes(given)
    else:
        pq.write_table(pa.table(given), source)

    async with listen(layer) as url:
        status, line = await run(folder, url)

    assert status == 2 and said in line, line
    assert layer.bodies == [] and names(folder) == ["in.parquet"]


async def test_text_that_is_not_utf8_is_refused(folder: Path, address: str) -> None:
    """Parquet does not promise it, though the column's type says so."""
    raw = pa.array([b"a", b"\xff\xfe"]).view(pa.string())
    pq.write_table(pa.table({"text": raw}), folder / "in.parquet")

    status, line = await run(folder, address)

    assert status == 2 and line.endswith("in.parquet: the column 'text' is not UTF-8")


async def test_an_output_that_exists_or_does_not_fit_is_refused(folder: Path, address: str) -> None:
    """Nothing is overwritten."""
    pq.write_table(table(), folder / "in.parquet")
    (folder / "out.parquet").write_bytes(b"mine")

    existing = await run(folder, address)
    lines = folder / "texts.jsonl"
    lines.write_text('"a"\n')
    command = ["encode", "--file", str(lines), "--out", str(folder / "b.parquet")]
    mixed = await asyncio.to_thread(CliRunner().invoke, main, [*command, "--url", address])

    assert existing[0] == 2 and "already exists" in existing[1]
    assert (folder / "out.parquet").read_bytes() == b"mine"
    assert mixed.exit_code == 2 and "texts.jsonl is none" in mixed.stderr


async def test_without_a_column_or_pyarrow_the_command_says_what_to_add(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it looks for a service or reads the file."""
    paths = ["--file", str(folder / "in.parquet"), "--out", str(folder / "out.parquet")]

    without = CliRunner().invoke(main, ["encode", *paths])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    missing = CliRunner().invoke(main, ["encode", *paths, "--column", "text"])

    assert without.exit_code == missing.exit_code == 2
    assert "needs --column: the name of a column" in without.stderr
    assert "pyarrow is missing (the package's extra parquet)" in missing.stderr


async def test_a_file_is_read_in_a_memory_that_does_not_grow_with_it(folder: Path) -> None:
    """Of 20 row groups of half a megabyte, a few at a time are held, however many follow."""
    texts = [os.urandom(25_000).hex() for _ in range(200)]
    pq.write_table(pa.table({"text": texts}), folder / "in.parquet", row_group_size=10)
    file, held = TextFile.of(folder / "in.parquet", None, "text"), []
    before = pa.total_allocated_bytes()

    for _ in parquet.read_texts(file):
        held.append(pa.total_allocated_bytes() - before)

    assert len(held) == 200 and max(held) < 4_000_000


async def test_stdin_may_be_parquet(folder: Path, address: str) -> None:
    """Though Parquet is read from its end."""
    pq.write_table(table(), folder / "in.parquet")
    out = folder / "out.parquet"
    command = ["encode", "--file", "-", "--format", "parquet", "--column", "text", "--out"]

    done = await asyncio.to_thread(
        CliRunner().invoke,
        main,
        [*command, str(out), "--url", address],
        input=(folder / "in.parquet").read_bytes(),
    )

    assert done.exit_code == 0, done.stderr
    assert pq.read_table(out)["text"].to_pylist() == TEXTS
