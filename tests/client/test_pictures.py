"""The pictures of one map, and of the bundled model's survey."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from headlight_client import pictures
from service.heads import store

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
    pictures.draw_map("L0H5", TOKENS, TOKENS, SHARES).save(tmp_path / "a.svg")

    words = letters(tmp_path / "a.svg")
    assert words.count("[CLS]") == words.count("$2$") == words.count("&lt;b&gt;") == 2
    numbers = [share for row in SHARES for share in row if share >= pictures.SMALL_SHARE]
    legend = [*pictures.LEGEND_SHARES]
    assert [float(word) for word in words if re.fullmatch(r"\d\.\d\d", word)] == numbers + legend
    assert "share of its row" in words


def test_every_letter_is_legible_on_light_and_dark() -> None:
    """Labels on the page, numbers on their cells."""
    assert min(contrast(pictures.INK_COLOUR, page) for page in PAGES) >= LEGIBLE
    shares = [step / 100 for step in range(-100, 101)]
    assert (
        min(contrast(pictures.number_colour(each), pictures.share_colour(each)) for each in shares)
        >= LEGIBLE
    )


def test_what_is_below_zero_has_a_colour_of_its_own() -> None:
    """As deep as what is above it, from the same pale one; they are the page's own."""
    script = (resources.files("service") / "page" / "dom.js").read_text()

    for name, ramp, sign in (("LIGHT", pictures.BLUES, 1), ("LESS_LIGHT", pictures.ORANGES, -1)):
        (told,) = re.findall(rf"const {name} = (\[\[.*\]\]);", script)
        assert [tuple(colour) for colour in json.loads(told)] == [*ramp]
        for place, colour in enumerate(ramp):
            found = pictures.share_colour(sign * place / (len(ramp) - 1))
            assert found == "#" + bytes(colour).hex()


