"""Pictures, PNG or SVG: one head's map, and layers x heads with what each head does.

matplotlib is imported only when a picture is asked for. Colour never stands alone: every cell
carries its number or badge. A map has no background and grey letters, so that a page may be light
or dark; its cells are light cards with dark numbers, or dark ones with light numbers, on either.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from service.commands.grid import MORE, Facts, badge, label, layers, title
from service.commands.terminal import Unusable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
MISSING = "matplotlib is missing (the package's extra plot): pip install matplotlib"
NO_FONT = "no font here has some of the text's letters; an .svg keeps them"
DPI = 160
# of a map
INK = "#76797e"  # as far from white as from black
PALE, DEEP = (0xF1, 0xF4, 0xF9), (0x0B, 0x3D, 0x91)  # of a share of 0 and of 1
DARKER = 0.67  # from this share on a cell's number is white
SIDE, EDGE = 0.44, 0.15  # inches: a cell's side, and around all
LETTER = 0.085  # inches of a label's letter, about
TITLE, GAP = 0.45, 0.06  # inches above the labels, and between labels and cells
SMALL = 0.05  # a share below which no number stands
MOST_TOKENS = 128  # along a side: 9,000 pixels
MOST_LETTERS = 24  # of a label

# Of a survey: Okabe and Ito's colours, which colour-blind eyes tell apart; greys for what most
# heads do. A relation has the colour of its kind.
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
RIM = "#9a9a9a"
CELL, LINE, EDGES = 0.6, 0.2, 0.55  # inches: a cell's side, a line of text, around all
NARROWEST = 9.0  # inches; the lines below the grid need them
ABOVE = 1.05  # inches for the title and the names of the heads


def check(path: Path) -> None:
    """Check that a picture can be made, before anything is measured for it.

    Raises:
        Unusable: the file's name ends in none of FORMATS, or matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise Unusable(f"{path.name}: a picture must end in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401  # whether it is there
    except ImportError as error:
        raise Unusable(MISSING) from error


def draw_map(
    title: str, tokens: Sequence[str], shares: Sequence[Sequence[float]], path: Path
) -> None:
    """Draw one head's map: a row for each query, a column for each key.

    Args:
        shares: (query, key); each row sums to 1.

    Raises:
        Unusable: there are more tokens than a picture holds, or letters that no font here has.
    """
    if len(tokens) > MOST_TOKENS:
        raise Unusable(f"a picture holds {MOST_TOKENS} tokens; this text has {len(tokens)}")
    labels = [_short(token) for token in tokens]
    left = EDGE + LETTER * (max(map(len, labels)) + 1)
    top, side = TITLE + left, SIDE * len(tokens)
    wide = max(left + side, LETTER * len(title)) + EDGE
    with _canvas(wide, top + side + EDGE, path, transparent=True) as axes:
        axes.text(EDGE, 0.3, title, color=INK, fontsize=10)
        for place, (name, row) in enumerate(zip(labels, shares, strict=True)):
            middle = (place + 0.5) * SIDE
            _write(axes, left - GAP, top + middle, name, INK, ha="right")
            _write(axes, left + middle, top - GAP, name, INK, va="bottom", rotation=90)
            for key, share in enumerate(row):
                x, y = left + key * SIDE, top + place * SIDE
                _square(axes, x, y, SIDE, colour(share), edgecolor=INK, linewidth=0.3)
                if share >= SMALL:
                    _write(axes, x + SIDE / 2, y + SIDE / 2, f"{share:.2f}", ink(share), size=8)


def colour(share: float) -> str:
    """Colour a cell, the deeper the larger its share."""
    mixed = (round(pale + (deep - pale) * share) for pale, deep in zip(PALE, DEEP, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink(share: float) -> str:
    """Colour a cell's number."""
    return "#ffffff" if share >= DARKER else "#0b0d10"


class Line(NamedTuple):
    """A line below the grid, and the colour it explains."""

    colour: str | None
    text: str


def draw_survey(survey: Facts, path: Path) -> None:
    """Draw what each head does: a row for each layer, a column for each head."""
    rows, lines = layers(survey), legend(survey)
    across, below = len(rows[0]) * CELL, ABOVE + len(rows) * CELL
    tall = below + (len(lines) + 2) * LINE
    with _canvas(max(NARROWEST, across + 2 * EDGES), tall, path) as axes:
        subject, corpus = title(survey).split("\n")
        axes.text(EDGES, 0.32, subject, fontsize=12, weight="bold")
        axes.text(EDGES, 0.56, corpus, fontsize=9)
        for place, head in enumerate(rows[0]):
            _write(axes, EDGES + (place + 0.5) * CELL, ABOVE - 0.12, f"H{head['head']}")
        for layer, row in enumerate(rows):
            y = ABOVE + layer * CELL
            _write(axes, EDGES / 2, y + CELL / 2, f"L{row[0]['layer']}")
            for place, head in enumerate(row):
                _draw_head(axes, EDGES + place * CELL, y, head, survey)
        for number, line in enumerate(lines, 1):
            y = below + number * LINE
            if line.colour:
                _rimmed(axes, EDGES, y - LINE * 0.4, LINE * 0.7, line.colour)
            axes.text(EDGES + LINE * 1.2, y, line.text, fontsize=8, va="center")


def legend(survey: Facts) -> list[Line]:
    """Say what the colours mean, with the numbers behind them; then each relation's verdict."""
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
    """Say how a relation did on its controls."""
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


def _draw_head(axes: "Axes", x: float, y: float, head: Facts, survey: Facts) -> None:
    """Draw one head: its colour, badge and score."""
    role, relation = head["role"], survey["relations"].get(head["role"])
    filled = COLOURS.get(relation["kind"], OTHER) if relation else COLOURS.get(role, NONE)
    _rimmed(axes, x, y, CELL, filled)
    if role:
        letters = "white" if filled in DARK else "black"
        _write(axes, x + CELL / 2, y + 0.4 * CELL, badge(head), letters)
        _write(axes, x + CELL / 2, y + 0.73 * CELL, f"{head['score']:.2f}", letters, size=7)


@contextmanager
def _canvas(wide: float, tall: float, path: Path, transparent: bool = False) -> Iterator["Axes"]:
    """Give axes in inches from the upper left corner, and write what is drawn there.

    Raises:
        Unusable: no font here has some letter; an SVG is drawn with the reader's fonts.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # letters stay letters, the same picture is the same file, and a token may be $
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "headlight", "text.parse_math": False}
    ):
        figure = Figure(figsize=(wide, tall))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, wide), ylim=(tall, 0))
        axes.axis("off")
        yield axes
        with warnings.catch_warnings():
            svg = path.suffix.lower() == ".svg"
            warnings.simplefilter("ignore" if svg else "error", UserWarning)
            try:
                figure.savefig(path, dpi=DPI, transparent=transparent)
            except UserWarning as warning:
                raise Unusable(NO_FONT) from warning


def _rimmed(axes: "Axes", x: float, y: float, side: float, colour: str) -> None:
    _square(axes, x, y, side, colour, edgecolor=RIM, linewidth=0.6)


def _square(axes: "Axes", x: float, y: float, side: float, colour: str, **how: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), side, side, facecolor=colour, **how))


def _write(axes: "Axes", x: float, y: float, text: str, ink: str = "black", **how: Any) -> None:
    how = {"size": 9, "ha": "center", "va": "center", **how}
    axes.text(x, y, text, color=ink, **how)


def _short(token: str) -> str:
    """Return a label, with dots where it is cut."""
    return token if len(token) <= MOST_LETTERS else f"{token[: MOST_LETTERS - 1]}\u2026"
