"""Pictures: a map of one head or of two texts, words by their shares, and what each head does.

matplotlib is imported only when a picture is asked for. Colour never stands alone: every cell
carries its number or badge. A map has no background and grey letters, so that a page may be light
or dark; its cells are light cards with dark numbers, or dark ones with light numbers, on either.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headlight_client.roles import (
    MORE_ROLES_MARK,
    Facts,
    heads_by_layer,
    relation_label,
    role_badge,
    word_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE_SUFFIXES = (".png", ".svg")
MATPLOTLIB_MISSING = "matplotlib is missing (the package's extra plot): pip install matplotlib"
NO_FONT = "no font here has some of the text's letters; an .svg keeps them"
DPI, NOTEBOOK_DPI = 160, 100  # pixels per inch of a PNG, and of one that a notebook keeps
# letters stay letters, the same picture is the same file, and a token may be $
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headlight",
    "text.parse_math": False,
}
WORD_PIECE = re.compile("^(##|\u2581|\u0120)")  # marks of tokens, no part of their words
# Of a map
INK_COLOUR = "#76797e"  # as far from white as from black
# Colours of a cell from 0 to 1, and from 0 to -1, evenly apart: those of the service's page
BLUES = ((255, 255, 255), (199, 220, 240), (108, 168, 210), (33, 104, 168), (8, 41, 92))
ORANGES = ((255, 255, 255), (252, 221, 193), (246, 172, 107), (214, 108, 28), (120, 50, 5))
DARK_INK, LIGHT_INK = "#0b0d10", "#ffffff"
MIDDLE_LUMINANCE = 0.179  # above it dark ink is read more easily than white
LEGEND_SHARES = (0.0, 0.05, 0.25, 0.5, 1.0)
SMALL_SHARE = 0.05  # below this share a cell has no number
MOST_TOKENS = 128  # along a side: 9,000 pixels
MOST_LETTERS = 24  # of a label
# Of words
LETTER_INCHES = 0.085  # width of one of LETTER_SIZE points, in a font whose letters are alike
LETTER_SIZE, LINE_LETTERS = 9.5, 84
WORD_LINE_INCHES = 0.46  # height of a line of words, with their numbers below
NUMBER_LETTERS = 4  # the width that a number below a word takes
MOST_WORDS = 1000  # of a picture: 6,000 pixels

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


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, which a notebook shows.

    Args:
        transparent: whether it has no background.
    """

    figure: "Figure"
    transparent: bool = False

    def __repr__(self) -> str:
        return f"Picture({self.figure.axes[0].get_title('left')!r})"

    def save(self, path: Path | str) -> None:
        """Write a .png, or an .svg, whose letters are drawn with the reader's fonts.

        Raises:
            ValueError: the name ends in neither, or no font here has some letter of a .png.
            OSError: the file cannot be written.
        """
        check_picture(Path(path))
        made = self._render(Path(path).suffix.lower().removeprefix("."), DPI)
        Path(path).write_bytes(made)

    def _repr_png_(self) -> bytes:
        """Return the picture as a notebook asks for it."""
        return self._render("png", NOTEBOOK_DPI)

    def _render(self, form: str, dpi: int) -> bytes:
        """Return the picture in a format, png or svg; `dpi` is of a png."""
        from matplotlib import rc_context

        file = BytesIO()
        how: dict[str, Any] = {"dpi": dpi, "transparent": self.transparent, "bbox_inches": "tight"}
        if form == "svg":  # without the date, the same picture is the same file
            how["metadata"] = {"Date": None}
        with rc_context(STYLE), warnings.catch_warnings():
            warnings.simplefilter("ignore" if form == "svg" else "error", UserWarning)
            try:
                self.figure.savefig(file, format=form, **how)
            except UserWarning as warning:
                raise ValueError(NO_FONT) from warning
        return file.getvalue()


