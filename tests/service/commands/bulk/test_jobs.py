"""`headlight encode --file` against the real replica; in a process of its own where it is ended."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file
from sentence_transformers.util import quantize_embeddings

from service.cli import main
from service.commands.bulk import jobs, source
from service.commands.bulk.vectors import VectorFile
from service.pipeline.replica import Replica
from service.pipeline.write.precisions import range_end
from service.tables.refusals import Refused

ROOT = Path(__file__).parents[4]
WORDS = "all is well and the dog ate the food because it was hungry".split()
TEXTS = [" ".join(WORDS[: 1 + i * 7 % 13]) + f" {i}" for i in range(53)]
LITTLE = {"max_sequences": 5}  # so that the file takes eleven requests
WIDTH_BYTES = 384 * 4


class Folder:
    """A folder with a source, and the command that encodes it."""

    def __init__(self, path: Path) -> None:
        self.source, self.out = path / "texts.jsonl", path / "vectors.safetensors"
        self.partial = path / "vectors.safetensors.partial"
        self.rows = self.partial / "rows"
        self.fill(TEXTS)

    def fill(self, lines: list[Any]) -> None:
        """Write the source."""
        self.source.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))

    def command(self, url: str, *more: str) -> list[str]:
        """`headlight encode --file`."""
        return ["encode", "--file", str(self.source), "--out", str(self.out), "--url", url, *more]

    async def start(self, url: str, *more: str) -> Process:
        """Run it in a process of its own, which SIGINT ends also where a shell ignores it."""
        return await asyncio.create_subprocess_exec(
            *("env", "--default-signal=INT", sys.executable, "-m", "service.cli"),
            *self.command(url, *more),
            cwd=ROOT,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def run(self, url: str, *more: str) -> tuple[int, str, str]:
        """Run it here to its end: status, what it printed, the last line of its errors."""
        done = await asyncio.to_thread(CliRunner().invoke, main, self.command(url, *more))
        return done.exit_code, done.stdout, (done.stderr.splitlines() or [""])[-1]

    async def leave_part(self, rows: int, url: str, *more: str) -> None:
        """Run it, and leave what it has of the first rows where it is killed."""
        assert (await self.run(url, *more))[0] == 0
        with safe_open(self.out, "np") as file:
            origin, done = file.metadata(), file.get_tensor("pooled")[:rows]
        self.out.unlink()
        with closing(VectorFile(self.out, len(TEXTS), origin)) as vectors:
            vectors.append(done)

    async def some_rows(self) -> None:
        """Wait until a few requests are done."""
        while not (self.rows.exists() and self.rows.stat().st_size > 17 * WIDTH_BYTES):
            await asyncio.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with 53 texts."""
    return Folder(tmp_path)


def sent(layer: Any) -> list[str]:
    """Every text that reached the service, in order."""
    return [text for body in layer.bodies for text in body["inputs"]]


async def test_every_line_becomes_a_row_in_order_as_alone(
    folder: Folder, address: str, alone: Any, replica: Replica
) -> None:
    """Strings, objects and pairs; the file says what made it."""
    pair = {"text": "a dog", "pair": "a cat"}
    folder.fill([*TEXTS[:7], {"text": "All is well", "id": 7}, {**pair, "id": "p"}])

    status, said, _ = await folder.run(address)

    assert (status, said) == (0, f"9 vectors in {folder.out}\n")
    rows = load_file(folder.out)["pooled"]
    for given, row in zip([*TEXTS[:7], "All is well", pair], rows, strict=True):
        np.testing.assert_array_equal(row, await alone(given), strict=True)
    with safe_open(folder.out, "np") as file:
        told = file.metadata()
    head = replica.identity.preamble("float32")
    assert {name: told[name] for name in ("model", "weights", "numerics")} == {
        name: head[name] for name in ("model", "weights", "numerics")
    }
    assert told["source_lines"] == "9" and len(told["source_sha256"]) == 64


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", " ", "b"], "1 text is blank: line 2"),
        (["a", " ", "b", "\t"], "2 texts are blank, and are encoded alike: lines 2, 4"),
        (
            ["a", *[" "] * 12],
            "12 texts are blank, and are encoded alike: lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and "
            "2 more",
        ),
        (["a", "b"], ""),
    ],
    ids=["one", "two", "many", "none"],
)
async def test_blank_texts_are_counted_and_named(
    folder: Folder, address: str, texts: list[str], said: str
) -> None:
    """On stderr, before the work: a corpus' empty cells become equal vectors."""
    folder.fill(texts)

    done = await asyncio.to_thread(CliRunner().invoke, main, folder.command(address))

    lines = [line for line in done.stderr.splitlines() if "blank" in line]
    assert done.exit_code == 0 and lines == (
        [f"headlight: {folder.source}: {said}"] if said else []
    )


