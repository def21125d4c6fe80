"""The picture of one map."""

import re
from pathlib import Path

import pytest

from service.commands.pictures import heatmap
from service.commands.pictures.formats import CannotDraw

TOKENS = ["[CLS]", "costs", "$2$", "<b>"]
SHARES = [
    [1.0, 0.0, 0.0, 0.0],
    [0.25, 0.25, 0.5, 0.0],
    [0.0, 0.98, 0.0, 0.02],
    [0.1, 0.2, 0.3, 0.4],
]
PAGES = ("#ffffff", "#0d1117", "#000000")  # a light page, GitHub's dark one, a black one
LEGIBLE = 4.0  # of WCAG's contrast, at these sizes; 3 is asked of large letters, 4.5 of small


def light(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    """How far two colours are apart, 1 to 21."""
    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_a_picture_names_its_tokens_twice_and_writes_what_is_not_small(tmp_path: Path) -> None:
    """As they are: a dollar or a bracket means nothing here."""
    heatmap.draw("L0H5", TOKENS, SHARES, tmp_path / "a.svg")

    words = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "a.svg").read_text())
    assert words.count("[CLS]") == words.count("$2$") == words.count("&lt;b&gt;") == 2
    numbers = [share for row in SHARES for share in row if share >= heatmap.SMALL]
    assert [float(word) for word in words if re.fullmatch(r"\d\.\d\d", word)] == numbers


def test_every_letter_is_legible_on_light_and_dark() -> None:
    """Labels on the page, numbers on their cells."""
    assert min(contrast(heatmap.INK, page) for page in PAGES) >= LEGIBLE
    shares = [step / 100 for step in range(101)]
    assert min(contrast(heatmap.ink(each), heatmap.colour(each)) for each in shares) >= LEGIBLE


def test_a_png_has_no_background(tmp_path: Path) -> None:
    """It has an alpha channel, which is 0 in the corner."""
    from matplotlib.image import imread

    heatmap.draw("L0H5", TOKENS, SHARES, tmp_path / "a.png")

    pixels = imread(tmp_path / "a.png")
    assert pixels.shape[2] == 4 and pixels[0, 0, 3] == 0 and pixels[..., 3].max() == 1


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(["a"] * 129, "128 tokens; this text has 129"), (["\U00012000"], "letters; an .svg")],
    ids=["many", "no font"],
)
def test_what_a_picture_cannot_show_is_refused(
    tmp_path: Path, tokens: list[str], reason: str
) -> None:
    """And no file is left."""
    shares = [[1 / len(tokens)] * len(tokens)] * len(tokens)

    with pytest.raises(CannotDraw, match=reason):
        heatmap.draw("L0H5", tokens, shares, tmp_path / "a.png")

    assert not (tmp_path / "a.png").exists()