def check_picture(path: Path, name: str = "a picture") -> None:
    """Check that a picture can be made, and saved to a path, which messages call `name`.

    Raises:
        ValueError: it ends in none of PICTURE_SUFFIXES.
        ImportError: matplotlib is missing.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise ValueError(f"{name} must end in {' or '.join(PICTURE_SUFFIXES)}, got {path}")
    if find_spec("matplotlib") is None:
        raise ImportError(MATPLOTLIB_MISSING)


def draw_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    largest: float | None = None,
) -> Picture:
    """Draw a map: a row for each query, a column for each key, and a legend of its colours.

    Args:
        rows, columns: what they stand for.
        values: (rows, columns).
        largest: value, with either sign, of the deepest colour; those below 0 have another one.
            Without it values are shares from 0 to 1, whose colour is that of their square root.

    Raises:
        ValueError: there are more rows or columns than a picture holds.
        ImportError: matplotlib is missing.
    """
    most = max(len(rows), len(columns))
    if most > MOST_TOKENS:
        raise ValueError(f"a picture holds {MOST_TOKENS} tokens; this text has {most}")
    columns, rows = [*map(_shorten, columns)], [*map(_shorten, rows)]
    with _new_grid(MAP_CELL_INCHES, columns, rows, INK_COLOUR) as (figure, axes):
        axes.set_title(title, loc="left", color=INK_COLOUR, fontsize=10)
        axes.tick_params(axis="x", rotation=90)
        for row, numbers in enumerate(values):
            for column, value in enumerate(numbers):
                small = abs(value) < SMALL_SHARE * (largest or 1.0)
                _draw_value(axes, column, row, value, largest, numbered=not small)
        _draw_legend(axes, len(rows) + 0.6, largest)
    return Picture(figure, transparent=True)


def _draw_legend(axes: "Axes", y: float, largest: float | None) -> None:
    """Draw cells of some values at row y, each with its number."""
    values = LEGEND_SHARES
    if largest is not None:
        values = (-largest, -largest / 2, 0.0, largest / 2, largest)
    for column, value in enumerate(values):
        _draw_value(axes, column, y, value, largest, numbered=True)
    said = "share of its row" if largest is None else "what is added"
    _draw_text(axes, len(values) + 0.3, y + 0.5, said, INK_COLOUR, size=8, ha="left")


def _draw_value(
    axes: "Axes", x: float, y: float, value: float, largest: float | None, *, numbered: bool
) -> None:
    """Draw the cell of a value at column x and row y."""
    share = max(0.0, value) ** 0.5 if largest is None else value / largest
    _draw_square(axes, x, y, 1, share_colour(share), edgecolor=INK_COLOUR, linewidth=0.3)
    if numbered:
        _draw_text(axes, x + 0.5, y + 0.5, f"{value:.2f}", number_colour(share), size=8)


def draw_words(title: str, parts: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Picture:
    """Draw words in lines, coloured by their shares, with the numbers that are not small below.

    Args:
        parts: each begins a line, below its name: its words with their shares.

    Raises:
        ValueError: there are more words than a picture holds.
        ImportError: matplotlib is missing.
    """
    words = [word for _, part in parts for word in part]
    if len(words) > MOST_WORDS:
        raise ValueError(f"a picture holds {MOST_WORDS} words; this answer has {len(words)}")
    largest = max((abs(share) for _, share in words), default=0.0) or 1.0
    lines = [(name, line) for name, part in parts for line in _break_lines(part)]
    with _new_figure(LETTER_INCHES * LINE_LETTERS, WORD_LINE_INCHES * len(lines)) as figure:
        axes = figure.add_axes((0, 0, 1, 1), frameon=False)
        axes.set(xlim=(0, LINE_LETTERS), ylim=(len(lines), 0), xticks=[], yticks=[])
        axes.set_title(title, loc="left", color=INK_COLOUR, fontsize=10)
        before = None
        for row, (name, line) in enumerate(lines):
            if name != before:
                _draw_text(axes, -1, row + 0.33, _shorten(name), INK_COLOUR, ha="right")
            before = name
            for column, word, share in line:
                _draw_word(axes, column, row, word, share, share / largest)
    return Picture(figure, transparent=True)


def _break_lines(part: Sequence[tuple[str, float]]) -> list[list[tuple[int, str, float]]]:
    """Return the lines of a part's words, each with its column."""
    lines, column = list[list[tuple[int, str, float]]]([[]]), 0
    for word, share in part:
        word = word if len(word) < LINE_LETTERS else f"{word[: LINE_LETTERS - 2]}\u2026"
        width = max(len(word), NUMBER_LETTERS) + 1
        if column + width > LINE_LETTERS and lines[-1]:
            lines.append([])
            column = 0
        lines[-1].append((column, word, share))
        column += width
    return lines


