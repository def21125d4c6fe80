"""`headlight space compare`: the bundled model beside itself, and beside random weights."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from scipy.stats import spearmanr

from headlight_client import AsyncClient
from service.cli import main
from service.commands.bulk import comparison, neighbours
from service.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = "all is well and the dog ate the food because it was hungry".split()
TEXTS = [f"{' '.join(WORDS[: 1 + i * 7 % 13])} {i}" for i in range(23)]
LITTLE = {"max_sequences": 5}  # so that a side takes five requests
K = comparison.NEIGHBOURS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def other(base: Replica, listen: Any, outer: Any) -> AsyncIterator[str]:
    """Where random weights answer, with vectors of another size."""
    async with listen(outer(base)) as url:
        yield url


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an interrupted comparison leaves its vectors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headlight"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """23 texts."""
    return write(tmp_path / "texts.jsonl", TEXTS)


def write(path: Path, lines: list[Any]) -> Path:
    """Write lines of JSON."""
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


async def run(*words: object) -> Result:
    """The command's end, while the services answer on this loop."""
    given = ["space", "compare", *map(str, words)]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


async def found(*words: object) -> Any:
    """What it tells programs."""
    ended = await run(*words, "--json")
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout)


async def vectors(url: str) -> Any:
    """A service's vectors of the texts, at length 1 in float64."""
    async with AsyncClient(url) as client:
        pooled = (await client.encode(TEXTS)).pooled
    assert pooled is not None
    unit = pooled.astype(np.float64)
    return unit / np.linalg.norm(unit, axis=1, keepdims=True)


def left(kept: Path) -> list[Path]:
    """What lies there."""
    return list(kept.iterdir())


def said(ended: Result) -> str:
    """The last line of a command's errors."""
    return ended.stderr.splitlines()[-1]


async def test_a_service_beside_itself_has_the_same_neighbours(
    address: str, file: Path, kept: Path, client: Any
) -> None:
    """1.0 and 1.0; both sides read as many tokens; nothing is left behind."""
    counted = (await client.post("/v1/encode", json={"inputs": TEXTS})).json()["usage"]["tokens"]

    told = await found(address, address, "--file", file)

    assert (told["overlap"], told["correlation"], told["moved"]) == (1.0, 1.0, [])
    assert told["overlap_by_chance"] == K / 22 and told["shared"] == [0] * K + [23]
    assert (told["texts"], told["duplicates"], told["pairs"]) == (23, 0, 253)
    for side in told["sides"].values():
        assert (side["tokens"], side["truncated"], side["dimensions"]) == (counted, 0, 384)
        assert side["seconds"] > 0 and side["model_seconds"] > 0
    assert left(kept) == []


async def test_another_model_is_measured_as_brute_force_measures_it(
    address: str, other: str, file: Path
) -> None:
    """Its vectors have another size; what moved is listed with both lists."""
    told = await found(address, other, "--file", file)

    sides = [await vectors(url) for url in (address, other)]
    alike = [unit @ unit.T for unit in sides]
    nearest = [np.argsort(3 * np.eye(23) - each, axis=1)[:, :K] for each in alike]
    shared = [len({*a} & {*b}) for a, b in zip(*map(np.ndarray.tolist, nearest), strict=True)]
    pairs = np.triu_indices(23, 1)
    expected = spearmanr(*(each[pairs] for each in alike))[0]
    assert told["overlap"] == pytest.approx(np.mean(shared) / K) and told["overlap"] < 0.9
    assert told["correlation"] == pytest.approx(expected, abs=1e-9) and expected < 0.9
    assert [side["dimensions"] for side in told["sides"].values()] == [384, 512]
    assert [each["shared"] for each in told["moved"]] == sorted(shared)[: comparison.MOVED]
    for each in told["moved"]:
        place = each["number"] - 1
        assert (each["text"], each["shared"]) == (TEXTS[place], shared[place])
        for name, places in zip("ab", nearest, strict=True):
            expected_list = [{"number": p + 1, "text": TEXTS[p]} for p in places[place].tolist()]
            assert each["neighbours"][name] == expected_list


async def test_people_read_tables_and_a_picture(
    address: str, other: str, file: Path, tmp_path: Path
) -> None:
    """The numbers, the costs, what moved; and the numbers again on the picture."""
    told = await found(address, other, "--file", file)
    picture = tmp_path / "a.svg"

    ended = await run(address, other, "--file", file, "--plot", picture)

    assert ended.exit_code == 0, ended.stderr
    words = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text("utf-8")))
    for text in (ended.stdout, words):
        assert f"{told['overlap']:.1%} on both sides ({K / 22:.1%} by chance)" in text
        assert f"{told['correlation']:.3f} (Spearman, 253 pairs)" in text
    first = told["moved"][0]
    assert f"{first['number']}: {first['text'][:40]}" in ended.stdout
    assert "mathdefault" not in words


