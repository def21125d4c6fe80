"""Does POST /v1/highlight mark the sentence that answers? Next to ways that need no such route.

    python benchmarks/evidence.py

The set is evidence.jsonl: passages in the public domain, and questions with the one sentence that
answers each; the questions were written before any way was tried, and by one author. A figure is
how often that sentence is the first of a way's order, or among its first three.

    blind       any order, by chance: the exact expectation
    first       the sentences as they stand
    longest     by their characters
    BM25        words in common: Robertson and Zaragoza 2009, k1 1.2, b 0.75; a passage's sentences
                are its collection
    alone       the score of each sentence by itself: the route with "method": "alone"
    left out    the score that the passage loses without each sentence
    highlight   by the shares of the whole passage
    per letter  by those shares, each divided by its sentence's characters

"left out" and "per letter" were added after the others had been measured. From "alone" on, all are
of the bundled model, in float32, through one replica in this process. Behind each figure stands a
95 % interval (Wilson 1927), as if questions about one passage told nothing of each other. Then the
same of passages pruned to a share of their characters: how often the sentence stays.
"""

import argparse
import asyncio
import json
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import httpx
from starlette.types import ASGIApp

from model.text.sentences import sentences
from service.edge.door import Door
from service.replica import Replica
from service.settings import Settings

SET = Path(__file__).parent / "evidence.jsonl"
K1, B = 1.2, 0.75
AT = (1, 3)
SHARES = (0.3, 0.5)  # of characters that a pruned passage keeps
METHODS = ("shares", "alone")


class Question(NamedTuple):
    """A question about a passage.

    Args:
        parts: the passage's sentences.
        answer: the place of the one that answers.
    """

    text: str
    parts: Sequence[str]
    query: str
    answer: int


def read(path: Path = SET) -> list[Question]:
    """Return the questions of a set.

    Raises:
        ValueError: a question's evidence is not one sentence of its passage.
    """
    found = list[Question]()
    for line in path.read_text("utf-8").splitlines():
        passage = json.loads(line)
        text = passage["text"]
        parts = [text[start:end] for start, end in sentences(text)]
        for one in passage["queries"]:
            if parts.count(one["evidence"]) != 1:
                raise ValueError(f"not one sentence of its passage: {one['evidence']!r}")
            answer = parts.index(one["evidence"])
            found.append(Question(text, parts, one["query"], answer))
    return found


def by_scores(scores: Sequence[float]) -> list[int]:
    """Return places by their scores, best first; of equal ones the first."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))


def bm25(query: str, parts: Sequence[str]) -> list[float]:
    """Return how well each part answers by the words that it shares with a query."""
    bags = [Counter(words(part)) for part in parts]
    mean = sum(bag.total() for bag in bags) / len(bags)
    scores = [0.0] * len(bags)
    for word in set(words(query)):
        having = sum(word in bag for bag in bags)
        weight = math.log(1 + (len(bags) - having + 0.5) / (having + 0.5))
        for place, bag in enumerate(bags):
            count, length = bag[word], 1 - B + B * bag.total() / mean
            scores[place] += weight * count * (K1 + 1) / (count + K1 * length)
    return scores


def words(text: str) -> list[str]:
    """Return a text's words in small letters."""
    return re.findall(r"\w+", text.lower())


def interval(hits: float, count: int) -> tuple[float, float]:
    """Return between which rates the true one lies, at 95 %."""
    z, rate = 1.96, hits / count
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    return middle - half, middle + half


async def orders(client: httpx.AsyncClient, one: Question) -> dict[str, list[int]]:
    """Return the sentences of a passage in the order of each way."""
    lacking = [" ".join([*one.parts[:at], *one.parts[at + 1 :]]) for at in range(len(one.parts))]
    body = {"left": one.query, "right": lacking, "form": "score"}
    left_out = await ask(client, "/v1/similarity", body)
    shares, alone = [await marks(client, one, method) for method in METHODS]
    return {
        "first": [*range(len(one.parts))],
        "longest": by_scores([len(part) for part in one.parts]),
        "BM25": by_scores(bm25(one.query, one.parts)),
        "alone": [*alone],
        "left out": by_scores([-right["score"] for right in left_out["right"]]),
        "highlight": [*shares],
        "per letter": by_scores([shares[at] / len(part) for at, part in enumerate(one.parts)]),
    }


async def marks(client: httpx.AsyncClient, one: Question, method: str) -> dict[int, float]:
    """Return what the route says that each sentence is worth, strongest first."""
    asked = {"query": one.query, "documents": [one.text], "top": len(one.parts), "control": False}
    told = await ask(client, "/v1/highlight", {**asked, "method": method})
    return {mark["units"][0]: mark["share"] for mark in told["results"][0]["highlights"]}


async def kept(client: httpx.AsyncClient, one: Question, share: float, method: str) -> bool:
    """Tell whether the sentence that answers stays in the pruned passage."""
    body = {"query": one.query, "documents": [one.text], "prune": share, "control": False}
    told = await ask(client, "/v1/highlight", {**body, "method": method})
    return one.parts[one.answer] in told["results"][0]["pruned"]


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what a route answers."""
    answer = await client.post(path, json=body)
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def show(name: str, hits: Sequence[float], count: int) -> None:
    """Print a row of the table."""
    cells = []
    for number in hits:
        low, high = interval(number, count)
        cells.append(f"{number / count:.2f} ({low:.2f} to {high:.2f})")
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


async def measure(client: httpx.AsyncClient) -> None:
    """Measure and print."""
    questions = read()
    count, places = len(questions), dict[str, list[int]]()
    for one in questions:
        for way, order in (await orders(client, one)).items():
            places.setdefault(way, []).append(order.index(one.answer))
    print(f"{count} questions about {len({one.text for one in questions})} passages\n")
    print("| | first | among three |\n|---|---|---|")
    blind = [sum(min(1, at / len(one.parts)) for one in questions) / count for at in AT]
    print(f"| blind | {' | '.join(f'{rate:.2f}' for rate in blind)} |")
    for way, found in places.items():
        show(way, [sum(place < at for place in found) for at in AT], count)
    for share, method in product(SHARES, METHODS):
        stays = sum([await kept(client, one, share, method) for one in questions])
        print(f"\npruned to {share} by {method}: the sentence stays in {stays} of {count}")


def application(replica: Replica) -> ASGIApp:
    """Return a replica as connections reach it."""

    async def scrape(openmetrics: bool) -> bytes:
        return replica.page(openmetrics)

    return Door(replica, scrape)


async def main() -> None:
    """Serve the bundled model in this process, and measure."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    replica = await Replica.start(Settings(device="cpu", canary_seconds=60), "benchmark-1")
    transport = httpx.ASGITransport(application(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://benchmark") as client:
        await measure(client)
    await replica.close()


if __name__ == "__main__":
    asyncio.run(main())
