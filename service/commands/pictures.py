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

from service.commands.grid import (
    MORE_ROLES_MARK,
    Facts,
    heads_by_layer,
    relation_label,
    role_badge,
    word_title,
)
from service.commands.terminal import Unusable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE_SUFFIXES = (".png", ".svg")
MATPLOTLIB_MISSING = "matplotlib is missing (the package's extra plot): pip install matplotlib"
NO_FONT = "no font here has some of the text's letters; an .svg keeps them"
DPI = 160  # pixels per inch of a PNG
# Of a map
INK_COLOUR = "#76797e"  # as far from white as from black
PALE_BLUE, DEEP_BLUE = (
    (0xF1, 0xF4, 0xF9),
    (0x0B, 0x3D, 0x91),
)  # of a cell with a share of 0 and of 1
DARKER_FROM = 0.67  # from this share on a cell's number is white
SMALL_SHARE = 0.05  # below this share a cell has no number
MOST_TOKENS = 128  # along a side: 9,000 pixels
MOST_LETTERS = 24  # of a label

# Of a survey: Okabe and Ito's colours, which colour-blind eyes tell apart; greys for what most
# heads do. A relation has the colour of its kind.
ROLE_COLOURS = {
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
OTHER_COLOUR, NO_ROLE_COLOUR = "#333333", "#ffffff"  # a relation of the user's own; no role
DARK_COLOURS = ("#d55e00", "#009e73", "#0072b2", OTHER_COLOUR)  # letters on these are white
RIM_STYLE = {"edgecolor": "#9a9a9a", "linewidth": 0.6}  # of a square's edge
# Side of a cell in a map and in a survey, and height of a line of text
MAP_CELL_INCHES, SURVEY_CELL_INCHES, LINE_INCHES = 0.44, 0.6, 0.2


def check_picture(path: Path) -> None:
    """Check that a picture can be made, before anything is measured for it.

    Raises:
        Unusable: the file's name ends in none of PICTURE_SUFFIXES, or matplotlib is missing.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise Unusable(f"--plot must end in {' or '.join(PICTURE_SUFFIXES)}, got {path}")
    try:
        import matplotlib  # noqa: F401  # whether it is there
    except ImportError as error:
        raise Unusable(MATPLOTLIB_MISSING) from error


def draw_map(
    title: str, tokens: Sequence[str], shares: Sequence[Sequence[float]], path: Path
) -> None:
    """Draw one head's map to a file: a row for each query, a column for each key.

    Args:
        shares: (query, key); each row sums to 1.

    Raises:
        Unusable: there are more tokens than a picture holds, or letters that no font here has.
    """
    if len(tokens) > MOST_TOKENS:
        raise Unusable(f"a picture holds {MOST_TOKENS} tokens; this text has {len(tokens)}")
    labels = [_shorten(token) for token in tokens]
    with _save_grid(MAP_CELL_INCHES, labels, labels, path, INK_COLOUR, transparent=True) as axes:
        axes.set_title(title, loc="left", color=INK_COLOUR, fontsize=10)
        axes.tick_params(axis="x", rotation=90)
        for query, row in enumerate(shares):
            for key, share in enumerate(row):
                _draw_square(
                    axes, key, query, 1, share_colour(share), edgecolor=INK_COLOUR, linewidth=0.3
                )
                if share >= SMALL_SHARE:
                    _draw_text(
                        axes, key + 0.5, query + 0.5, f"{share:.2f}", number_colour(share), size=8
                    )


def share_colour(share: float) -> str:
    """Return the colour of a cell, #rrggbb, the deeper the larger its share."""
    mixed = (
        round(pale + (deep - pale) * share) for pale, deep in zip(PALE_BLUE, DEEP_BLUE, strict=True)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)


def number_colour(share: float) -> str:
    """Return the colour of the number in a cell, #rrggbb: white where the cell is dark."""
    return "#ffffff" if share >= DARKER_FROM else "#0b0d10"


class LegendLine(NamedTuple):
    """A line of the legend below the grid, and the colour it explains, if it explains one."""

    colour: str | None
    text: str


def draw_survey(survey: Facts, path: Path) -> None:
    """Draw what each head does to a file: a row for each layer, a column for each head."""
    rows, lines = heads_by_layer(survey), explain_colours(survey)
    columns = [f"H{head['head']}" for head in rows[0]]
    with _save_grid(
        SURVEY_CELL_INCHES, columns, [f"L{row[0]['layer']}" for row in rows], path
    ) as axes:
        axes.set_title(word_title(survey), loc="left", fontsize=10)
        for layer, row in enumerate(rows):
            for column, head in enumerate(row):
                _draw_head(axes, column, layer, head, survey)
        step = LINE_INCHES / SURVEY_CELL_INCHES
        for number, line in enumerate(lines, 2):
            y = len(rows) + number * step
            if line.colour:
                _draw_square(axes, 0, y - 0.4 * step, 0.7 * step, line.colour, **RIM_STYLE)
            _draw_text(axes, 1.2 * step, y, line.text, size=8, ha="left")


def explain_colours(survey: Facts) -> list[LegendLine]:
    """Return the legend: the role of each colour with its numbers, then each relation's verdict."""
    counts = Counter(head["role"] for head in survey["heads"])
    example = {head["role"]: head for head in survey["heads"]}
    lines = [
        LegendLine(
            ROLE_COLOURS[role],
            f"{role}: {_count_heads(counts[role])}; scores at least {threshold:.2f}, where a head "
            f"that looks everywhere alike scores {example[role]['baseline']:.2f}",
        )
        for role, threshold in survey["thresholds"].items()
        if counts[role]
    ]
    lines.append(LegendLine(NO_ROLE_COLOUR, f"no role: {_count_heads(counts[None])}"))
    lines += [_word_verdict(name, verdict) for name, verdict in survey["relations"].items()]
    return [*lines, LegendLine(None, f"{MORE_ROLES_MARK} after a role: the head fills another too")]


def _word_verdict(relation: str, verdict: Facts) -> LegendLine:
    """Return a relation's line of the legend: the head found, and its score on the controls."""
    name = relation_label(relation, verdict)
    if verdict["candidate"] is None:
        return LegendLine(None, f"{name}: {verdict['found']}; {verdict['reason']}")
    colour = None if verdict["head"] is None else ROLE_COLOURS.get(verdict["kind"], OTHER_COLOUR)
    return LegendLine(
        colour,
        f"{name}: {verdict['found']}; on {verdict['controls']} controls "
        f"{verdict['candidate']} is right in {verdict['score']:.0%}, "
        f"the best blind guess in {verdict['baseline']:.0%}, "
        f"and {verdict['threshold']:.0%} are needed",
    )


def _count_heads(heads: int) -> str:
    """Return a number of heads in words."""
    return "1 head" if heads == 1 else f"{heads} heads"


def _draw_head(axes: "Axes", x: float, y: float, head: Facts, survey: Facts) -> None:
    """Draw the cell of one head at column x and row y: its colour, badge and score."""
    role, relation = head["role"], survey["relations"].get(head["role"])
    filled = (
        ROLE_COLOURS.get(relation["kind"], OTHER_COLOUR)
        if relation
        else ROLE_COLOURS.get(role, NO_ROLE_COLOUR)
    )
    _draw_square(axes, x, y, 1, filled, **RIM_STYLE)
    if role:
        letters = "white" if filled in DARK_COLOURS else "black"
        _draw_text(axes, x + 0.5, y + 0.4, role_badge(head), letters)
        _draw_text(axes, x + 0.5, y + 0.73, f"{head['score']:.2f}", letters, size=7)


@contextmanager
def _save_grid(
    side: float,
    columns: Sequence[str],
    rows: Sequence[str],
    path: Path,
    ink: str = "black",
    transparent: bool = False,
) -> Iterator["Axes"]:
    """Yield axes whose unit cells have these columns and rows, then save the picture to `path`.

    Args:
        side: of a cell, in inches.
        ink: colour of the labels.

    Raises:
        Unusable: no font here has some letter; an SVG is figure with the reader's fonts.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # letters stay letters, the same picture is the same file, and a token may be $
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "headlight", "text.parse_math": False}
    ):
        figure = Figure(figsize=(side * len(columns), side * len(rows)))
        axes = figure.add_axes((0, 0, 1, 1), frameon=False)
        axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
        axes.set_xticks([column + 0.5 for column in range(len(columns))], columns)
        axes.set_yticks([row + 0.5 for row in range(len(rows))], rows)
        axes.tick_params(length=0, labelsize=9, labelcolor=ink, labeltop=True, labelbottom=False)
        yield axes
        with warnings.catch_warnings():
            svg = path.suffix.lower() == ".svg"
            warnings.simplefilter("ignore" if svg else "error", UserWarning)
            try:
                figure.savefig(path, dpi=DPI, transparent=transparent, bbox_inches="tight")
            except UserWarning as warning:
                raise Unusable(NO_FONT) from warning


def _draw_square(axes: "Axes", x: float, y: float, side: float, colour: str, **style: Any) -> None:
    """Draw a filled square with its upper left corner at (x, y)."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), side, side, facecolor=colour, clip_on=False, **style))


def _draw_text(
    axes: "Axes", x: float, y: float, text: str, ink: str = "black", **style: Any
) -> None:
    """Draw text centred at (x, y), unless `style` for matplotlib says otherwise."""
    style = {"size": 9, "ha": "center", "va": "center", **style}
    axes.text(x, y, text, color=ink, **style)


def _shorten(token: str) -> str:
    """Return a token as a label, cut to MOST_LETTERS with an ellipsis."""
    return token if len(token) <= MOST_LETTERS else f"{token[: MOST_LETTERS - 1]}\u2026"
