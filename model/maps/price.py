"""Estimates of an attention answer's bytes, memory and time, before it is computed.

Time is counted in floating-point operations, as that of a pass is. A cell of a map mostly takes
reads and writes besides its score: they count as the operations of matrix products that a core
does meanwhile, measured on one thread of an AMD EPYC with AVX-512, where products run at 168
GFLOP/s, at 8 to 1,536 tokens.
"""

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from model.attention.reach import Reach
from model.config import EncoderConfig
from model.maps.choices import STATISTIC_FIELDS, Form
from model.maps.forms import Selection
from model.maps.tiles import tile_height

FLOAT32_SIZE = 4  # bytes of a float32
KEPT_BYTES = 24  # of a key that `top` keeps, until the tiles of its layer are joined
# of a cell of a map
CELL_FLOPS: Mapping[Form, int] = {
    "full": 390,
    "rows": 390,
    "top": 1400,
    "blocks": 300,
    "mean": 480,
    "stats": 390,
    "dominance": 600,
    "rollout": 350,
}
MEAN_CELL_FLOPS = 350  # of a cell of a head that is read to be averaged, as for a rollout
KEPT_KEY_FLOPS = 4000  # of a key that `top` keeps: it is put in order and looked up
UNITS_FLOPS = 300  # of a cell, where tokens become words, are left out or are weighed by values
TERM_FLOPS = 700  # of a cell, for each term that distance adds by content: it is looked up
SLOPE_FLOPS = 150  # of a map's cell from which a head's slope takes
IN_PASS_FLOPS = 50  # the same in a pass, where the slopes are read in place
PRESCAN_CELL_FLOPS = 700  # of a cell that is read once before, so that its row can be scaled up
TILE_FLOPS = 20_000_000  # of a tile, and of a layer before its first: calls, some 120 us


class TileWalk(NamedTuple):
    """How much is read of the maps of those layers that have one reach.

    Args:
        layers: how many layers.
        heads: how many heads in all these layers.
        cells: read of each head's map.
        tiles: read of each layer; one is of all its heads.
        before: cells of each head's map that are read once beforehand, see MapReader._log2_maxima.
    """

    layers: int
    heads: int
    cells: int
    tiles: int
    before: int


def price_key(selection: Selection) -> tuple[object, ...]:
    """Return a key by which prices can be cached: all of a selection that they depend on."""
    units, heads, rows = selection.units, id(selection.heads), len(selection.rows)
    own = selection.form, selection.weight, selection.k, selection.size, selection.half
    counts = units.tokens, len(units.axis), len(units.spans), rows, _walked_rows(selection)
    means = selection.averaged, len(selection.segments)
    return heads, own, counts, means, units.renormalize


def answer_bytes(selection: Selection) -> int:
    """Count the bytes of the tensors that `forms.show` returns."""
    return _answer_bytes(selection, _count_maps(selection), 2 if selection.half else FLOAT32_SIZE)