def test_a_shares_colour_is_that_of_its_square_root(tmp_path: Path) -> None:
    """As on the page, so that small ones show; numbers with signs are in proportion."""
    pictures.draw_map("L0H5", ["a"], ["a"], [[0.25]]).save(tmp_path / "a.svg")
    pictures.draw_map("", ["a"], ["a"], [[-1.0]], 2.0).save(tmp_path / "b.svg")

    shares, signed = ((tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    assert shares.count(f"fill: {pictures.share_colour(0.5)}") == 2  # the cell, and the legend's
    assert signed.count(f"fill: {pictures.share_colour(-0.5)}") == 2


def test_a_png_has_no_background(tmp_path: Path) -> None:
    """It has an alpha channel, which is 0 in the corner."""
    from matplotlib.image import imread

    pictures.draw_map("L0H5", TOKENS, TOKENS, SHARES).save(tmp_path / "a.png")

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

    with pytest.raises(ValueError, match=reason):
        pictures.draw_map("L0H5", tokens, tokens, shares).save(tmp_path / "a.png")

    assert not (tmp_path / "a.png").exists()


@pytest.fixture
def found() -> dict[str, Any]:
    """The bundled model's survey."""
    survey = store.read_stored("sha256:5fc648cb18e4")
    assert survey is not None
    return survey


def test_a_picture_says_in_words_what_its_colours_say(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """As SVG, letters stay letters: model, corpus, every layer and head, badges, verdicts."""
    pictures.draw_heads(found).save(tmp_path / "a.svg")

    said = {*letters(tmp_path / "a.svg")}
    assert {f"H{head}" for head in range(12)} | {f"L{layer}" for layer in range(6)} <= said
    assert {"prev+", "next", "sink", "broad"} <= said
    assert any("all-MiniLM-L6-v2" in line for line in said)
    assert any("relations.jsonl, 420 sentences" in line for line in said)
    assert any(line.startswith("coreference: no head found") for line in said)


def test_every_cell_has_the_colour_of_its_role(found: dict[str, Any], tmp_path: Path) -> None:
    """72 heads, and as many squares more as the legend has colours."""
    pictures.draw_heads(found).save(tmp_path / "a.svg")

    filled = re.findall(r"fill: (#\w+); stroke: #9a9a9a", (tmp_path / "a.svg").read_text())
    squares = [line.colour for line in pictures.explain_colours(found) if line.colour]
    roles = [head["role"] for head in found["heads"]]
    assert len(filled) == 72 + len(squares)
    assert filled[:72].count(pictures.ROLE_COLOURS["previous"]) == roles.count("previous") == 1
    assert filled[:72].count(pictures.ROLE_COLOURS["delimiter sink"]) == roles.count(
        "delimiter sink"
    )
    assert filled[:72].count(pictures.NO_ROLE_COLOUR) == roles.count(None)


def test_a_relation_of_the_users_own_has_a_colour_too(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """One for all of them; its badge is its first letters."""
    told = {**found["relations"]["object"], "kind": None}
    found["relations"] = {"doer of it": told, "none": {**told, "candidate": None, "head": None}}
    found["heads"][37] |= {"role": "doer of it", "also": []}

    pictures.draw_heads(found).save(tmp_path / "a.svg")

    svg = (tmp_path / "a.svg").read_text()
    assert pictures.OTHER_COLOUR in svg and ">doer<" in svg


def test_what_cannot_be_drawn_is_refused_before_it_is_measured() -> None:
    """Only the two formats that are promised."""
    pictures.check_picture(Path("a.SVG"))

    with pytest.raises(ValueError, match=r"a picture must end in \.png or \.svg, got a\.pdf"):
        pictures.check_picture(Path("a.pdf"))


async def test_an_answer_draws_its_maps_by_tokens_or_words(
    call: Any, address: str, tmp_path: Path
) -> None:
    """A word of several tokens is one row; a notebook gets the picture as PNG."""
    heads = {"heads": {"0": [5]}}
    by_word = {**heads, "level": "word", "specials": "drop"}
    text = "It is unbelievably good"

    tokens = await call(address, "encode", [text], attention={**heads, "form": "rows", "rows": [4]})
    words = await call(address, "encode", [text], attention=by_word)
    one = await call(address, "encode", [text], attention={**by_word, "form": "rows", "rows": [4]})
    tokens.items[0].plot(0, 5).save(tmp_path / "tokens.svg")
    words.items[0].plot(0, 5).save(tmp_path / "words.svg")
    one.items[0].plot(0, 5).save(tmp_path / "one.svg")

    assert letters(tmp_path / "tokens.svg").count("##bel") == 2  # row 4 and its column
    assert letters(tmp_path / "tokens.svg").count("good") == 1
    assert letters(tmp_path / "words.svg").count("unbelievably") == 2
    assert letters(tmp_path / "one.svg").count("good") == 2  # word 4 of the text, with [CLS]
    assert letters(tmp_path / "one.svg").count("unbelievably") == 1
    assert words.items[0].plot(0, 5)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no map of head 4 of layer 0"):
        words.items[0].plot(0, 4)


async def test_a_comparison_draws_what_makes_its_score(
    call: Any, address: str, tmp_path: Path
) -> None:
    """Rows are of the left text; what lowers the score has its sign."""
    told = await call(address, "similarity", "All is well", ["It rains", "No, all is bad"])

    told.plot(1).save(tmp_path / "a.svg")

    matrix, drawn = told.right[1].matrix, letters(tmp_path / "a.svg")
    big = matrix[abs(matrix) >= pictures.SMALL_SHARE * abs(matrix).max()]
    most = float(abs(matrix).max())
    legend = [-most, -most / 2, 0.0, most / 2, most]
    assert [float(word) for word in drawn if re.fullmatch(r"-?\d\.\d\d", word)] == [
        round(float(share), 2) for share in [*big, *legend]
    ]
    assert big.min() < 0 and drawn.count("all") == 2 and "well" in drawn and "bad" in drawn
    assert f"what makes the score of {told.right[1].score:.2f}" in drawn
    part = await call(address, "similarity", "All is well", ["It rains"], specials="drop")
    part.plot().save(tmp_path / "b.svg")
    score, rest = part.right[0].score, part.right[0].facts["rest"]
    title = f"what makes the score of {score:.2f}; {rest:+.2f} lies outside"
    assert title in letters(tmp_path / "b.svg")
    with pytest.raises(ValueError, match='no matrix of shares, as of form="full"'):
        (await call(address, "similarity", "a", ["b"], form="score")).plot()


def letters(path: Path) -> list[str]:
    """What an SVG says, piece by piece."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
