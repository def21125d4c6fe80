"""Layers x heads as a picture, PNG or SVG: what each head does.

Colour never stands alone: every cell carries its badge and score.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.commands.grid import MORE, Facts, badge, label, layers, title
from service.commands.pictures.formats import DPI

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind eyes tell apart; greys for what most heads do.
# A relation has the colour of its kind.
COLOURS = {
    "previous": "#56b4e9",
    "next": "#e69f00",
    "self": "#f0e442",
    "positional": "#cc79a7",
    "delimiter sink": "#c8c8c8",
    "broad": "#ececec",
    "coreference": "#d55e00",
    "grammar": "#009e73",
    "syntax": "#0072b2",
}
OTHER, NONE = "#333333", "#ffffff"  # a relation of the user's own; no role
DARK = ("#d55e00", "#009e73", "#0072b2", OTHER)  # letters on these are white
EDGE = "#9a9a9a"

CELL, LINE, EDGES = 0.6, 0.2, 0.55  # inches: a cell's side, a line of text, around all
NARROWEST = 9.0  # inches; the lines below the grid need them
ABOVE = 1.05  # inches for the title and the names of the heads


class Line(NamedTuple):
    """A line below the grid, and the colour it explains."""

    colour: str | None
    text: str


def draw(survey: Facts, path: Path) -> None:
    """Write the picture, in the format that the file's name ends in."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows, lines = layers(survey), legend(survey)
    grid = len(rows[0]) * CELL, len(rows) * CELL
    wide, tall = max(NARROWEST, grid[0] + 2 * EDGES), ABOVE + grid[1] + (len(lines) + 2) * LINE
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "headlight"}):  # letters stay letters
        figure = Figure(figsize=(wide, tall))
        whole = figure.add_axes((0, 0, 1, 1))  # in inches, from the upper left corner
        whole.set(xlim=(0, wide), ylim=(tall, 0))
        whole.axis("off")
        _name(whole, survey)
        for layer, row in enumerate(rows):
            for place, head in enumerate(row):
                _cell(whole, EDGES + place * CELL, ABOVE + layer * CELL, head, survey)
        for number, line in enumerate(lines, 1):
            _line(whole, ABOVE + grid[1] + number * LINE, line)
        figure.savefig(path, dpi=DPI)


def legend(survey: Facts) -> list[Line]:
    """What the colours mean, with the numbers behind them; then each relation's verdict."""
    counts = Counter(head["role"] for head in survey["heads"])
    example = {head["role"]: head for head in survey["heads"]}
    lines = [
        Line(
            COLOURS[role],
            f"{role}: {_count(counts[role])}; scores at least {threshold:.2f}, where a head that "
            f"looks everywhere alike scores {example[role]['baseline']:.2f}",
        )
        for role, threshold in survey["thresholds"].items()
        if counts[role]
    ]
    lines.append(Line(NONE, f"no role: {_count(counts[None])}"))
    lines += [_verdict(name, verdict) for name, verdict in survey["relations"].items()]
    return [*lines, Line(None, f"{MORE} after a role: the head fills another too")]


def _verdict(relation: str, verdict: Facts) -> Line:
    """What the controls say of a relation."""
    name = label(relation, verdict)
    if verdict["candidate"] is None:
        return Line(None, f"{name}: {verdict['found']}; {verdict['reason']}")
    colour = None if verdict["head"] is None else COLOURS.get(verdict["kind"], OTHER)
    return Line(
        colour,
        f"{name}: {verdict['found']}; on {verdict['controls']} controls "
        f"{verdict['candidate']} is right in {verdict['score']:.0%}, "
        f"the best blind guess in {verdict['baseline']:.0%}, "
        f"and {verdict['threshold']:.0%} are needed",
    )


def _count(heads: int) -> str:
    return "1 head" if heads == 1 else f"{heads} heads"


def _name(axes: "Axes", survey: Facts) -> None:
    """The title, and the names of heads and layers along the grid."""
    rows = layers(survey)
    subject, corpus = title(survey).split("\n")
    axes.text(EDGES, 0.32, subject, fontsize=12, weight="bold")
    axes.text(EDGES, 0.56, corpus, fontsize=9)
    for place, head in enumerate(rows[0]):
        _text(axes, EDGES + (place + 0.5) * CELL, ABOVE - 0.12, f"H{head['head']}")
    for layer, row in enumerate(rows):
        _text(axes, EDGES / 2, ABOVE + (layer + 0.5) * CELL, f"L{row[0]['layer']}")


def _cell(axes: "Axes", x: float, y: float, head: Facts, survey: Facts) -> None:
    """One head: its colour, badge and score."""
    colour = _colour(head["role"], survey)
    _square(axes, x, y, CELL, colour)
    if head["role"]:
        ink = "white" if colour in DARK else "black"
        _text(axes, x + CELL / 2, y + 0.4 * CELL, badge(head), ink)
        _text(axes, x + CELL / 2, y + 0.73 * CELL, f"{head['score']:.2f}", ink, 7)


def _line(axes: "Axes", y: float, line: Line) -> None:
    """One line below the grid, with its colour before it."""
    if line.colour:
        _square(axes, EDGES, y - LINE * 0.4, LINE * 0.7, line.colour)
    axes.text(EDGES + LINE * 1.2, y, line.text, fontsize=8, va="center")


def _square(axes: "Axes", x: float, y: float, side: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), side, side, facecolor=colour, edgecolor=EDGE, linewidth=0.6))


def _text(axes: "Axes", x: float, y: float, text: str, ink: str = "black", size: int = 9) -> None:
    axes.text(x, y, text, color=ink, fontsize=size, ha="center", va="center")


def _colour(role: str | None, survey: Facts) -> str:
    if role is None:
        return NONE
    relation = survey["relations"].get(role)
    return COLOURS.get(relation["kind"], OTHER) if relation else COLOURS[role]
