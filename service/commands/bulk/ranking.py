"""`headlight heads --corpus FILE --head L5H11`: the texts in which a head does most of something.

Every text's number is asked for, and only the best are held, as lines and values. Then the file is
read once more for these texts, and the words that the head leads between are asked for.

Interrupted, it leaves a bookmark, and the same command goes on from there. The numbers are those of
the form stats of POST /v1/encode, bit for bit.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from headlight_client import Client
from headlight_client.answers import check_origin
from service.commands.bulk import lines, listing, words
from service.commands.bulk.best import Best
from service.commands.bulk.bookmark import Bookmark
from service.commands.bulk.lines import File, Source
from service.commands.bulk.listing import Ranking, Row
from service.commands.bulk.question import Question
from service.commands.bulk.service import answers, connected
from service.heads import cache


def rank(url: str, key: str | None, file: File, question: Question, saved: Path | None) -> None:
    """Rank the texts of a file, or go on with it, and print the best.

    Args:
        saved: where to write them as JSON, besides.

    Raises:
        Unusable, Stopped: in a line, why not.
        OSError: a file cannot be read or written.
    """
    folder = cache.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with connected(url, key, file) as (client, info), file.lasting(folder) as lasting:
        question.check(info)
        job = Job(client, lines.check(lasting, info), question, info)
        job.measure()
        ranking = Ranking(file, job.origin, question, job.source.lines, job.unranked, job.rows())
    Console().print(listing.table(ranking))
    if saved:
        saved.write_bytes(orjson.dumps(listing.facts(ranking), option=orjson.OPT_INDENT_2))
    job.bookmark.remove()


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
        self.source, self._client, self._question = source, client, question
        self.origin = {name: info[name] for name in ("model", "weights", "numerics")}
        self.origin |= source.origin
        # where texts are cut; those that fit have the same value wherever longer ones would be
        cut = {} if question.truncate == "refuse" else {"max_tokens": info["max_tokens"]}
        self.bookmark = Bookmark({**self.origin, **question.facts, **cut})
        state = self.bookmark.read() or {"done": 0, "unranked": 0, "best": []}
        self._done, self.unranked = state["done"], state["unranked"]
        self._best = Best(question.top, lowest=question.lowest, ranked=state["best"])
        self._mark()

    def measure(self) -> None:
        """Ask for the number of each text that an earlier run has not, and hold the best."""
        parts = answers(
            self._client,
            self.source,
            self._done,
            self.origin,
            pooled=False,
            attention=self._question.attention,
            truncate=self._question.truncate,
        )
        with closing(parts):
            for part in parts:
                for item in part.items:
                    self._add(self._question.value(item))
                self._mark()

    def rows(self) -> list[Row]:
        """The best texts with their words, the best first."""
        ranked = self._best.ranked
        if not ranked:
            return []
        numbers = {number for number, _ in ranked}
        texts = {n: text for n, text in enumerate(self.source.texts(0), 1) if n in numbers}
        answer = self._client.encode(
            [texts[number] for number, _ in ranked],
            pooled=False,
            attention=words.attention(self._question.layer, self._question.head),
            truncate=self._question.truncate,
        )
        check_origin(answer.origin, self.origin)
        return [
            Row(number, value, texts[number], item.truncated, words.strongest(item, texts[number]))
            for (number, value), item in zip(ranked, answer.items, strict=True)
        ]

    def _add(self, value: float | None) -> None:
        """Take the next text in."""
        self._done += 1
        if value is None:
            self.unranked += 1
        else:
            self._best.add(self._done, value)

    def _mark(self) -> None:
        self.bookmark.write(
            {"done": self._done, "unranked": self.unranked, "best": self._best.ranked}
        )
