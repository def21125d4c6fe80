"""One head's map as a picture, PNG or SVG: a row for each query, a column for each key.

The background is transparent and the letters are grey, so that a page may be light or dark;
cells are light cards with dark numbers, or dark ones with light numbers, on either.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.commands.pictures.formats import DPI, CannotDraw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#76797e"  # as far from white as from black
PALE, DEEP = (0xF1, 0xF4, 0xF9), (0x0B, 0x3D, 0x91)  # of a share of 0 and of 1
DARKER = 0.67  # from this share on a cell's number is white

CELL, EDGE = 0.44, 0.15  # inches: a cell's side, and around all
LETTER = 0.085  # inches of a label's letter, about
TITLE = 0.45  # inches above the labels
SMALL = 0.05  # a share below which no number stands
MOST_TOKENS = 128  # along a side: 9,000 pixels
MOST_LETTERS = 24  # of a label


def draw(title: str, tokens: Sequence[str], shares: Sequence[Sequence[float]], path: Path) -> None:
    """Write the picture, in the format that the file's name ends in.

    Args:
        shares: (query, key); each row sums to 1.

    Raises:
        CannotDraw: there are more tokens than a picture holds, or letters that no font here has.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if len(tokens) > MOST_TOKENS:
        raise CannotDraw(f"a picture holds {MOST_TOKENS} tokens; this text has {len(tokens)}")
    labels = [_short(token) for token in tokens]
    margin = EDGE + LETTER * (max(map(len, labels)) + 1)
    side = CELL * len(tokens)
    wide, tall = max(margin + side, LETTER * len(title)) + EDGE, TITLE + margin + side + EDGE
    # letters stay letters, and a token may be $
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "headlight", "text.parse_math": False}
    ):
        figure = Figure(figsize=(wide, tall))
        axes = figure.add_axes((0, 0, 1, 1))  # in inches, from the upper left corner
        axes.set(xlim=(0, wide), ylim=(tall, 0))
        axes.axis("off")
        axes.text(EDGE, 0.3, title, color=INK, fontsize=10)
        _cells(axes, margin, TITLE + margin, labels, shares)
        _save(figure, path)


def _cells(
    axes: "Axes", x: float, y: float, labels: Sequence[str], shares: Sequence[Sequence[float]]
) -> None:
    """The map, its upper left corner at a place, with its tokens along two sides."""
    for place, (label, row) in enumerate(zip(labels, shares, strict=True)):
        middle, gap = (place + 0.5) * CELL, 0.06
        _label(axes, x - gap, y + middle, label, ha="right", va="center")
        _label(axes, x + middle, y - gap, label, ha="center", va="bottom", rotation=90)
        for key, share in enumerate(row):
            _cell(axes, x + key * CELL, y + place * CELL, share)


def _save(figure: "Figure", path: Path) -> None:
    """Write a figure; a letter that no font here has is refused, but where the reader has fonts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if path.suffix.lower() == ".svg" else "error", UserWarning)
        try:
            figure.savefig(path, dpi=DPI, transparent=True)
        except UserWarning as warning:
            reason = "no font here has some of the text's letters; an .svg keeps them"
            raise CannotDraw(reason) from warning


def colour(share: float) -> str:
    """Of a cell, the deeper the larger its share."""
    mixed = (round(pale + (deep - pale) * share) for pale, deep in zip(PALE, DEEP, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink(share: float) -> str:
    """Of a cell's number."""
    return "#ffffff" if share >= DARKER else "#0b0d10"


def _cell(axes: "Axes", x: float, y: float, share: float) -> None:
    """One share: its colour, and its number where it is not small."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=colour(share), edgecolor=INK, lw=0.3))
    if share >= SMALL:
        middle = (x + CELL / 2, y + CELL / 2)
        axes.text(*middle, f"{share:.2f}", color=ink(share), fontsize=8, ha="center", va="center")


def _short(token: str) -> str:
    """A label, with dots where it is cut."""
    return token if len(token) <= MOST_LETTERS else f"{token[: MOST_LETTERS - 1]}\u2026"


def _label(axes: "Axes", x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, color=INK, fontsize=9, **how)
