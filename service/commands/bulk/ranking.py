"""`headlight heads --corpus FILE --head L5H11`: the texts with the highest statistic of a head.

Every text's number is asked for and written to a file of the user's cache, as vectors of one number
are (vectors.py); the same command goes on from there. Then the texts' file is read once more for
the best, and the words that the head leads between are asked for. The numbers are those of the form
stats of POST /v1/encode, bit for bit.
"""

import hashlib
import math
import shutil
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
from service.commands.bulk.jobs import PATIENCE_SECONDS, Truncate, collect_rows, connect, origin_of
from service.commands.bulk.source import Source, Texts, check_lines
from service.commands.bulk.text_file import TextFile
from service.commands.bulk.vectors import VectorFile
from service.commands.terminal import Unusable, strip_control
from service.files import cache

DEFAULT_TOP = 50  # texts of a ranking, unless another number is given
SHOWN_PAIRS = 3  # strongest pairs listed of a text; as many keys of each row hold them
MOST_LETTERS = 200  # of a text in the table; JSON has all of it
SAVED_DIGITS = 16  # of the digest in the name of the file that holds the work so far


@dataclass(frozen=True, slots=True)
class RankingQuestion:
    """What to rank texts by: a statistic of one head.

    Args:
        layer, head: both counted from 0.
        statistic: one of model.maps.choices.STATISTIC_FIELDS.
        top: how many texts are listed.
        lowest: whether those with the smallest values, instead of the largest.
        truncate: what happens to a text that is too long.
    """

    layer: int
    head: int
    statistic: str
    top: int
    lowest: bool
    truncate: Truncate

    @property
    def facts(self) -> dict[str, Any]:
        """Return the question as JSON fields; equal facts are the same question."""
        return {
            "head": f"L{self.layer}H{self.head}",
            "statistic": self.statistic,
            "order": "lowest" if self.lowest else "highest",
            "top": self.top,
            "truncate": self.truncate,
        }

    @property
    def heads(self) -> dict[str, list[int]]:
        """Return the head as `attention.heads` of POST /v1/encode names it."""
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

    def values(self, answer: Encoded) -> Array:
        """Return the statistic of each text, (texts, 1); NaN where nothing could be averaged."""
        return np.array([[self._value(item)] for item in answer.items], np.float32)

    def _value(self, item: Item) -> float:
        """Return the statistic of one text; NaN if it has special tokens only."""
        if item.attention is None or item.special is None:
            raise RuntimeError("an answer without attention: this is a bug")
        value = item.attention.stats[self.layer, self.head][self.statistic]
        return math.nan if all(item.special) else value

    def best(self, values: Array) -> list[int]:
        """Return the indices of the best values, (texts,), best first; equal ones in order."""
        order: list[int] = np.argsort(values if self.lowest else -values, kind="stable").tolist()
        return order[: min(self.top, int(np.sum(~np.isnan(values))))]  # NaN is sorted last


