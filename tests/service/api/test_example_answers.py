"""What /docs shows as answers was answered: `python -m tests.service.api.test_example_answers`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api import document
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, connected

FILE = Path(document.__file__).with_name("example_answers.json")
MODEL = "all-MiniLM-L6-v2"
MOST_NUMBERS, MOST_ITEMS, MOST_CHARACTERS = 12, 6, 80  # of a list or a text that is shown whole
SHOWN_NUMBERS, SHOWN_ITEMS, SHOWN_CHARACTERS = 3, 2, 48  # of a longer one
DIGITS = 4
# What differs from run to run, or from processor to processor
VARYING = {"id", "request_id", "numerics", "space", "created", "answer_bytes", "int8"}
LARGE = ("/v1/explain", "with its weights")  # it takes seconds


def examples() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every example of the document: its path, its name and what is sent."""
    for path, methods in document.document()["paths"].items():
        body = methods.get("post", {}).get("requestBody", {"content": {}})
        for about in body["content"].values():
            for name, example in about.get("examples", {}).items():
                yield path, name, example


def shorten(value: Any, counts: dict[str, str], place: str = "") -> Any:
    """A value as it is shown; `counts` gets how long each list and text was that is cut."""
    if isinstance(value, dict):
        return {key: shorten(each, counts, f"{place}.{key}") for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS and " " not in value:
        counts[place] = f"{len(value)} characters"
        return value[:SHOWN_CHARACTERS]
    if not isinstance(value, list):
        return value
    numbers = all(isinstance(each, int | float) for each in value)
    most, shown = (MOST_NUMBERS, SHOWN_NUMBERS) if numbers else (MOST_ITEMS, SHOWN_ITEMS)
    if len(value) > most and not all(isinstance(each, str | None) for each in value):
        counts[place] = f"{len(value)} {'numbers' if numbers else 'entries'}"
        value = value[:shown]
    return [shorten(each, counts, f"{place}[]") for each in value]


def word_place(place: str) -> str:
    """Where in an answer something stands, such as .data[].pooled, in words."""
    return "each entry" if place == "[]" else f"`{place.lstrip('.')}`"


async def ask(client: httpx.AsyncClient, path: str, example: dict[str, Any]) -> dict[str, Any]:
    """What is stored of an example: the answer's status, and its JSON, shortened."""
    address = path.format(model=MODEL, version=1)
    query = example.get("x-query", "")
    answer = await client.post(f"{address}?{query}", json=example["value"])
    counts = dict[str, str]()
    value = shorten(answer.json(), counts)
    cut = "; ".join(f"{word_place(place)} has {count}" for place, count in counts.items())
    told = {"status": answer.status_code, "summary": f"{MODEL} answered"}
    return told | ({"description": f"Shortened: {cut}."} if cut else {}) | {"value": value}


async def ask_all() -> dict[str, dict[str, Any]]:
    """The answers to all examples, by path and name."""
    replica = await Replica.start(Settings(device="cpu", threads=2), "replica-1")
    answers: dict[str, dict[str, Any]] = {}
    async with connected(application(replica)) as client:
        for path, name, example in examples():
            answers.setdefault(path, {})[name] = await ask(client, path, example)
    await replica.close()
    return answers


def alike(stored: Any, fresh: Any, key: str = "") -> bool:
    """Whether two answers differ only in what varies."""
    if key in VARYING or key.endswith("_ms"):
        return type(stored) is type(fresh)
    if isinstance(stored, dict) and isinstance(fresh, dict):
        return stored.keys() == fresh.keys() and all(
            alike(stored[name], fresh[name], name) for name in stored
        )
    if isinstance(stored, list) and isinstance(fresh, list):
        return len(stored) == len(fresh) and all(
            alike(*pair, key) for pair in zip(stored, fresh, strict=True)
        )
    if isinstance(stored, float) or isinstance(fresh, float):
        return bool(stored == pytest.approx(fresh, rel=0.01, abs=0.001))
    return bool(stored == fresh)


@pytest.mark.parametrize(
    ("path", "name", "example"),
    [
        pytest.param(
            *row, id=", ".join(row[:2]), marks=pytest.mark.prove if row[:2] == LARGE else ()
        )
        for row in examples()
    ],
)
async def test_the_answer_next_to_an_example_is_the_replicas(
    client: httpx.AsyncClient, path: str, name: str, example: dict[str, Any]
) -> None:
    """But for times, and what follows from the processor."""
    fresh = await ask(client, path, example)

    assert alike(document.ANSWERS[path][name], fresh), fresh


def test_no_answer_is_of_an_example_that_went() -> None:
    """Each is shown next to its example."""
    stored = {(path, name) for path, answers in document.ANSWERS.items() for name in answers}

    assert stored == {(path, name) for path, name, _ in examples()}


def test_an_example_asks_for_vectors_that_one_may_keep() -> None:
    """Who copies one that cuts vectors to a few numbers makes an index of them."""
    for path, name, example in examples():
        assert "dimension" not in json.dumps(example["value"]), (path, name)


def write(answers: dict[str, dict[str, Any]]) -> str:
    """The file: an example a line."""
    paths = [
        f"{json.dumps(path)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in of_path.items())
        + "\n}"
        for path, of_path in answers.items()
    ]
    return "{\n" + ",\n".join(paths) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(write(asyncio.run(ask_all())))
