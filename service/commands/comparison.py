"""A comparison of two services: its tables in a terminal, and its picture.

Left, how alike each pair of texts is on one side and on the other; right, how many of its nearest
neighbours each text keeps.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.commands import pictures
from service.commands.bulk.comparison import NEIGHBOURS, Comparison, Side
from service.commands.terminal import plain, tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 3  # texts that moved; JSON has more
MOST_LETTERS = 60  # of a text in the table; JSON has all of it
MOST_OF_NAME = 32  # letters of a model's name in the picture
SIZE = (9.0, 4.0)  # inches
CELLS = 60  # along a side of the left panel


def report(found: Comparison, console: Console, *, as_json: bool) -> None:
    """Print a comparison."""
    facts = found.facts
    if as_json:
        return tell(sys.stdout, json.dumps(facts))
    console.print(_sides(facts["sides"]))
    copies = f", {found.duplicates} copies left out" if found.duplicates else ""
    console.print(f"{facts['texts']} texts{copies}", soft_wrap=True)
    console.print(f"{NEIGHBOURS} nearest neighbours: {overlap(found)}", soft_wrap=True)
    console.print(f"rank correlation of likenesses: {correlation(found)}", soft_wrap=True)
    for each in facts["moved"][:SHOWN]:
        console.print(_moved(each))


def overlap(found: Comparison) -> str:
    """Say what share of the neighbours is kept."""
    return f"{found.overlap:.1%} on both sides ({found.chance:.1%} by chance)"


def correlation(found: Comparison) -> str:
    """Say how well the likenesses agree, and of how many pairs."""
    pairs = f"{found.pairs} pairs" + (" drawn at random" if found.sampled else "")
    if found.correlation is None:
        return f"none: on one side all of {pairs} are equally alike"
    return f"{found.correlation:.3f} (Spearman, {pairs})"


def _sides(sides: Mapping[str, Mapping[str, Any]]) -> Table:
    """Draw a column for each side: what it is, and what it took."""
    table = Table("", *(name.upper() for name in sides))
    for fact in ("url", "model", "space", "dimensions", "tokens", "truncated"):
        table.add_row(fact, *(plain(str(side[fact])) for side in sides.values()))
    for fact in ("seconds", "model_seconds"):
        table.add_row(fact.replace("_", " "), *(f"{side[fact]:.1f}" for side in sides.values()))
    return table


def _moved(text: Mapping[str, Any]) -> Table:
    """Draw a column for each side: the neighbours of a text, those of both sides in grey."""
    title = f"{text['number']}: {_short(text['text'])} ({text['shared']} of {NEIGHBOURS} shared)"
    lists = text["neighbours"]
    table = Table(*(name.upper() for name in lists), title=plain(title), title_justify="left")
    numbers = [{one["number"] for one in each} for each in lists.values()]
    both = numbers[0] & numbers[1]
    for row in zip(*lists.values(), strict=True):
        table.add_row(*(_neighbour(one, one["number"] in both) for one in row))
    return table


def _neighbour(one: Mapping[str, Any], both: bool) -> Text:
    text = plain(f"{'=' if both else ' '} {one['number']}: {_short(one['text'])}")
    text.stylize("dim" if both else "")
    return text


def _short(text: str, most: int = MOST_LETTERS) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}\u2026"


def draw(found: Comparison, path: Path) -> None:
    """Draw a comparison, .png or .svg.

    Raises:
        Unusable: no font here has some letter of a model's name.
    """
    with pictures.figure(SIZE, path) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        _draw_likenesses(left, found)
        _draw_shared(right, found)
        figure.tight_layout(w_pad=3)


def _draw_likenesses(axes: "Axes", found: Comparison) -> None:
    """Draw how many pairs are as alike on both sides, in cells."""
    from matplotlib.colors import LogNorm

    one, other = found.sides
    counts, x, y = np.histogram2d(one.likenesses, other.likenesses, CELLS)
    shown = np.ma.masked_equal(counts.T, 0)  # (y, x)
    cells = axes.pcolormesh(x, y, shown, norm=LogNorm(1, max(10, counts.max())), cmap="viridis_r")
    axes.figure.colorbar(cells, ax=axes, label="pairs", format="%d")
    axes.set_title(f"Likeness of pairs: rank correlation\n{correlation(found)}", loc="left", size=9)
    axes.set_xlabel(_axis("A", one))
    axes.set_ylabel(_axis("B", other))


def _axis(name: str, side: Side) -> str:
    model = _short(side.facts["model"], MOST_OF_NAME)
    return f"cosine in {name}: {model}\n{side.dimensions} dimensions"


def _draw_shared(axes: "Axes", found: Comparison) -> None:
    """Draw how many texts keep how many of their neighbours."""
    counts = np.bincount(found.shared, minlength=NEIGHBOURS + 1)
    bars = axes.bar(range(NEIGHBOURS + 1), counts, color=pictures.colour(0.7))
    axes.bar_label(bars, size=8)
    axes.set_xticks(range(NEIGHBOURS + 1))
    axes.set_title(f"Nearest neighbours kept:\n{overlap(found)}", loc="left", size=9)
    axes.set_xlabel(f"of {NEIGHBOURS} neighbours, on both sides")
    axes.set_ylabel("texts")
    axes.spines[["top", "right"]].set_visible(False)