def _answer_bytes(selection: Selection, heads: int, number: int) -> int:
    """Count the bytes of the answer of so many maps, with `number` bytes for a float."""
    index, units = 4, len(selection.units.axis)  # bytes of a unit's index
    match selection.form:
        case "rows":
            return heads * len(selection.rows) * units * number
        case "blocks":
            step = -(-units // selection.size)
            return heads * (-(-units // step)) ** 2 * number
        case "mean":
            return (heads + 1) * len(selection.segments) ** 2 * number
        case "top":
            k = min(selection.k, units)
            return heads * units * (k * (number + index) + number)
        case "stats":
            return heads * len(STATISTIC_FIELDS) * number
        case "dominance":
            return heads * units * (2 * number + 2 * index) + len(selection.units.spans) * index
        case "rollout":
            return units * units * number
    return heads * units * units * number


def scratch_bytes(selection: Selection) -> int:
    """Count the bytes that `forms.show` holds besides its answer and tiles, which are bounded."""
    if selection.form == "top":
        most = max(map(len, selection.names.values()), default=0)
        return KEPT_BYTES * most * _kept_keys(selection)
    if selection.form == "rollout":
        # one of two matrices may itself be the answer
        is_answer = selection.units.is_token_level and not selection.half
        cells = selection.units.tokens * len(selection.units.axis)
        return FLOAT32_SIZE * cells * (1 if is_answer else 2)
    if not selection.half or not selection.heads:
        return 0
    most = max(map(len, selection.names.values()))
    if selection.form == "mean":
        most = _count_maps(selection)  # all are averaged first
    return _answer_bytes(selection, most, FLOAT32_SIZE)  # before it is narrowed


def count_product_flops(selection: Selection, config: EncoderConfig) -> int:
    """Count the floating-point operations of matrix products: scores and rollout."""
    return count_work(selection, config, 0)[0]


def estimate_flops(selection: Selection, config: EncoderConfig) -> int:
    """Estimate the time of `forms.show`, as the operations of matrix products that take as long."""
    cell = CELL_FLOPS[selection.form]
    total = sum(count_work(selection, config, MEAN_CELL_FLOPS if selection.averaged else cell))
    if selection.averaged:  # the form is of one map a layer
        walks = _tile_walks(selection, config)
        total += cell * sum(walk.layers * walk.cells for walk in walks)
    if selection.form == "top":
        total += KEPT_KEY_FLOPS * _count_maps(selection) * _kept_keys(selection)
    return total


def count_work(selection: Selection, config: EncoderConfig, cell: int) -> tuple[int, int]:
    """Count the operations of matrix products, and those that take as long as all else.

    Args:
        cell: operations that take as long as reading a cell as the pass had it.
    """
    terms, tokens = distance_flops(config), selection.units.tokens
    cell += terms + (0 if _walks_as_passed(selection) else UNITS_FLOPS)
    walks, scores, rolled, read = _tile_walks(selection, config), 0, 0, 0
    for layers, heads, cells, tiles, before in walks:
        scores, rolled = scores + heads * (cells + before), rolled + layers * cells
        read += heads * (cell * cells + (PRESCAN_CELL_FLOPS + terms) * before)
        read += layers * TILE_FLOPS * (1 + tiles)
    if config.relative.terms:
        scores += round(scores * config.relative.count_products(tile_height(tokens), tokens))
    products = 2 * config.head_dim * scores
    if selection.form == "rollout" and walks:
        # the lowest layer takes no product
        rolled -= _visible_cells(config.reach_of_layer(min(selection.heads)), tokens)
        products += 2 * len(selection.units.axis) * rolled
    return products, read


def distance_flops(config: EncoderConfig, slope_flops: int = SLOPE_FLOPS) -> int:
    """Estimate the time of one cell's bias by distance, as operations of matrix products."""
    return TERM_FLOPS * config.relative.terms + slope_flops * (config.positions == "alibi")


def _tile_walks(selection: Selection, config: EncoderConfig) -> list[TileWalk]:
    """Return how much is read of the maps of all layers, layers of one reach together."""
    units, every = selection.units, selection.heads
    tokens, rows, passed = units.tokens, _walked_rows(selection), _walks_as_passed(selection)
    prescans = units.renormalize and selection.form != "rollout"
    before, tiles = tokens**2 * prescans, -(-(rows + tokens * prescans) // tile_height(tokens))
    if not passed:
        return [TileWalk(len(every), count_heads(selection), rows * tokens, tiles, before)]
    windows = config.windows or (None,) * config.layers
    layer_windows, heads = list(map(windows.__getitem__, every)), dict.fromkeys(windows, 0)
    for window, layer_heads in zip(layer_windows, every.values(), strict=True):
        heads[window] += len(layer_heads)
    return [
        TileWalk(
            layer_windows.count(window),
            heads[window],
            _visible_cells(config.reach_of_window(window), tokens),
            tiles,
            before,
        )
        for window in set(layer_windows)
    ]


def _visible_cells(reach: Reach, tokens: int) -> int:
    """Count the cells of a map's tiles; each end of a window adds half a tile's height a row."""
    cut = reach.within(tokens)
    ends = (cut[0] < tokens - 1) + (cut[1] < tokens - 1)
    return min(tokens**2, reach.count_cells(tokens) + tokens * tile_height(tokens) * ends // 2)


def _walked_rows(selection: Selection) -> int:
    """Count the rows of tokens that are read."""
    spans = selection.units.spans
    if selection.form not in ("rows", "mean"):
        return selection.units.tokens
    rows = selection.rows if selection.form == "rows" else chain(*selection.segments)
    return sum([spans[unit][1] - spans[unit][0] for unit in rows])


def count_heads(selection: Selection) -> int:
    """Count the heads selected in all layers."""
    return sum(map(len, selection.heads.values()))


def _count_maps(selection: Selection) -> int:
    """Count the maps shown: the heads selected, or the layers where they are averaged."""
    return sum(map(len, selection.names.values()))


def _kept_keys(selection: Selection) -> int:
    """Count the keys that `top` keeps for a map."""
    units = len(selection.units.axis)
    return units * min(selection.k, units)


def _walks_as_passed(selection: Selection) -> bool:
    """Tell whether maps are read as the forward pass had them; see MapReader.read_tiles."""
    if selection.form in ("rows", "mean", "rollout"):
        return selection.form == "rollout"
    return selection.units.is_token_level and selection.weight == "probability"