async def test_copies_of_a_text_are_left_out_and_counted(
    address: str, tmp_path: Path, file: Path
) -> None:
    """Each would be the other's nearest neighbour on both sides."""
    twice = write(tmp_path / "twice.jsonl", [TEXTS[0], *TEXTS, {"text": TEXTS[5], "id": 1}])
    once = await found(address, address, "--file", file)

    told = await found(address, address, "--file", twice)
    shown = await run(address, address, "--file", twice)

    assert (told["texts"], told["duplicates"], told["pairs"]) == (23, 2, 253)
    assert told["sides"]["a"]["tokens"] > once["sides"]["a"]["tokens"]  # they were paid for
    assert "23 texts, 2 copies left out\n" in shown.stdout


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (TEXTS[:10], "10 different texts; 10 neighbours of a text need at least 11"),
        ([*TEXTS[:10], *TEXTS[:9]], "10 different texts"),
        ([*TEXTS, ""], "line 24: the text is empty"),
        ([*TEXTS, {"text": "a dog", "pair": "a cat"}], "holds pairs of texts"),
        ([f"{i}" for i in range(31)], "31 texts; a comparison takes at most 30"),
    ],
    ids=["few", "few and copies", "empty", "pairs", "many"],
)
async def test_what_cannot_be_compared_is_refused_before_any_work(
    stumbling: Any,
    listen: Any,
    tmp_path: Path,
    lines: list[Any],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line."""
    layer, bad = stumbling(), write(tmp_path / "bad.jsonl", lines)
    monkeypatch.setattr(comparison, "MOST_TEXTS", 30)

    async with listen(layer) as url:
        ended = await run(url, url, "--file", bad)

    assert ended.exit_code == 2 and why in said(ended)
    assert layer.bodies == []


async def test_eleven_texts_can_be_compared_though_they_tell_nothing(
    address: str, other: str, tmp_path: Path
) -> None:
    """All others are neighbours on any side, and the report says so."""
    eleven = write(tmp_path / "eleven.jsonl", TEXTS[:11])

    ended = await run(address, other, "--file", eleven, "--plot", tmp_path / "a.png")

    assert ended.exit_code == 0, ended.stderr
    assert "100.0% on both sides (100.0% by chance)" in ended.stdout


async def test_a_service_that_is_away_is_waited_for(
    address: str, stumbling: Any, listen: Any, file: Path
) -> None:
    """As `headlight encode --file` does."""
    layer = stumbling((503, {"retry-after": "0"}), None, limits=LITTLE)

    async with listen(layer) as url:
        told = await found(address, url, "--file", file)

    assert told["overlap"] == 1.0 and len(layer.bodies) == 5 + 2


async def test_what_was_done_before_an_interruption_is_not_done_again(
    address: str, stumbling: Any, listen: Any, file: Path, kept: Path
) -> None:
    """Nor are its tokens forgotten."""
    once = await found(address, address, "--file", file)
    layer = stumbling(limits=LITTLE)
    ours, ends = layer.app, [3]

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/encode" and len(layer.bodies) in ends:
            return await layer.stumble((400, {}), send)
        await ours(scope, receive, send)

    layer.app = broken
    async with listen(layer) as url:
        ended = await run(url, address, "--file", file)
        ends.clear()
        told = await found(url, address, "--file", file)

    assert ended.exit_code == 1 and "the work so far is kept" in said(ended) and url in said(ended)
    sent = [text for body in layer.bodies for text in body["inputs"]]
    assert sent == [*TEXTS[:15], *TEXTS[10:]]
    assert told["sides"]["a"]["tokens"] == once["sides"]["a"]["tokens"]
    assert told["overlap"] == 1.0 and left(kept) == []


async def test_a_space_that_changed_between_two_runs_is_refused(
    stumbling: Any, listen: Any, file: Path
) -> None:
    """One side's rows would be of two spaces."""
    layer = stumbling(limits=LITTLE)
    ours = layer.app

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if len(layer.bodies) == 2:
            return await layer.stumble((400, {}), send)
        await ours(scope, receive, send)

    layer.app = broken
    async with listen(layer) as url:
        await run(url, url, "--file", file)
        layer.app, layer.says = ours, {"space": "s1-0123456789abcdef"}
        ended = await run(url, url, "--file", file)

    assert ended.exit_code == 2 and len(layer.bodies) == 2
    assert re.search(r"space was s1-\w+ and is s1-0123456789abcdef; remove it", said(ended))
    assert "--out" not in said(ended)


async def test_a_space_that_changes_in_the_middle_is_refused_by_the_service(
    address: str, stumbling: Any, listen: Any, file: Path
) -> None:
    """Every request says which one it expects."""
    layer = stumbling(says={"space": "s1-0123456789abcdef"})

    async with listen(layer) as url:
        ended = await run(address, url, "--file", file)

    assert ended.exit_code == 1 and "409 space_changed" in said(ended) and url in said(ended)
    assert [head["x-headlight-expect"] for head in layer.headers] == ["s1-0123456789abcdef"]


async def test_each_service_is_sent_its_own_key(
    stumbling: Any, listen: Any, file: Path, tmp_path: Path
) -> None:
    """And not the other's."""
    layers, words = (stumbling(), stumbling()), []
    for name in "ab":
        path = tmp_path / f"key-{name}"
        path.write_text(f"{name * 32}\n")
        words += [f"--key-file-{name}", path]

    async with listen(layers[0]) as one, listen(layers[1]) as two:
        ended = await run(one, two, "--file", file, *words)

    assert ended.exit_code == 0, ended.stderr
    sent = [{head["authorization"] for head in layer.headers} for layer in layers]
    assert sent == [{f"Bearer {'a' * 32}"}, {f"Bearer {'b' * 32}"}]


async def test_drawn_pairs_are_told_with_their_seed(
    address: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the number can be found again."""
    monkeypatch.setattr(neighbours, "MOST_PAIRS", 100)

    told = await found(address, address, "--file", file)
    shown = await run(address, address, "--file", file)

    assert (told["pairs"], told["seed"], told["correlation"]) == (100, neighbours.SEED, 1.0)
    assert "100 pairs drawn at random" in shown.stdout


async def test_a_picture_that_cannot_be_made_is_refused_first(address: str, file: Path) -> None:
    """By its name."""
    ended = await run(address, address, "--file", file, "--plot", "a.gif")

    assert ended.exit_code == 2 and "a picture must end in" in said(ended)
