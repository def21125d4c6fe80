"""`headlight encode --file --questions` against a decision model of random weights."""

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from click.testing import CliRunner
from starlette.types import Message, Receive, Scope, Send

from service.cli import main
from service.commands.bulk import decisions, parquet
from tests.laya_models import make_laya
from tests.served_model import Listen, Outer, Served, serve

STATES = [f"Parcel {number} is late and the customer is angry, again." for number in range(11)]
LONG = "word " * 600
QUESTIONS: dict[str, dict[str, Any]] = {
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "team": {
        "type": "choice",
        "instructions": "Which team answers it?",
        "criteria": {"money": "refunds", "parcels": None, "others": None},
    },
    "anger": {
        "type": "score",
        "instructions": "How angry is the customer?",
        "criteria": ["not at all", "a little", "very"],
    },
}


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A decision model."""
    folder = make_laya(tmp_path_factory.mktemp("bulk") / "laya")
    async with serve(folder, "laya", listen, outer) as one:
        yield one


class Watched:
    """A service whose requests for decisions are kept, and that may call its weights otherwise."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.bodies = list[Any]()
        self.weights: bytes | None = None

    @property
    def states(self) -> list[str]:
        """The states that were asked about."""
        return [body["state"] for body in self.bodies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def heard() -> Message:
            message = await receive()
            if scope["path"] == "/v1/systemone" and message.get("body"):
                self.bodies.append(orjson.loads(message["body"]))
            return message

        async def said(message: Message) -> None:
            if self.weights and message["type"] == "http.response.start":
                message["headers"] = [
                    (name, self.weights if name == b"x-headlight-weights" else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        await self._app(scope, heard, said)


@pytest_asyncio.fixture
async def watched(
    served: Served, listen: Listen, outer: Outer
) -> AsyncIterator[tuple[Watched, str]]:
    """The decision model behind a layer that sees its requests, and the address of both."""
    layer = Watched(outer(served.replica))
    async with listen(layer) as url:
        yield layer, url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with questions and states as lines; few are asked, read and written at a time."""
    monkeypatch.setattr(decisions, "AT_ONCE", 3)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    (tmp_path / "questions.json").write_bytes(orjson.dumps(QUESTIONS))
    fill(tmp_path, STATES)
    return tmp_path


def fill(folder: Path, lines: list[Any]) -> None:
    """Write the states as lines of JSON."""
    folder.joinpath("in.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


async def run(
    folder: Path, url: str, *more: str, file: str = "in.jsonl", out: str = "out.parquet"
) -> tuple[int, str]:
    """Ask about a file of a folder: status, and the last line of what it said."""
    paths = ("--file", str(folder / file), "--out", str(folder / out), "--url", url)
    questions = ("--questions", str(folder / "questions.json"))

    def invoke() -> tuple[int, str]:
        done = CliRunner().invoke(main, ["encode", *paths, *questions, *more])
        return done.exit_code, (done.output.splitlines() or [""])[-1]

    said = await asyncio.to_thread(invoke)
    gc.collect()  # a traceback holds the rows so far, and these the lock of their file
    return said


async def test_each_row_has_the_answers_about_its_state_alone(folder: Path, served: Served) -> None:
    """Of lines, a column of states and one for each question, with the numbers of the route."""
    status, said = await run(folder, served.url)

    assert (status, said) == (0, f"11 rows in {folder / 'out.parquet'}")
    written = pq.read_table(folder / "out.parquet")
    assert written.column_names == ["state", "urgent", "team", "anger"]
    assert written["state"].to_pylist() == STATES
    for state, row in zip(STATES, written.to_pylist(), strict=True):
        told = (await served.post("/v1/systemone", state=state, questions=QUESTIONS))["answers"]
        for name in QUESTIONS:
            expected = {key: value for key, value in told[name].items() if key in row[name]}
            assert row[name] == {**expected, "truncated": False}
    assert set(row["team"]) == {"choice", "confidence", "probabilities", "truncated"}
    assert set(row["anger"]) == {"score", "confidence", "probabilities", "truncated"}
    origin = json.loads(written.schema.metadata[b"headlight"])
    assert json.loads(origin["questions"]) == QUESTIONS and origin["source_lines"] == "11"


@pytest.mark.parametrize("method", ["alone", "input"])
async def test_a_reason_has_the_strongest_words_of_the_state(
    folder: Path, served: Served, method: str
) -> None:
    """Three at most, those that speak for the answer, strongest first."""
    await run(folder, served.url, "--reason", method)

    body = {"state": STATES[7], "questions": QUESTIONS, "reason": {"method": method}}
    told = (await served.post("/v1/systemone", **body))["answers"]
    row = pq.read_table(folder / "out.parquet").to_pylist()[7]
    for name in QUESTIONS:
        units = told[name]["reason"]["parts"][-1]["units"]
        best = sorted((unit for unit in units if unit["share"] > 0), key=lambda u: -u["share"])
        assert row[name]["reason"] == [
            {"text": unit["text"], "share": unit["share"]} for unit in best[:3]
        ]


async def test_columns_of_parquet_are_kept_and_a_column_of_csv_is_read(
    folder: Path, served: Served
) -> None:
    """The answers are the same however the states are given."""
    given = pa.table({"id": range(11), "text": STATES})
    pq.write_table(given, folder / "in.parquet", row_group_size=3)
    folder.joinpath("in.csv").write_text("id,text\n" + "".join(f'7,"{s}"\n' for s in STATES))

    await run(folder, served.url)
    both = [
        await run(folder, served.url, "--column", "text", file=name, out=f"{name}.out.parquet")
        for name in ("in.parquet", "in.csv")
    ]

    assert [status for status, _ in both] == [0, 0], both
    lines, kept, read = (
        pq.read_table(folder / name)
        for name in ("out.parquet", "in.parquet.out.parquet", "in.csv.out.parquet")
    )
    assert kept.select(["id", "text"]).equals(given)
    for name in QUESTIONS:
        assert kept[name].to_pylist() == read[name].to_pylist() == lines[name].to_pylist()


async def test_what_is_done_is_kept_where_a_state_does_not_fit(
    folder: Path, watched: tuple[Watched, str]
) -> None:
    """Its line is named; with --truncate the job goes on, and the file has the same bytes."""
    layer, url = watched
    fill(folder, [*STATES[:7], LONG, *STATES[7:]])

    refused = await run(folder, url)
    before = layer.states[:]
    resumed = await run(folder, url, "--truncate", "right")
    after = layer.states[len(before) :]
    written = (folder / "out.parquet").read_bytes()
    (folder / "out.parquet").unlink()
    await run(folder, url, "--truncate", "right")

    assert refused[0] == 1
    assert refused[1].startswith("headlight: line 8: It has 1,80")
    assert refused[1].endswith("(sequence_too_long); the work so far is kept")
    assert resumed[0] == 0 and sorted(after) == sorted([LONG, *STATES[7:]])
    assert (folder / "out.parquet").read_bytes() == written
    rows = pq.read_table(folder / "out.parquet").to_pylist()
    assert [row["team"]["truncated"] for row in rows] == [False] * 7 + [True] + [False] * 4


async def test_answers_of_other_questions_or_another_model_are_not_mixed(
    folder: Path, watched: tuple[Watched, str]
) -> None:
    """Neither while they are asked for, nor by a command that goes on."""
    layer, url = watched
    fill(folder, [*STATES[:7], LONG])
    await run(folder, url)

    layer.weights = b"sha256:000000000000"
    model = await run(folder, url, "--truncate", "right")
    questions = {**QUESTIONS, "urgent": {"type": "noul", "instructions": "Is it late?"}}
    (folder / "questions.json").write_bytes(orjson.dumps(questions))
    other = await run(folder, url, "--truncate", "right")

    assert model[0] == 1 and "weights changed from sha256" in model[1]
    assert other[0] == 2 and "belongs to another job: questions was" in other[1]
    assert not (folder / "out.parquet").exists()


async def test_a_question_that_the_service_refuses_is_named_and_no_line(
    folder: Path, served: Served
) -> None:
    """It would be refused for every state."""
    wrong = {"team": {**QUESTIONS["team"], "criteria": {"money": None}}}
    (folder / "questions.json").write_bytes(orjson.dumps(wrong))

    status, line = await run(folder, served.url)

    assert status == 1 and "questions.team.criteria: " in line and "line" not in line


@pytest.mark.parametrize(
    ("questions", "more", "out", "said"),
    [
        (b"[1]", (), "out.parquet", "holds no JSON object of questions by name"),
        (b'{"a": {"type": "score"}}', (), "out.parquet", "holds no JSON object of questions"),
        (b'{"state": {"type": "noul"}}', (), "out.parquet", "has a column 'state' already"),
        (None, (), "out.npy", "with --questions, --out must end in .parquet"),
        (None, ("--precision", "int8"), "out.parquet", "--questions and --precision exclude"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    folder: Path,
    watched: tuple[Watched, str],
    questions: bytes | None,
    more: tuple[str, ...],
    out: str,
    said: str,
) -> None:
    """In one line."""
    layer, url = watched
    if questions:
        (folder / "questions.json").write_bytes(questions)

    status, line = await run(folder, url, *more, out=out)

    assert status == 2 and said in line, line
    assert layer.bodies == []
    assert sorted(os.listdir(folder)) == ["in.jsonl", "questions.json"]


async def test_a_pair_is_no_state(folder: Path, watched: tuple[Watched, str]) -> None:
    """Refused by its line before anything is sent."""
    layer, url = watched
    fill(folder, [*STATES, {"text": "a dog", "pair": "a cat"}])

    status, line = await run(folder, url)

    assert status == 2 and "line 12: a state is one text" in line
    assert layer.bodies == []


def test_a_reason_needs_questions() -> None:
    """And pyarrow is not asked for before."""
    command = ["encode", "--file", "a.txt", "--out", "b.parquet", "--reason", "alone"]

    done = CliRunner().invoke(main, command)

    assert done.exit_code == 2 and "--reason also needs --questions" in done.stderr
