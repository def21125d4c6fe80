"""A ranking as people read it, and as programs do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.table import Table

from service.commands.bulk.lines import File, Texts
from service.commands.bulk.question import Question
from service.commands.bulk.words import Pair
from service.commands.plain import plain

MOST_LETTERS = 200  # of a text in the table; JSON has all of it


class Row(NamedTuple):
    """One text of a ranking.

    Args:
        number: of its line, or of its record, counted from 1.
        truncated: whether the value is that of a part of it.
    """

    number: int
    value: float
    texts: Texts
    truncated: bool
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best texts of a file.

    Args:
        origin: what made the values, and of what texts.
        count: texts of the file.
        unranked: how many of them have no value.
    """

    file: File
    origin: Mapping[str, str]
    question: Question
    count: int
    unranked: int
    rows: Sequence[Row]


def table(ranking: Ranking) -> Table:
    """A row for each text, the best first."""
    question, unit = ranking.question, ranking.file.unit
    title = (
        f"{question.name} of {ranking.origin['model']}: "
        f"{question.order} {question.statistic}, "
        f"{len(ranking.rows)} of {ranking.count} {unit}s of {ranking.file.name}"
    )
    grid = Table(
        title=plain(title),
        title_justify="left",
        caption=_unranked(ranking),
        caption_justify="left",
    )
    for name in (unit, question.statistic):
        grid.add_column(name, justify="right")
    for name in ("text", "strongest pairs of words"):
        grid.add_column(name)
    for row in ranking.rows:
        looks = "\n".join(f"{pair.query} > {pair.key} {pair.value:.2f}" for pair in row.pairs)
        grid.add_row(str(row.number), f"{row.value:.4g}", plain(_short(row.texts)), plain(looks))
    return grid


def facts(ranking: Ranking) -> dict[str, Any]:
    """All of it, as JSON has it."""
    return {
        **ranking.origin,
        **ranking.question.facts,
        "texts": ranking.count,
        "unranked": ranking.unranked,
        "rows": [_entry(row) for row in ranking.rows],
    }


def _entry(row: Row) -> dict[str, Any]:
    pair = (
        {"text": row.texts}
        if isinstance(row.texts, str)
        else dict(zip(("text", "pair"), row.texts, strict=True))
    )
    return {
        "number": row.number,
        "value": row.value,
        **pair,
        "truncated": row.truncated,
        "pairs": [{"query": query, "key": key, "value": value} for query, key, value in row.pairs],
    }


def _unranked(ranking: Ranking) -> str | None:
    if not ranking.unranked:
        return None
    without = f"{ranking.unranked} {ranking.file.unit}" + "s" * (ranking.unranked > 1)
    return f"Not ranked: {without} without a word, or with nothing to average over."


def _short(texts: Texts) -> str:
    """A text, or both of a pair, with dots where it is cut."""
    text = texts if isinstance(texts, str) else " | ".join(texts)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}\u2026"
