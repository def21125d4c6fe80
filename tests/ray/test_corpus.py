"""docs/client.md's job of Ray Data, whose worker, replica and driver are killed on the way.

Ray Data needs pandas, which Ray Serve would import into each of its processes, a second or more:
the job runs in an environment of its own over that of the tests.
"""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headlight_client import Client
from tests.ray import drill
from tests.ray.conftest import below

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / "build" / "ray-data"
PANDAS = "pandas==3.1.1"
FILES, ROWS = 24, 250  # of the corpus; rows of a file
PAGE_BYTES = 5000  # of a row, which makes the corpus 30 MB
SPACE = "s1-ef207b04aac72290"  # of the page
JOB_SECONDS = 300  # longest wait for a job
COLUMNS = ("id", "text", "page")
PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with pandas too, made once."""
    python = HOME / "bin" / "python"
    (here,) = (path for path in sys.path if path.endswith("site-packages"))
    if not (HOME / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--no-deps"]
        subprocess.run([*pip, PANDAS], check=True)
        (packages,) = HOME.glob("lib/python*/site-packages")
        (packages / "tests.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        (HOME / "installed").touch()
    return python


def write_corpus(folder: Path) -> dict[int, str]:
    """Write the files of a corpus; its texts by id."""
    folder.mkdir()
    texts = {i: f"{'the dog ate the food ' * (1 + i % 5)}{i}" for i in range(FILES * ROWS)}
    for first in range(0, len(texts), ROWS):
        ids = [*range(first, first + ROWS)]
        pages = [random.Random(i).randbytes(PAGE_BYTES) for i in ids]
        columns = {"id": ids, "text": [texts[i] for i in ids], "page": pages}
        pq.write_table(pa.table(columns), folder / f"{first}.parquet", row_group_size=100)
    return texts


@contextmanager
def job(
    python: Path, folder: Path, url: str, space: str = SPACE, left_out: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the page's own example on a folder, and kill it if it still runs in the end."""
    (code,) = re.findall(r"^```python\n(import ray\n.*?)^```$", PAGE, re.M | re.S)
    code = code.replace("http://127.0.0.1:8000", url).replace("/shared", str(folder))
    assert left_out in code
    code = code.replace(SPACE, space).replace(left_out, "")
    code = code.replace("2**24", "2**20")  # of so small a corpus many blocks, too
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(
            [python, "-c", code],
            cwd=folder,
            stdout=log,
            stderr=log,
            # a Ray of its own, whatever address another one has left on this machine
            env={**os.environ, "RAY_ADDRESS": "local"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finished(folder: Path) -> int:
    """How many rows Ray Data holds for done."""
    files = (folder / "done").glob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


def kill_one(pid: int, name: str) -> None:
    """Kill a process that another started, directly or not."""
    os.kill(next(each for each, title in below(pid).items() if name in title), signal.SIGKILL)


def test_every_row_is_encoded_once_whoever_is_killed(
    start: "Start", python: Path, tmp_path: Path
) -> None:
    """A replica and a worker while the job runs; then the job, which is started again."""
    texts = write_corpus(tmp_path / "corpus")
    with start("--replicas", "2", "--device", "cpu", "--threads", "1") as service:
        with job(python, tmp_path, service.url) as first:
            drill.wait(lambda: computed(service) > 5000, "it has begun", JOB_SECONDS)
            kill_one(service.process.pid, "ServeReplica")
            kill_one(first.pid, "MapWorker")
            drill.wait(lambda: finished(tmp_path) > 0, "some rows are done", JOB_SECONDS)
        before = finished(tmp_path)
        service.replaced(2)
        with job(python, tmp_path, service.url) as second:
            assert second.wait(JOB_SECONDS) == 0, (tmp_path / "job.log").read_text()[-4000:]

        rows = pq.read_table(tmp_path / "vectors")
        with Client(service.url) as client:
            alone = client.encode([texts[i] for i in rows["id"].to_pylist()]).pooled

    assert 0 < before < len(texts)
    assert sorted(rows["id"].to_pylist()) == [*texts]
    for i, text, page in zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True):
        assert text == texts[i] and page == random.Random(i).randbytes(PAGE_BYTES)
    vectors = rows["pooled"].combine_chunks().flatten().to_numpy().reshape(len(texts), -1)
    np.testing.assert_array_equal(vectors, alone, strict=True)


def test_a_job_without_a_batch_format_writes_the_same_vectors(
    start: "Start", python: Path, tmp_path: Path
) -> None:
    """Ray Data then passes numpy's arrays."""
    (tmp_path / "corpus").mkdir()
    rows = pa.table({"id": [7, 8, 9], "text": ["All is well", "a dog", "a cat"]})
    pq.write_table(rows, tmp_path / "corpus" / "a.parquet")

    with start("--device", "cpu") as service, Client(service.url) as client:
        with job(python, tmp_path, service.url, left_out='    batch_format="pyarrow",\n') as ended:
            assert ended.wait(JOB_SECONDS) == 0, (tmp_path / "job.log").read_text()[-4000:]
        alone = client.encode(rows["text"].to_pylist()).pooled

    told = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert told.drop_columns("pooled").equals(rows)
    np.testing.assert_array_equal(np.array(told["pooled"].to_pylist(), np.float32), alone)


def test_a_refused_text_and_another_space_end_the_job(
    start: "Start", python: Path, tmp_path: Path
) -> None:
    """Not a retry for ever; its last words name the row, or say what changed."""
    (tmp_path / "corpus").mkdir()
    rows = pa.table({"id": [7, 8], "text": ["well " * 400, "a dog"]})
    pq.write_table(rows, tmp_path / "corpus" / "a.parquet")
    said = []

    with start("--device", "cpu") as service:
        for space in (SPACE, "s1-0123456789abcdef"):
            with job(python, tmp_path, service.url, space) as ended:
                assert ended.wait(JOB_SECONDS) == 1
            said.append((tmp_path / "job.log").read_text())

    assert "RequestRefused: 422 sequence_too_long: id=7, text='well well" in said[0]
    assert "RequestRefused: 409 space_changed" in said[1]


def computed(service: "Service") -> int:
    """How many tokens the replicas that live have computed."""
    counts = re.findall(r"^headlight_tokens_total\{.*\} (\S+)", service.metrics(), re.M)
    return int(sum(map(float, counts)))