@pytest.mark.parametrize("ending", [".safetensors", ".npy"])
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
async def test_a_file_of_smaller_vectors_is_the_librarys(
    folder: Folder, address: str, alone: Any, precision: Any, ending: str
) -> None:
    """Of the same floats, to the bit; the file says which precision it has, where it can."""
    folder.out = folder.out.with_suffix(ending)
    folder.fill(TEXTS[:3])
    floats = np.stack([await alone(text) for text in TEXTS[:3]])
    ranges = np.array([[-range_end(384)] * 384, [range_end(384)] * 384], dtype=np.float32)

    status, _, said = await folder.run(address, "--precision", precision)
    assert status == 0, said

    expected = quantize_embeddings(floats, precision=precision, ranges=ranges)
    if ending == ".npy":
        np.testing.assert_array_equal(np.load(folder.out), expected, strict=True)
        return
    np.testing.assert_array_equal(load_file(folder.out)["pooled"], expected, strict=True)
    with safe_open(folder.out, "np") as file:
        assert file.metadata()["precision"] == precision


# `make prove` kills it too, as test_ranking.py does
@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGKILL, -9, id="kill -9", marks=pytest.mark.prove),
        pytest.param(signal.SIGINT, 130, id="Ctrl-C"),
    ],
)
async def test_what_was_done_before_an_interruption_is_not_done_again(
    folder: Folder, failing: Any, listen: Any, alone: Any, number: int, status: int
) -> None:
    """Nothing lost; at most the one request in flight is computed twice."""
    layer, interrupted = failing(limits=LITTLE), asyncio.Event()
    ours = layer.app

    async def held(scope: Any, receive: Any, send: Any) -> None:
        if len(layer.bodies) > 4:
            await interrupted.wait()
        await ours(scope, receive, send)

    layer.app = held
    async with listen(layer) as url:
        process = await folder.start(url)
        await folder.some_rows()
        process.send_signal(number)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        interrupted.set()
        assert process.returncode == status, errors.decode()
        assert not folder.out.exists()
        assert len(sent(layer)) in (20, 25)  # the fifth request was on its way, or not yet
        again = await folder.run(url)

    assert number == signal.SIGKILL or errors.decode().endswith(
        "headlight: stopped; run the same command again to resume\n"
    )
    assert again[0] == 0
    assert 53 <= len(sent(layer)) <= 53 + 5
    assert list(dict.fromkeys(sent(layer))) == TEXTS
    assert not folder.partial.exists()
    for text, row in zip(TEXTS, load_file(folder.out)["pooled"], strict=True):
        np.testing.assert_array_equal(row, await alone(text))


async def test_a_stop_and_start_of_the_service_in_between_change_no_byte(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """Nothing listens, then Ray answers 404 until it has the routes; the job waits both out."""
    layer, tries, tired = failing(seconds=0.1, limits=LITTLE), [], asyncio.Event()

    async def without_routes(scope: Any, receive: Any, send: Any) -> None:
        tries.append(scope["path"])
        if len(tries) == 3:
            tired.set()
        body = b"Path '/v1/encode' not found. Ping http://.../-/routes for available routes."
        kind = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 404, "headers": kind})
        await send({"type": "http.response.body", "body": body})

    async with listen(layer) as url:
        job = asyncio.create_task(folder.run(url))
        await folder.some_rows()
    port = int(url.rpartition(":")[2])
    async with listen(without_routes, port=port):
        waited = asyncio.create_task(tired.wait())
        await asyncio.wait([waited, job], return_when=asyncio.FIRST_COMPLETED)
    async with listen(layer, port=port):
        status, _, errors = await job
        assert status == 0, errors
        requests, interrupted = len(sent(layer)), folder.out.read_bytes()
        folder.out.unlink()
        await folder.run(url)

    assert requests <= 53 + 5
    assert folder.out.read_bytes() == interrupted


