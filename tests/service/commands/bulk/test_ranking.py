"""`headlight heads --corpus FILE --head L5H11`, against the real replica."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result

from model.maps.choices import STATISTIC_FIELDS
from service.cli import main

ROOT = Path(__file__).parents[4]
WORDS = "all is well and the dog ate the food because it was hungry".split()
TEXTS = [" ".join(WORDS[i % 11 : i % 11 + 2 + i * 7 % 11]) + f" {i}" for i in range(53)]
LITTLE = {"max_sequences": 5}  # so that the file takes eleven requests
HEAD, LAYER, NUMBER = "L5H11", 5, 11


class Folder:
    """A folder with a corpus, and the command that ranks it."""

    def __init__(self, path: Path) -> None:
        self.corpus, self.saved, self.cache = path / "texts.jsonl", path / "a.json", path / "cache"
        self.fill(TEXTS)

    def fill(self, texts: list[Any]) -> None:
        """Write the corpus."""
        self.corpus.write_text("".join(json.dumps(text) + "\n" for text in texts))

    def command(self, url: str, *more: str) -> list[str]:
        """The arguments of `headlight`."""
        asked = ["--corpus", str(self.corpus), "--head", HEAD, "--statistic", "distance"]
        return ["heads", *asked, "--json", str(self.saved), "--url", url, *more]

    async def run(self, url: str, *more: str, **how: Any) -> Result:
        """Run it in this process."""
        return await asyncio.to_thread(
            CliRunner().invoke, main, self.command(url, *more), catch_exceptions=False, **how
        )

    async def start(self, url: str) -> Process:
        """Run it in another."""
        command = [sys.executable, "-m", "service.cli", *self.command(url)]
        return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)

    @property
    def answer(self) -> dict[str, Any]:
        """What was written."""
        answer: dict[str, Any] = json.loads(self.saved.read_text())
        return answer

    @property
    def numbers(self) -> list[int]:
        """Which lines are listed, in order."""
        return [row["number"] for row in self.answer["rows"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder with 53 texts and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Folder(tmp_path)


async def attention(client: httpx.AsyncClient, given: Any, **asked: Any) -> Any:
    """What POST /v1/encode answers of the head to one input alone, sent without our client."""
    body = {"inputs": [given], "attention": {"heads": HEAD, **asked}}
    return (await client.post("/v1/encode", json=body)).json()["data"][0]


async def statistic(client: httpx.AsyncClient, given: Any, name: str) -> float:
    """One statistic, exactly."""
    told = (await attention(client, given, form="stats"))["attention"]["stats"]
    return float(np.float32(told["values"][str(LAYER)][str(NUMBER)][STATISTIC_FIELDS.index(name)]))


def sent(layer: Any) -> list[str]:
    """Every text whose statistics were asked for, in order."""
    return [
        text
        for body in layer.bodies
        if body["attention"]["form"] == "stats"
        for text in body["inputs"]
    ]


@pytest.mark.parametrize("order", ["highest", "lowest"])
async def test_the_best_texts_are_those_that_the_api_gives_the_best_values(
    folder: Folder, address: str, client: httpx.AsyncClient, order: str
) -> None:
    """Of strings, objects and pairs; values to the bit, equal ones in the order of the file."""
    pair = {"text": "a dog", "pair": "a cat sleeps in the sun all day"}
    texts = [*TEXTS[:17], TEXTS[3], "All is well", pair]
    folder.fill([*texts[:-2], {"text": texts[-2], "id": 7}, pair])

    said = await folder.run(address, "--top", "11", *(["--lowest"] if order == "lowest" else []))

    values = [await statistic(client, text, "distance") for text in texts]
    sign = 1 if order == "lowest" else -1
    ranked = sorted(range(len(texts)), key=lambda index: (sign * values[index], index))[:11]
    assert said.exit_code == 0, said.output
    assert folder.numbers == [index + 1 for index in ranked]
    assert [row["value"] for row in folder.answer["rows"]] == [values[index] for index in ranked]
    assert folder.answer["order"] == order and folder.answer["texts"] == len(texts)
    assert f"{HEAD} of all-MiniLM-L6-v2: {order} distance, 11 of 20 lines" in said.stdout


async def test_each_text_comes_with_its_strongest_pairs_of_words(
    folder: Folder, address: str, client: httpx.AsyncClient
) -> None:
    """As the text writes them, between words alone, found in the whole map."""
    text = "An Unbelievable dog ate the food because it was hungry"
    pair = {"text": "Dogs bark", "pair": "Trees fall"}
    folder.fill([text, pair])

    said = await folder.run(address)

    rows = {row["number"]: row for row in folder.answer["rows"]}
    told = (await attention(client, text, level="word", specials="drop"))["attention"]
    whole = np.array(told["maps"][str(LAYER)][str(NUMBER)])
    words = text.split()
    assert whole.shape == (len(words), len(words))
    best = [np.unravel_index(at, whole.shape) for at in np.argsort(-whole, axis=None)[:3]]
    assert [(one["query"], one["key"]) for one in rows[1]["pairs"]] == [
        (words[query], words[key]) for query, key in best
    ]
    assert [one["value"] for one in rows[1]["pairs"]] == pytest.approx(
        [whole[at] for at in best], abs=1e-6
    )
    assert {one[side] for one in rows[2]["pairs"] for side in ("query", "key")} <= {
        "Dogs",
        "bark",
        "Trees",
        "fall",
    }
    assert (rows[2]["text"], rows[2]["pair"]) == ("Dogs bark", "Trees fall")
    first = rows[1]["pairs"][0]
    assert f"{first['query']} > {first['key']} {first['value']:.2f}" in said.stdout


@pytest.mark.prove
async def test_what_was_measured_before_a_kill_is_not_measured_again(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """At most the request in flight; the answer is that of a job that was not killed."""
    lines = [*TEXTS[:3], " ", *TEXTS[4:]]  # one without a word
    folder.fill(lines)
    layer, killed = failing(limits=LITTLE), asyncio.Event()
    ours = layer.app

    async def held(scope: Any, receive: Any, send: Any) -> None:
        if len(layer.bodies) == 5 and not killed.is_set():
            process.send_signal(signal.SIGKILL)
            await killed.wait()
        await ours(scope, receive, send)

    layer.app = held
    async with listen(layer) as url:
        process = await folder.start(url)
        await process.communicate()
        killed.set()
        assert len(sent(layer)) == 25 and not folder.saved.exists()
        (bookmark,) = (folder.cache / "headlight").iterdir()
        again = await folder.run(url)
        resumed, texts = folder.answer, sent(layer)
        bookmark.mkdir()
        (bookmark / "rows").touch()
        whole = await folder.run(url)

    assert process.returncode == -signal.SIGKILL
    assert (again.exit_code, whole.exit_code) == (0, 0)
    assert texts == [*lines[:25], *lines[20:]]
    assert resumed == folder.answer
    assert (len(resumed["rows"]), resumed["unranked"]) == (50, 1)
    assert sent(layer) == [*texts, *lines], "a bookmark without a row begins at the first text"
    assert list((folder.cache / "headlight").iterdir()) == []


async def test_each_job_has_a_bookmark_of_its_own(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """Another question or another file goes on from none of the others."""
    layer = failing(*[(422, {})] * 4)

    async with listen(layer) as url:
        await folder.run(url)
        await folder.run(url)
        await folder.run(url, "--top", "7")
        folder.fill(TEXTS[:7])
        await folder.run(url)

    assert len(list((folder.cache / "headlight").iterdir())) == 3


async def test_texts_cut_elsewhere_are_another_job(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """A service that cuts at another length makes other values; texts that fit keep theirs."""
    layer = failing(*[(422, {})] * 4)

    async with listen(layer) as url:
        for more in ((), ("--truncate", "right")):
            for most in (256, 17):
                layer.says = {"max_tokens": most}
                await folder.run(url, *more)

    assert len(list((folder.cache / "headlight").iterdir())) == 1 + 2


async def test_a_text_without_a_word_is_counted_and_not_ranked(
    folder: Folder, address: str
) -> None:
    """Special tokens alone do not show what the head does with words."""
    folder.fill(["All is well", " ", "a dog"])

    said = await folder.run(address, "--statistic", "sep")
    alone = folder.answer
    folder.fill([" "])
    none = await folder.run(address)

    assert sorted(row["number"] for row in alone["rows"]) == [1, 3] and alone["unranked"] == 1
    assert "Not ranked: 1 line without a word" in said.stdout
    assert none.exit_code == 0 and folder.answer["rows"] == []


async def test_names_and_texts_are_printed_as_they_are(folder: Folder, address: str) -> None:
    """No bracket is taken for markup, and no control character reaches the terminal."""
    folder.corpus = folder.corpus.with_name("a[") / "b].jsonl"
    folder.corpus.parent.mkdir()
    folder.fill(["[/red] dog \x1b]0;owned\x07\x9b2J", "All is well"])

    said = await folder.run(address)

    shown = "".join(said.stdout.split())
    assert said.exit_code == 0, said.output
    assert f"of{folder.corpus}" in shown and "[/red]dog\ufffd]0;owned\ufffd\ufffd2J" in shown
    assert not {"\x1b", "\x07", "\x9b"} & {*said.stdout}


async def test_a_column_from_stdin_is_ranked_by_records(folder: Folder, address: str) -> None:
    """Long texts are cut where the command says so, and the answer says which were."""
    table = 'id,text\n7,a dog\n8,"a cat,\na dog"\n9,' + "well " * 300 + "\n"
    more = ("--corpus", "-", "--format", "csv", "--column", "text")

    refused = await folder.run(address, *more, input=table)
    cut = await folder.run(address, *more, "--truncate", "right", input=table)

    assert refused.exit_code == 1
    assert "record 3: it has 302 tokens" in refused.stderr.splitlines()[-1]
    assert cut.exit_code == 0 and "3 of 3 records of stdin" in cut.stdout
    assert {row["number"]: row["truncated"] for row in folder.answer["rows"]} == {
        1: False,
        2: False,
        3: True,
    }


REFUSED = {
    "no such layer": (("--head", "L6H0"), "all-MiniLM-L6-v2 has no head L6H0: its layers are 0"),
    "no such head": (("--head", "L0H12"), "has no head L0H12: its layers are 0 to 5, its heads"),
    "no head": (("--head", "5.11"), "--head must be a layer and a head such as L5H11, got '5.11'"),
    "no file": (("--corpus", "none.jsonl"), "none.jsonl: No such file or directory"),
    "a model": (("--model", "x"), "--head and --model exclude each other"),
    "no column": (("--column", "1"), "--column is for csv, tsv and parquet"),
    "no url": (("--url", "nowhere"), "'nowhere' is not an address"),
}


@pytest.mark.parametrize(("more", "line"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_job_that_cannot_be_done_is_refused_before_it_begins(
    folder: Folder, failing: Any, listen: Any, more: tuple[str, ...], line: str
) -> None:
    """In one line; nothing is asked and nothing is kept."""
    layer = failing()

    async with listen(layer) as url:
        said = await folder.run(url, *more)

    assert said.exit_code in (1, 2) and said.stdout == ""
    assert line in said.stderr and said.stderr.count("\n") == 1
    assert layer.bodies == [] and not list(folder.cache.rglob("*.json"))


async def test_a_bad_line_is_refused_by_its_number_before_anything_is_asked(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """Though it is the last."""
    folder.fill([*TEXTS, {"text": "a dog", "relation": "doer"}])
    layer = failing()

    async with listen(layer) as url:
        said = await folder.run(url)

    assert (
        said.exit_code == 2
        and f"{folder.corpus}: line 54: relation is an unknown field" in said.stderr
    )
    assert layer.bodies == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--top", "3"], "--top also needs --head"),
        (["--lowest"], "--lowest also needs --head"),
        (["--head", HEAD], "--head also needs --corpus"),
        (["--head", HEAD, "--corpus", "a.jsonl"], "--head also needs --statistic"),
    ],
)
async def test_half_a_ranking_is_refused(options: list[str], line: str) -> None:
    """And never taken for a survey of all heads."""
    said = CliRunner().invoke(main, ["heads", *options])

    assert (said.exit_code, said.stdout) == (2, "") and line in said.stderr


async def test_a_cache_that_cannot_be_written_ends_the_job_before_it_begins(
    folder: Folder, failing: Any, listen: Any
) -> None:
    """A job that could not be resumed would say so after hours."""
    folder.cache.touch()
    layer = failing()

    async with listen(layer) as url:
        said = await folder.run(url)

    assert said.exit_code == 1 and str(folder.cache) in said.stderr
    assert layer.bodies == []
