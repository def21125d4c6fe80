"""What a form will weigh, hold and take, known before any of it is computed.

Time is counted in floating-point operations, as that of a pass is. What a cell of a map takes
besides its score is mostly reading and writing: it stands here as the operations that a core does
in products meanwhile, measured on one thread of an AMD EPYC with AVX-512, where products run at 168
GFLOP/s, at 8 to 1,536 tokens.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from model.config import EncoderConfig
from model.maps.choices import STATISTIC_FIELDS, Form
from model.maps.forms import Selection
from model.maps.tiles import tile_height
from model.reach import Reach

FLOAT32_SIZE = 4  # bytes of a float32
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
KEPT_KEY_FLOPS = 4000  # of a key that `top` keeps: it is put in order and looked up
UNITS_FLOPS = 300  # of a cell, where tokens become words, are left out or are weighed by values
TERM_FLOPS = 700  # of a cell, for each term that distance adds by content: it is looked up
SLOPE_FLOPS = 150  # of a map's cell from which a head's slope takes
IN_PASS_FLOPS = 50  # the same in a pass, where the slopes are read in place
PRESCAN_CELL_FLOPS = (
    700  # of a cell that is looked at once before, so that its row can be scaled up
)
TILE_FLOPS = 20_000_000  # of a tile, and of a layer before its first: calls, some 120 us


class TileWalk(NamedTuple):
    """How much is gone through of the maps of layers that look equally far.

    Args:
        layers: how many, and heads: of all of them together.
        cells, tiles: of each head's map; tiles are of all heads of a layer together.
        before: cells of each that are looked at once beforehand.
    """

    layers: int
    heads: int
    cells: int
    tiles: int
    before: int


def price_key(selection: Selection) -> tuple[object, ...]:
    """Return all that a price depends on, as it counts."""
    units, heads, rows = selection.units, id(selection.heads), len(selection.rows)
    own = selection.form, selection.weight, selection.k, selection.size, selection.half
    counts = units.tokens, len(units.axis), len(units.spans), rows, _walked_rows(selection)
    return heads, own, counts, units.renormalize


def answer_bytes(selection: Selection) -> int:
    """Return the bytes of the tensors of `forms.show`."""
    return _answer_bytes(selection, _head_count(selection), 2 if selection.half else FLOAT32_SIZE)


def _answer_bytes(selection: Selection, heads: int, number: int) -> int:
    """Count bytes of some heads, by those of a real number."""
    index, units = 4, len(selection.units.axis)  # of a unit's number
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
            return heads * len(STATISTIC_FIELDS) * number
        case "dominance":
            return heads * units * (2 * number + 2 * index) + len(selection.units.spans) * index
        case "rollout":
            return units * units * number


def scratch_bytes(selection: Selection) -> int:
    """Return the bytes that `forms.show` holds besides these while it makes them.

    Tiles are left out: they are bounded whatever the length.
    """
    if selection.form == "top":
        return (
            KEPT_BYTES * max(map(len, selection.heads.values()), default=0) * _kept_keys(selection)
        )
    if selection.form == "rollout":
        last = (
            selection.units.is_token_level and not selection.half
        )  # of two matrices, one is the answer
        cells = selection.units.tokens * len(selection.units.axis)
        return FLOAT32_SIZE * cells * (1 if last else 2)
    if not selection.half or not selection.heads:
        return 0
    most = max(map(len, selection.heads.values()))
    return _answer_bytes(selection, most, FLOAT32_SIZE)  # before it is narrowed


def count_product_flops(selection: Selection, config: EncoderConfig) -> int:
    """Count floating-point operations of matrix products: for scores, and a rollout's layers."""
    return _product_flops(selection, config, _tile_walks(selection, config))


def count_flops(selection: Selection, config: EncoderConfig) -> int:
    """Return how many operations of products take a core as long as `forms.show`."""
    terms, walks = distance_flops(config), _tile_walks(selection, config)
    cell = CELL_FLOPS[selection.form] + (0 if _walks_as_passed(selection) else UNITS_FLOPS) + terms
    mass, extra = PRESCAN_CELL_FLOPS + terms, 0
    for layers, heads, cells, tiles, before in walks:
        extra += heads * (cell * cells + mass * before) + layers * TILE_FLOPS * (1 + tiles)
    if selection.form == "top":
        extra += KEPT_KEY_FLOPS * _head_count(selection) * _kept_keys(selection)
    return _product_flops(selection, config, walks) + extra


def distance_flops(config: EncoderConfig, slope: int = SLOPE_FLOPS) -> int:
    """Return what takes a core as long as that which distance adds to one cell, or takes."""
    return TERM_FLOPS * config.relative.terms + slope * (config.positions == "alibi")


def _product_flops(selection: Selection, config: EncoderConfig, walks: Sequence[TileWalk]) -> int:
    scores, rolled, tokens = 0, 0, selection.units.tokens
    for layers, heads, cells, _, before in walks:
        scores, rolled = scores + heads * (cells + before), rolled + layers * cells
    if config.relative.terms:
        scores += round(scores * config.relative.count_products(tile_height(tokens), tokens))
    if selection.form != "rollout" or not walks:
        return 2 * config.head_dim * scores
    rolled -= _visible_cells(
        config.reach_of_layer(min(selection.heads)), tokens
    )  # the lowest is multiplied by none
    return 2 * config.head_dim * scores + 2 * len(selection.units.axis) * rolled


def _tile_walks(selection: Selection, config: EncoderConfig) -> list[TileWalk]:
    """Return the walk through the layers of each reach."""
    units, every = selection.units, selection.heads
    tokens, rows, passed = units.tokens, _walked_rows(selection), _walks_as_passed(selection)
    masses = units.renormalize and selection.form != "rollout"
    before, tiles = tokens**2 * masses, -(-(rows + tokens * masses) // tile_height(tokens))
    if not passed:
        return [TileWalk(len(every), _head_count(selection), rows * tokens, tiles, before)]
    windows = config.windows or (None,) * config.layers
    looks, heads = list(map(windows.__getitem__, every)), dict.fromkeys(windows, 0)
    for window, some in zip(looks, every.values(), strict=True):
        heads[window] += len(some)
    return [
        TileWalk(
            looks.count(one),
            heads[one],
            _visible_cells(config.reach_of_window(one), tokens),
            tiles,
            before,
        )
        for one in set(looks)
    ]


def _visible_cells(reach: Reach, tokens: int) -> int:
    """Count the cells of all rows in tiles, of which each end in sight adds half of one."""
    cut = reach.within(tokens)
    ends = (cut[0] < tokens - 1) + (cut[1] < tokens - 1)
    return min(tokens**2, reach.count_cells(tokens) + tokens * tile_height(tokens) * ends // 2)


def _walked_rows(selection: Selection) -> int:
    """Count the rows of tokens that are gone through."""
    spans = selection.units.spans
    if selection.form != "rows":
        return selection.units.tokens
    return sum([spans[unit][1] - spans[unit][0] for unit in selection.rows])


def _head_count(selection: Selection) -> int:
    return sum(map(len, selection.heads.values()))


def _kept_keys(selection: Selection) -> int:
    """Count the keys that `top` keeps for a head."""
    units = len(selection.units.axis)
    return units * min(selection.k, units)


def _walks_as_passed(selection: Selection) -> bool:
    """Tell whether maps are walked as the forward pass had them; see MapReader.read_tiles."""
    if selection.form in ("rows", "rollout"):
        return selection.form == "rollout"
    return selection.units.is_token_level and selection.weight == "probability"
