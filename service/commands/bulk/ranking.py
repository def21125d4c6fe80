"""`headlight heads --corpus FILE --head L5H11`: the texts in which a head does most of something.

Every text's number is asked for and written to a file of the user's cache, as vectors of one number
are (vectors.py); the same command goes on from there. Then the texts' file is read once more for
the best, and the words that the head leads between are asked for. The numbers are those of the form
stats of POST /v1/encode, bit for bit.
"""

import hashlib
import heapq
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from headlight_client import Client, Encoded, Item
from headlight_client.answers import check_origin
from headlight_client.formats import Array
from model.maps.choices import STATISTIC_FIELDS
from service.commands.bulk.jobs import PATIENCE_SECONDS, Truncate, collect_rows, connect, origin_of
from service.commands.bulk.source import Source, TextFile, Texts, check_lines
from service.commands.bulk.vectors import VectorFile
from service.commands.terminal import Unusable, strip_control
from service.engine import cache

DEFAULT_TOP = 50  # texts of a ranking, unless another number is given
SHOWN_PAIRS = 3  # strongest of a text; as many keys of each row hold them
MOST_LETTERS = 200  # of a text in the table; JSON has all of it
SAVED_DIGITS = 16  # of the digest in a bookmark's name


@dataclass(frozen=True, slots=True)
class RankingQuestion:
    """A number that a head has in each text.

    Args:
        layer, head: both counted from 0.
        statistic: one of model.maps.choices.STATISTIC_FIELDS.
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

    def values(self, part: Encoded) -> Array:
        """Return the number of each text, (texts, 1); NaN without a word or anything to average."""
        return np.array([[self._value(item)] for item in part.items])

    def _value(self, item: Item) -> float:
        if item.attention is None or item.special is None:
            raise RuntimeError("an answer without attention: this is a bug")
        value = float(item.attention.stats[self.layer][0, STATISTIC_FIELDS.index(self.statistic)])
        return math.nan if all(item.special) else value

    def best(self, values: Array) -> list[int]:
        """Return the places of the best values, (texts,), the best first; equal ones in order."""
        sign = 1 if self.lowest else -1
        ranked = (place for place, value in enumerate(values) if not math.isnan(value))
        return heapq.nsmallest(self.top, ranked, key=lambda place: float(sign * values[place]))


def rank_texts(
    url: str, key: str | None, file: TextFile, question: RankingQuestion, saved: Path | None
) -> None:
    """Rank the texts of a file, or go on with it, and print the best.

    Args:
        saved: where to write them as JSON, too.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    folder = cache.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with connect(url, key, PATIENCE_SECONDS) as (client, info), file.lasting(folder) as kept:
        question.check(info)
        source = check_lines(kept, info)
        made = origin_of(info) | source.origin
        # where texts are cut; those that fit have the same value wherever longer ones would be
        cut = {} if question.truncate == "refuse" else {"max_tokens": str(info["max_tokens"])}
        asked = made | {name: str(fact) for name, fact in question.facts.items()} | cut
        digest = hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()
        out = folder / f"ranking-{digest[:SAVED_DIGITS]}.safetensors"
        with closing(VectorFile(out, source.lines, asked)) as numbers:
            collect_rows(
                client,
                source,
                numbers,
                question.values,
                pooled=False,
                attention={"heads": question.heads, "form": "stats"},
                truncate=question.truncate,
            )
            values = numbers.read()[:, 0]
            best = question.best(values)
            found = {
                **made,
                **question.facts,
                "texts": source.lines,
                "unranked": sum(map(math.isnan, values)),
                "rows": _word_rows(client, source, question, made, best, values) if best else [],
            }
    Console().print(draw_ranking(found, file))
    if saved:
        saved.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    numbers.partial.unlink(missing_ok=True)


def _word_rows(
    client: Client,
    source: Source,
    question: RankingQuestion,
    made: Mapping[str, str],
    best: Sequence[int],
    values: Array,
) -> list[dict[str, Any]]:
    """Ask for the words of the best texts, by their places in the file."""
    places = set(best)
    texts = {place: text for place, text in enumerate(source.texts(0)) if place in places}
    shown = {"form": "top", "k": SHOWN_PAIRS, "level": "word", "specials": "drop"}
    answer = client.encode(
        [texts[place] for place in best],
        pooled=False,
        attention={"heads": question.heads, **shown},
        truncate=question.truncate,
    )
    check_origin(answer.origin, made)
    return [
        {
            "number": place + 1,
            "value": float(values[place]),
            **_text_fields(texts[place]),
            "truncated": item.truncated,
            "pairs": strongest_pairs(item, texts[place]),
        }
        for place, item in zip(best, answer.items, strict=True)
    ]


def strongest_pairs(item: Item, texts: Texts) -> list[dict[str, Any]]:
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
    names = [_letters(item, texts, *span) for span in spans]
    return [
        {"query": names[query], "key": names[key], "value": value}
        for value, query, key in pairs[:SHOWN_PAIRS]
    ]


def _letters(item: Item, texts: Texts, first: int, last: int) -> str:
    """Return the letters of some tokens; of a prompt, which is no part of the text, the tokens."""
    if item.tokens is None or item.offsets is None:
        raise RuntimeError("an answer of attention without tokens: this is a bug")
    segment = item.segments[first] if item.segments else 0
    text = texts if isinstance(texts, str) else texts[segment]
    start, end = item.offsets[first][0], item.offsets[last - 1][1]
    return text[start:end] or " ".join(token or "" for token in item.tokens[first:last])


def draw_ranking(found: Mapping[str, Any], file: TextFile) -> Table:
    """Draw a row for each text, the best first."""
    rows, unranked = found["rows"], found["unranked"]
    title = (
        f"{found['head']} of {found['model']}: {found['order']} {found['statistic']}, "
        f"{len(rows)} of {found['texts']} {file.unit}s of {file.name}"
    )
    grid = Table(title=strip_control(title), title_justify="left", caption_justify="left")
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
        grid.add_row(number, value, strip_control(text), strip_control("\n".join(looks)))
    return grid


def _text_fields(texts: Texts) -> dict[str, str]:
    return dict(zip(("text", "pair"), (texts,) if isinstance(texts, str) else texts, strict=False))
