"""`headlight heads --corpus FILE --head L5H11`: the texts in which a head does most of something.

Every text's number is asked for, and only the best are held, as lines and values. Then the file is
read once more for these texts, and the words that the head leads between are asked for.

Interrupted, it leaves a bookmark in the user's cache, and the same command goes on from there. The
bookmark is replaced whole, so it holds however the job ends; another job has another one. The
numbers are those of the form stats of POST /v1/encode, bit for bit.
"""

import hashlib
import heapq
import math
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from headlight_client import Client, Item
from headlight_client.answers import check_origin
from model.maps.choices import FIELDS
from service.commands.bulk.jobs import PATIENCE_SECONDS, Truncate, answers, connected, origin_of
from service.commands.bulk.source import File, Source, Texts, check
from service.commands.terminal import Unusable, plain
from service.heads import cache

TOP = 50  # texts of a ranking, unless another number is given
PAIRS = 3  # strongest of a text; as many keys of each row hold them
MOST_LETTERS = 200  # of a text in the table; JSON has all of it
DIGITS = 16  # of the digest in a bookmark's name


@dataclass(frozen=True, slots=True)
class Question:
    """A number that a head has in each text.

    Args:
        layer, head: both counted from 0.
        statistic: one of model.maps.choices.FIELDS.
        top: how many texts are listed.
        lowest: whether those with the smallest values, instead of the largest.
    """

    layer: int
    head: int
    statistic: str
    top: int
    lowest: bool
    truncate: Truncate

    @property
    def facts(self) -> dict[str, Any]:
        """Describe it by name: equal facts are the same question."""
        return {
            "head": f"L{self.layer}H{self.head}",
            "statistic": self.statistic,
            "order": "lowest" if self.lowest else "highest",
            "top": self.top,
            "truncate": self.truncate,
        }

    @property
    def heads(self) -> dict[str, list[int]]:
        """Name the head as POST /v1/encode does."""
        return {str(self.layer): [self.head]}

    def check(self, info: Mapping[str, Any]) -> None:
        """Check that the model has the head.

        Args:
            info: the answer of GET /info.

        Raises:
            Unusable: the model lacks it; the message says which heads it has.
        """
        layers, heads = info["layers"], info["heads"]
        if self.layer >= layers or self.head >= heads:
            raise Unusable(
                f"{info['model']} has no head {self.facts['head']}: "
                f"its layers are 0 to {layers - 1}, its heads 0 to {heads - 1}"
            )

    def value(self, item: Item) -> float | None:
        """Return the number of one text; None where it has no word, or nothing is averaged."""
        if item.attention is None or item.special is None:
            raise RuntimeError("an answer without attention: this is a bug")
        value = float(item.attention.stats[self.layer][0, FIELDS.index(self.statistic)])
        return None if all(item.special) or math.isnan(value) else value