def rank_texts(
    url: str, key: str | None, file: TextFile, question: RankingQuestion, saved: Path | None
) -> None:
    """Rank the texts of a file, resuming an earlier run, and print the best.

    Args:
        saved: where to write them as JSON, too.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    folder = cache.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        connect(url, key, PATIENCE_SECONDS) as (client, info),
        file.as_regular_file(folder) as kept,
    ):
        question.check(info)
        source = check_lines(kept, info)
        origin = origin_of(info) | source.origin
        # where texts are cut; with "refuse" all fit, and the limit changes no value
        cut = {} if question.truncate == "refuse" else {"max_tokens": str(info["max_tokens"])}
        row_origin = origin | {name: str(fact) for name, fact in question.facts.items()} | cut
        digest = hashlib.sha256(orjson.dumps(row_origin, option=orjson.OPT_SORT_KEYS)).hexdigest()
        out = folder / f"ranking-{digest[:SAVED_DIGITS]}.safetensors"
        with closing(VectorFile(out, source.lines, row_origin)) as numbers:
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
            ranking = {
                **origin,
                **question.facts,
                "texts": source.lines,
                "unranked": int(np.sum(np.isnan(values))),
                "rows": _ranking_rows(client, source, question, origin, best, values)
                if best
                else [],
            }
    Console().print(draw_ranking(ranking, file))
    if saved:
        saved.write_bytes(orjson.dumps(ranking, option=orjson.OPT_INDENT_2))
    shutil.rmtree(numbers.partial)


def _ranking_rows(
    client: Client,
    source: Source,
    question: RankingQuestion,
    origin: Mapping[str, str],
    best: Sequence[int],
    values: Array,
) -> list[dict[str, Any]]:
    """Return an entry for each of the best texts, given by index, with its strongest pairs.

    Args:
        origin: what the answer's origin must be.
        values: the statistic of every text, (texts,).
    """
    wanted = set(best)
    texts = {index: text for index, text in enumerate(source.texts(0)) if index in wanted}
    shown = {"form": "top", "k": SHOWN_PAIRS, "level": "word", "specials": "drop"}
    answer = client.encode(
        [texts[index] for index in best],
        pooled=False,
        attention={"heads": question.heads, **shown},
        truncate=question.truncate,
    )
    check_origin(answer.origin, origin)
    return [
        {
            "number": index + 1,
            "value": float(values[index]),
            **_text_fields(texts[index]),
            "truncated": item.truncated,
            "pairs": strongest_pairs(item, texts[index]),
        }
        for index, item in zip(best, answer.items, strict=True)
    ]


def strongest_pairs(item: Item, texts: Texts) -> list[dict[str, Any]]:
    """Return a text's strongest pairs of words, strongest first, equal ones in the text's order."""
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
    names = [_text_of_tokens(item, texts, *span) for span in spans]
    return [
        {"query": names[query], "key": names[key], "value": value}
        for value, query, key in pairs[:SHOWN_PAIRS]
    ]


def _text_of_tokens(item: Item, texts: Texts, first: int, last: int) -> str:
    """Return the text of tokens [first, last), or the tokens where they are of a prompt."""
    if item.tokens is None or item.offsets is None:
        raise RuntimeError("an answer of attention without tokens: this is a bug")
    segment = item.segments[first] if item.segments else 0
    text = texts if isinstance(texts, str) else texts[segment]
    start, end = item.offsets[first][0], item.offsets[last - 1][1]
    return text[start:end] or " ".join(token or "" for token in item.tokens[first:last])


def draw_ranking(ranking: Mapping[str, Any], file: TextFile) -> Table:
    """Return a table with a row for each ranked text, the best first."""
    rows, unranked = ranking["rows"], ranking["unranked"]
    title = (
        f"{ranking['head']} of {ranking['model']}: {ranking['order']} {ranking['statistic']}, "
        f"{len(rows)} of {ranking['texts']} {file.unit}s of {file.name}"
    )
    grid = Table(title=strip_control(title), title_justify="left", caption_justify="left")
    if unranked:
        without = f"{unranked} {file.unit}" + "s" * (unranked > 1)
        grid.caption = f"Not ranked: {without} without a word, or with nothing to average over."
    for name in (file.unit, ranking["statistic"]):
        grid.add_column(name, justify="right")
    for name in ("text", "strongest pairs of words"):
        grid.add_column(name)
    for row in rows:
        pairs = [f"{pair['query']} > {pair['key']} {pair['value']:.2f}" for pair in row["pairs"]]
        text = " | ".join(row[name] for name in ("text", "pair") if name in row)
        if len(text) > MOST_LETTERS:
            text = f"{text[: MOST_LETTERS - 1]}\u2026"
        number, value = str(row["number"]), f"{row['value']:.4g}"
        grid.add_row(number, value, strip_control(text), strip_control("\n".join(pairs)))
    return grid


def _text_fields(texts: Texts) -> dict[str, str]:
    """Return a text as the JSON field text, or a pair as text and pair."""
    return dict(zip(("text", "pair"), (texts,) if isinstance(texts, str) else texts, strict=False))