async def test_csv_from_stdin_becomes_a_file_of_numpys(
    folder: Folder, address: str, alone: Any
) -> None:
    """Read whole before it is sent, like any file."""
    out, table = folder.out.with_suffix(".npy"), 'id,text\n7,a dog\n8,"a cat, a dog"\n'
    command = ["encode", "--file", "-", "--format", "csv", "--column", "text", "--url", address]

    result = await asyncio.to_thread(
        CliRunner().invoke, main, [*command, "--out", str(out)], input=table
    )

    assert (result.exit_code, result.stdout) == (0, f"2 vectors in {out}\n")
    for text, row in zip(["a dog", "a cat, a dog"], np.load(out), strict=True):
        np.testing.assert_array_equal(row, await alone(text), strict=True)


async def test_a_record_only_the_service_can_judge_is_named_too(
    folder: Folder, address: str
) -> None:
    """By its place among the records, not among the lines."""
    folder.source = folder.source.with_suffix(".csv")
    folder.source.write_text('text\n"a\ndog"\n' + "well " * 400 + "\n")

    status, _, line = await folder.run(address, "--column", "text")

    assert status == 1 and line.startswith("headlight: record 2: ")


async def test_a_job_killed_before_its_file_got_its_name_needs_no_service_to_end(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """All rows are there: nothing is sent."""
    layer = failing()
    async with listen(layer) as url:
        await folder.leave_part(len(TEXTS), url)
        before = len(layer.bodies)
        status, *_ = await folder.run(url)

    assert status == 0 and len(layer.bodies) == before
    assert load_file(folder.out)["pooled"].shape == (53, 384)


async def test_a_line_only_the_service_can_judge_is_named_and_what_is_done_is_kept(
    folder: Folder, failing: Any, listen: Any, alone: Any
) -> None:
    """The job then goes on with --truncate, and what fitted is not computed again."""
    long = "well " * 400
    texts = [*TEXTS[:42], long, *TEXTS[42:]]
    folder.fill(texts)
    layer = failing(limits=LITTLE)

    async with listen(layer) as url:
        status, _, line = await folder.run(url)
        assert status == 1
        assert line == (
            "headlight: line 43: it has 402 tokens, and the model takes at most 256 "
            "(sequence_too_long); the work so far is kept"
        )
        assert sent(layer).count(texts[39]) == 1
        done, *_ = await folder.run(url, "--truncate", "left")

    assert done == 0 and sent(layer).count(texts[39]) == 1
    rows = load_file(folder.out)["pooled"]
    np.testing.assert_array_equal(rows[42], await alone(long, truncate="left"))
    np.testing.assert_array_equal(rows[39], await alone(texts[39]))


@pytest.mark.parametrize(
    ("bad", "line"),
    [("", "line 54: the text is empty"), (7, "line 54: neither a string nor an object")],
)
async def test_a_bad_line_stops_before_anything_is_sent(
    folder: Folder, failing: Any, listen: Any, bad: Any, line: str
) -> None:
    """Though it is the last."""
    folder.fill([*TEXTS, bad])
    layer = failing()

    async with listen(layer) as url:
        status, said, errors = await folder.run(url)

    assert status == 2 and said == "" and line in errors
    assert layer.bodies == [] and not folder.partial.exists()


async def test_no_row_is_made_of_a_line_that_changed_after_the_file_was_checked(
    folder: Folder, failing: Any, listen: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job stops at what changed; restored, it goes on to exactly the original's rows."""
    monkeypatch.setattr(source, "BATCH_TEXTS", 7)
    lines = [orjson.dumps(text).ljust(60_000) + b"\n" for text in TEXTS]  # beyond every buffer
    folder.source.write_bytes(b"".join(lines))
    layer, reached, released = failing(limits=LITTLE), asyncio.Event(), asyncio.Event()
    ours = layer.app

    async def held(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/encode":
            reached.set()
            await released.wait()
        await ours(scope, receive, send)

    layer.app = held
    async with listen(layer) as url:
        job = asyncio.create_task(folder.run(url))
        await reached.wait()
        edited = orjson.dumps("edited").ljust(60_000) + b"\n"
        folder.source.write_bytes(b"".join([*lines[:41], edited, *lines[42:]]))
        released.set()
        status, _, line = await job
        folder.source.write_bytes(b"".join(lines))
        again = await folder.run(url)

    assert status == 1 and "was changed while it was read" in line
    assert again[0] == 0 and "edited" not in sent(layer)
    for text, row in zip(TEXTS, load_file(folder.out)["pooled"], strict=True):
        np.testing.assert_array_equal(row, await alone(text))


async def test_a_changed_source_or_model_is_refused_in_a_line(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """Neither is mixed into what is done."""
    layer = failing()
    async with listen(layer) as url:
        await folder.leave_part(20, url)

        layer.says = {"weights": "sha256:000000000000"}
        model = await folder.run(url)
        layer.says = {}
        folder.fill([*TEXTS[:52], "another"])
        source = await folder.run(url)

    assert model[0] == 2 and "weights was sha256:5fc648cb18e4 and is sha256:0000" in model[2]
    assert source[0] == 2 and "source_sha256 was" in source[2]


async def test_texts_cut_at_another_length_are_not_mixed_into_what_is_done(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """As when the service was started with another --max-tokens in between."""
    layer = failing()
    async with listen(layer) as url:
        await folder.leave_part(20, url, "--truncate", "right")

        layer.says = {"max_tokens": 128}
        status, _, line = await folder.run(url, "--truncate", "right")

    assert status == 2 and "max_tokens was 256 and is 128" in line


async def test_a_model_that_changes_under_the_job_ends_it(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """As when a service is upgraded; no row of the new one is written."""
    layer = failing(says={"weights": "sha256:000000000000"})

    async with listen(layer) as url:
        status, _, line = await folder.run(url)

    assert status == 1 and "the service's weights changed from sha256:0000" in line
    assert folder.rows.stat().st_size == 0


async def test_a_service_that_is_not_there_is_said_soon(
    folder: Folder, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after minutes of patience, which a request has once the service was there."""
    assert jobs.INFO_SECONDS < 20
    monkeypatch.setattr(jobs, "INFO_SECONDS", 0.5)

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    async with listen(silent) as url:
        pass
    status, _, line = await folder.run(url)

    assert status == 1 and line.startswith(f"headlight: no answer from {url}")


async def test_a_busy_service_ends_the_job_with_how_long_it_was_busy(
    folder: Folder, failing: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests carry no deadline, which nobody gave; the rows so far stay."""
    monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 0.5)
    layer = failing(*[Refused("overloaded")] * 99)

    async with listen(layer) as url:
        status, _, line = await folder.run(url)

    assert status == 1 and not any("x-headlight-deadline-ms" in told for told in layer.headers)
    assert re.fullmatch(
        r"headlight: 429 overloaded: busy for 0\.\d s, in \d+ tries: The service is busy; the "
        r"request was not started\.; the work so far is kept",
        line,
    )


async def test_a_key_is_read_from_its_file(
    folder: Folder, failing: Any, listen: Any, tmp_path: Path
) -> None:
    """Its line end is no part of it."""
    (tmp_path / "key").write_text("secret-1\n")
    layer = failing()

    async with listen(layer) as url:
        await folder.run(url, "--key-file", str(tmp_path / "key"))

    assert {headers["authorization"] for headers in layer.headers} == {"Bearer secret-1"}


async def test_a_reader_who_leaves_hears_nothing_more(folder: Folder, address: str) -> None:
    """`headlight encode ... | true` ends as other commands do; the file is whole."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "service.cli", *folder.command(address)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=writer, stderr=PIPE)
    os.close(writer)
    _, errors = await process.communicate()

    assert process.returncode == 1 and b"headlight:" not in errors
    assert len(load_file(folder.out)["pooled"]) == len(TEXTS)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("text", "--out", "b"),
        ("--file", "a"),
        ("--file", "a", "--out", "b.npy", "--attention", "L0H0"),
        ("--file", "a", "--out", "b.parquet"),
        ("--file", "a.csv", "--out", "b.npy"),
        ("--file", "a.txt", "--out", "b.npy", "--column", "1"),
        ("text", "--column", "1"),
        ("text", "--precision", "int8"),
    ],
)
async def test_half_a_command_is_refused(arguments: tuple[str, ...]) -> None:
    """In a line that says what goes together."""
    result = CliRunner().invoke(main, ["encode", *arguments])

    assert result.exit_code == 2
    assert result.stderr.startswith("headlight: ") and result.stderr.count("\n") == 1