def rank(url: str, key: str | None, file: File, question: Question, saved: Path | None) -> None:
    """Rank the texts of a file, or go on with it, and print the best.

    Args:
        saved: where to write them as JSON, too.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    folder = cache.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with connected(url, key, PATIENCE_SECONDS) as (client, info), file.lasting(folder) as kept:
        question.check(info)
        job = Job(client, check(kept, info), question, info)
        job.measure()
        found = job.found()
    Console().print(table(found, file))
    if saved:
        saved.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    job.bookmark.unlink(missing_ok=True)


class Job:
    """One question, asked about every text of a file.

    Args:
        info: the answer of GET /info.

    Raises:
        OSError: the bookmark cannot be written.
    """

    def __init__(
        self, client: Client, source: Source, question: Question, info: dict[str, Any]
    ) -> None:
        self._client, self._source, self._question = client, source, question
        self._origin = origin_of(info) | source.origin
        # where texts are cut; those that fit have the same value wherever longer ones would be
        cut = {} if question.truncate == "refuse" else {"max_tokens": info["max_tokens"]}
        self._asked = {**self._origin, **question.facts, **cut}
        asked = orjson.dumps(self._asked, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(asked).hexdigest()[:DIGITS]
        self.bookmark = cache.folder() / f"ranking-{digest}.json"
        # best: number and value of each text, the best first
        self._state = self._read() or {"done": 0, "unranked": 0, "best": []}
        self._mark()

    def measure(self) -> None:
        """Ask for the number of each text that an earlier run has not, and hold the best."""
        parts = answers(
            self._client,
            self._source,
            self._state["done"],
            self._origin,
            pooled=False,
            attention={"heads": self._question.heads, "form": "stats"},
            truncate=self._question.truncate,
        )
        with closing(parts):
            for part in parts:
                self._add([self._question.value(item) for item in part.items])

    def found(self) -> dict[str, Any]:
        """Describe the best texts with their words, the best first, and what made the numbers."""
        return {
            **self._origin,
            **self._question.facts,
            "texts": self._source.lines,
            "unranked": self._state["unranked"],
            "rows": self._rows() if self._state["best"] else [],
        }

    def _rows(self) -> list[dict[str, Any]]:
        best = self._state["best"]
        numbers = {number for number, _ in best}
        texts = {n: text for n, text in enumerate(self._source.texts(0), 1) if n in numbers}
        heads, words = self._question.heads, {"level": "word", "specials": "drop"}
        answer = self._client.encode(
            [texts[number] for number, _ in best],
            pooled=False,
            attention={"heads": heads, "form": "top", "k": PAIRS, **words},
            truncate=self._question.truncate,
        )
        check_origin(answer.origin, self._origin)
        return [
            {
                "number": number,
                "value": value,
                **_fields(texts[number]),
                "truncated": item.truncated,
                "pairs": strongest(item, texts[number]),
            }
            for (number, value), item in zip(best, answer.items, strict=True)
        ]

    def _add(self, values: list[float | None]) -> None:
        """Take the next texts in, and mark it; of equal values, those that came first stay."""
        sign = 1 if self._question.lowest else -1
        state, done = self._state, self._state["done"]
        new = [(n, value) for n, value in enumerate(values, done + 1) if value is not None]
        state["best"] = heapq.nsmallest(
            self._question.top, [*state["best"], *new], key=lambda each: (sign * each[1], each[0])
        )
        state["done"] += len(values)
        state["unranked"] += len(values) - len(new)
        self._mark()

    def _read(self) -> dict[str, Any] | None:
        """Read the bookmark, if there is one of this job."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            entry = orjson.loads(self.bookmark.read_bytes())
            if entry["job"] == self._asked:
                return dict(entry["state"])
        return None

    def _mark(self) -> None:
        cache.write(self.bookmark, orjson.dumps({"job": self._asked, "state": self._state}))


def strongest(item: Item, texts: Texts) -> list[dict[str, Any]]:
    """Return the strongest pairs of words, strongest first, equal ones in the order of the text."""
    if item.attention is None:
        raise RuntimeError("an answer without attention: this is a bug")
    (edges,) = item.attention.edges.values()
    spans = item.attention.facts.get("spans") or [(i, i + 1) for i in range(len(item.tokens or ()))]
    axis = item.attention.facts.get("axis", range(len(spans)))
    pairs = [
        (float(value), query, int(key))
        for query, keys, values in zip(axis, edges.keys, edges.values, strict=True)
        for key, value in zip(keys, values, strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[0])
    names = [_word(item, texts, *span) for span in spans]
    return [
        {"query": names[query], "key": names[key], "value": value}
        for value, query, key in pairs[:PAIRS]
    ]


def _word(item: Item, texts: Texts, first: int, last: int) -> str:
    """Return the letters of some tokens; of a prompt, which is no part of the text, the tokens."""
    if item.tokens is None or item.offsets is None:
        raise RuntimeError("an answer of attention without tokens: this is a bug")
    segment = item.segments[first] if item.segments else 0
    text = texts if isinstance(texts, str) else texts[segment]
    start, end = item.offsets[first][0], item.offsets[last - 1][1]
    return text[start:end] or " ".join(token or "" for token in item.tokens[first:last])


def table(found: Mapping[str, Any], file: File) -> Table:
    """Draw a row for each text, the best first."""
    rows, unranked = found["rows"], found["unranked"]
    title = (
        f"{found['head']} of {found['model']}: {found['order']} {found['statistic']}, "
        f"{len(rows)} of {found['texts']} {file.unit}s of {file.name}"
    )
    grid = Table(title=plain(title), title_justify="left", caption_justify="left")
    if unranked:
        without = f"{unranked} {file.unit}" + "s" * (unranked > 1)
        grid.caption = f"Not ranked: {without} without a word, or with nothing to average over."
    for name in (file.unit, found["statistic"]):
        grid.add_column(name, justify="right")
    for name in ("text", "strongest pairs of words"):
        grid.add_column(name)
    for row in rows:
        looks = [f"{pair['query']} > {pair['key']} {pair['value']:.2f}" for pair in row["pairs"]]
        text = " | ".join(row[name] for name in ("text", "pair") if name in row)
        if len(text) > MOST_LETTERS:
            text = f"{text[: MOST_LETTERS - 1]}\u2026"
        number, value = str(row["number"]), f"{row['value']:.4g}"
        grid.add_row(number, value, plain(text), plain("\n".join(looks)))
    return grid


def _fields(texts: Texts) -> dict[str, str]:
    return dict(zip(("text", "pair"), (texts,) if isinstance(texts, str) else texts, strict=False))
