"""What a form will weigh, hold and take, known before any of it is computed.

Time is counted in floating-point operations, as that of a pass is. What a cell of a map takes
besides its score is mostly reading and writing: it stands here as the operations that a core does
in products meanwhile, measured on one thread of an AMD EPYC with AVX-512, where products run at 168
GFLOP/s, at 8 to 1,536 tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from model.config import EncoderConfig
from model.maps.choices import FIELDS, Form
from model.maps.forms import Selection
from model.maps.tiles import height

SINGLE = 4  # bytes of a float32
KEPT_BYTES = 24  # of a key that `top` keeps, until the tiles of its layer are one
CELL_FLOPS: Mapping[Form, int] = {
    "full": 390,
    "rows": 390,
    "top": 1400,
    "blocks": 300,
    "stats": 390,
    "dominance": 600,
    "rollout": 350,
}
KEPT_FLOPS = 4000  # of a key that `top` keeps: it is put in order and looked up
UNITS_FLOPS = 300  # of a cell, where tokens become words, are left out or are weighed by values
TERM_FLOPS = 700  # of a cell, for each term that distance adds by content: it is looked up
SLOPE_FLOPS = 150  # of a map's cell from which a head's slope takes
IN_PASS_FLOPS = 50  # the same in a pass, where the slopes are read in place
MASS_FLOPS = 700  # of a cell that is looked at once before, so that its row can be scaled up
TILE_FLOPS = 20_000_000  # of a tile, and of a layer before its first: calls, some 120 us


class Walk(NamedTuple):
    """How much of one layer's maps is gone through.

    Args:
        heads: how many.
        cells, tiles: of each head's map; tiles are of all heads together.
        before: cells of each that are looked at once beforehand.
    """

    heads: int
    cells: int
    tiles: int
    before: int


def price(selection: Selection) -> int:
    """Return the bytes of the tensors of `forms.show`."""
    number, index = 2 if selection.half else 4, 4  # of a real number and of a unit's
    heads, units = sum(map(len, selection.heads.values())), len(selection.units.axis)
    match selection.form:
        case "full":
            return heads * units * units * number
        case "rows":
            return heads * len(selection.rows) * units * number
        case "blocks":
            step = -(-units // selection.size)
            return heads * (-(-units // step)) ** 2 * number
        case "top":
            k = min(selection.k, units)
            return heads * units * (k * (number + index) + number)
        case "stats":
            return heads * len(FIELDS) * number
        case "dominance":
            return heads * units * (2 * number + 2 * index) + len(selection.units.spans) * index
        case "rollout":
            return units * units * number


def held(selection: Selection) -> int:
    """Return the bytes that `forms.show` holds besides these while it makes them.

    Tiles are left out: they are bounded whatever the length.
    """
    if selection.form == "top":
        return KEPT_BYTES * max(map(len, selection.heads.values()), default=0) * _kept(selection)
    if selection.form == "rollout":
        last = selection.units.whole and not selection.half  # of two matrices, one is the answer
        cells = selection.units.tokens * len(selection.units.axis)
        return SINGLE * cells * (1 if last else 2)
    if not selection.half or not selection.heads:
        return 0
    most = max(selection.heads.values(), key=len)
    return price(replace(selection, half=False, heads={0: most}))  # before it is narrowed


def products(selection: Selection, config: EncoderConfig) -> int:
    """Count floating-point operations of matrix products: for scores, and a rollout's layers."""
    walks, tokens = list(_walks(selection, config)), selection.units.tokens
    scores = sum(walk.heads * (walk.cells + walk.before) for walk in walks)
    scores += round(scores * config.relative.products(height(tokens), tokens))
    rolled = sum(walk.cells for walk in walks[1:]) if selection.form == "rollout" else 0
    return 2 * config.head_dim * scores + 2 * len(selection.units.axis) * rolled


def work(selection: Selection, config: EncoderConfig) -> int:
    """Return how many operations of products take a core as long as `forms.show`."""
    terms = distance_flops(config)
    cell = CELL_FLOPS[selection.form] + (0 if _as_passed(selection) else UNITS_FLOPS) + terms
    mass = MASS_FLOPS + terms
    extra = sum(
        walk.heads * (cell * walk.cells + mass * walk.before) + TILE_FLOPS * (1 + walk.tiles)
        for walk in _walks(selection, config)
    )
    if selection.form == "top":
        extra += KEPT_FLOPS * sum(map(len, selection.heads.values())) * _kept(selection)
    return products(selection, config) + extra


def distance_flops(config: EncoderConfig, slope: int = SLOPE_FLOPS) -> int:
    """Return what takes a core as long as that which distance adds to one cell, or takes."""
    return TERM_FLOPS * config.relative.terms + slope * (config.positions == "alibi")


def _walks(selection: Selection, config: EncoderConfig) -> Iterator[Walk]:
    """Yield the walk through each layer, the lowest first."""
    tokens, spans = selection.units.tokens, selection.units.spans
    step, rows, most = height(tokens), tokens, tokens * tokens
    if selection.form == "rows":
        rows = sum(spans[unit][1] - spans[unit][0] for unit in selection.rows)
    masses = selection.units.renormalize and selection.form != "rollout"
    for layer, heads in sorted(selection.heads.items()):
        cells, reach = rows * tokens, config.reach(layer)
        if _as_passed(selection):  # all rows, in tiles, of which each end in sight adds half of one
            ends = sum(side < tokens - 1 for side in reach.cut(tokens))
            cells = min(most, reach.cells(tokens) + tokens * step * ends // 2)
        walked = rows + tokens if masses else rows
        yield Walk(len(heads), cells, -(-walked // step), most if masses else 0)


def _kept(selection: Selection) -> int:
    """Count the keys that `top` keeps for a head."""
    units = len(selection.units.axis)
    return units * min(selection.k, units)


def _as_passed(selection: Selection) -> bool:
    """Tell whether maps are walked as the forward pass had them; see Look.tiles."""
    if selection.form in ("rows", "rollout"):
        return selection.form == "rollout"
    return selection.units.whole and selection.weight == "probability"