def _draw_word(axes: "Axes", column: int, row: int, word: str, share: float, depth: float) -> None:
    """Draw a word on its colour at a column and row, and its share below unless it is small."""
    from matplotlib.patches import Rectangle

    width, colour = max(len(word), NUMBER_LETTERS) + 0.6, share_colour(depth)
    box = Rectangle((column, row + 0.1), width, 0.46, facecolor=colour, clip_on=False)
    box.set(edgecolor=INK_COLOUR, linewidth=0.3)
    axes.add_patch(box)
    font = {"family": "monospace", "size": LETTER_SIZE}
    _draw_text(axes, column + width / 2, row + 0.34, word, number_colour(depth), **font)
    if abs(depth) >= SMALL_SHARE:
        _draw_text(axes, column + width / 2, row + 0.74, f"{share:+.2f}", INK_COLOUR, size=7)


def label_units(tokens: Sequence[str | None], facts: Facts) -> list[str]:
    """Return the label of each row of a map: its token, or the tokens of its word as one.

    Args:
        facts: of the answer: axis, the units that are rows, and spans, the tokens of each unit;
            without them each token is a row.
    """
    spans = facts.get("spans") or [(place, place + 1) for place in range(len(tokens))]
    return [
        "".join(
            WORD_PIECE.sub("", token or "") if last - first > 1 else token or ""
            for token in tokens[first:last]
        )
        for first, last in (spans[unit] for unit in facts.get("axis", range(len(spans))))
    ]


def share_colour(share: float) -> str:
    """Return the colour of a cell, #rrggbb, the deeper the larger its share, from -1 to 1."""
    return "#" + "".join(f"{part:02x}" for part in _mix_colour(share))


def number_colour(share: float) -> str:
    """Return the colour of the number in a cell, #rrggbb: white where the cell is dark."""
    channels = [part / 255 for part in _mix_colour(share)]
    linear = [
        part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]  # WCAG 2.2's
    return DARK_INK if luminance > MIDDLE_LUMINANCE else LIGHT_INK


def _mix_colour(share: float) -> list[int]:
    """Return the colour of a cell as red, green and blue, 0 to 255."""
    ramp, place = BLUES if share >= 0 else ORANGES, min(1.0, abs(share)) * (len(BLUES) - 1)
    low = min(len(ramp) - 2, int(place))
    ends = zip(ramp[low], ramp[low + 1], strict=True)
    return [round(start + (end - start) * (place - low)) for start, end in ends]


class LegendLine(NamedTuple):
    """A line of the legend below the grid, and the colour it explains, if it explains one."""

    colour: str | None
    text: str


def draw_heads(survey: Facts) -> Picture:
    """Draw what each head does: a row for each layer, a column for each head.

    Raises:
        ImportError: matplotlib is missing.
    """
    rows, lines = heads_by_layer(survey), explain_colours(survey)
    columns = [f"H{head['head']}" for head in rows[0]]
    layers = [f"L{row[0]['layer']}" for row in rows]
    with _new_grid(SURVEY_CELL_INCHES, columns, layers) as (figure, axes):
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
    return Picture(figure)


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
def _new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Yield a new figure of a size in inches."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MATPLOTLIB_MISSING) from error

    with rc_context(STYLE):
        yield Figure(figsize=(width, height))


@contextmanager
def _new_grid(
    side: float, columns: Sequence[str], rows: Sequence[str], ink: str = "black"
) -> Iterator[tuple["Figure", "Axes"]]:
    """Yield a new figure with axes whose unit cells have these columns and rows.

    Args:
        side: of a cell, in inches.
        ink: colour of the labels.
    """
    with _new_figure(side * len(columns), side * len(rows)) as figure:
        axes = figure.add_axes((0, 0, 1, 1), frameon=False)
        axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
        axes.set_xticks([column + 0.5 for column in range(len(columns))], columns)
        axes.set_yticks([row + 0.5 for row in range(len(rows))], rows)
        axes.tick_params(length=0, labelsize=9, labelcolor=ink, labeltop=True, labelbottom=False)
        yield figure, axes


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
