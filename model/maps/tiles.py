"""A trace -> the attention probabilities of one sequence, a tile of rows at a time.

The forward pass never holds a (query, key) matrix, and neither does what reads its maps afterwards:
queries, keys and the log of each softmax row's sum give any row exactly, and every form of answer
is made of tiles of such rows, of bounded memory at any length. Of tokens i and j, and of
units a and b, words for example:

    P_ij = exp(scale q_i k_j + added_ij - normaliser_i)            MapReader.log_probabilities
    W_ij = P_ij, or P_ij ||v_j W^O||                               MapReader._normalised_weights
    U_ab = sum_{i in a, j in b} W_ij / sum_{i in a, every j} W_ij  MapReader._unit_tiles

Where each unit is a token, W is P and all are shown, U is P divided by what its rows sum to, 1 but
for rounding (MapReader._token_tiles). Logarithms are to base 2: exp2 takes a third of exp's time.
"""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from model.attention.attention import TILE_QUERIES, Trace, tiles_within_reach
from model.attention.positions import beyond_reach
from model.attention.reach import EVERYWHERE
from model.maps.choices import Weight
from model.maps.units import Units, divide_into_units
from model.steady import exp2, without_idle_threads

LOG2E = 1 / math.log(2)  # natural logarithms times it are to base 2
HIDDEN_LOG = -1e30  # stands for the logarithm of 0; finite, since 0 times infinity is NaN
MOST_CELLS = TILE_QUERIES * 1024  # most probabilities of one head in a tile
SMALLEST_MASS = 1e-30  # least length of a value, since 0 has no logarithm


@dataclass(frozen=True, slots=True)
class Tile:
    """Some rows of some heads' maps.

    Args:
        queries: which rows, as places among those read.
        keys: which columns, as places on the axis; in all others the map is 0.
        values: (heads, queries, keys).
        log2_values: base 2 logarithms of the values before rows were divided by their sums; None
            unless the map is as the forward pass had it.
        row_sums: those sums, 1 but for rounding, (heads, queries, 1).
    """

    queries: slice
    keys: slice
    values: Tensor
    log2_values: Tensor | None = None
    row_sums: Tensor | None = None


class MapReader:
    """Reads the maps of some heads of one layer over one sequence, tile by tile.

    Args:
        trace: of the layer's attention.
        rows: the sequence's rows in its batch.
        heads: which heads, counted from 0.
        units: what a row and a column stand for; every token by default.
        weight: the probabilities, or the length of what each key's value adds to the query,
            ||P_ij v_j W_i^O|| as a share of its row. Source: Kobayashi et al. 2020.
        averaged: whether the tiles are of one map, the mean of the heads'.
    """

    def __init__(
        self,
        trace: Trace,
        rows: slice,
        heads: Many[int],
        units: Units | None = None,
        weight: Weight = "probability",
        *,
        averaged: bool = False,
    ) -> None:
        attention = trace.attention
        self.units, self.heads = units or divide_into_units(rows.stop - rows.start), list(heads)
        self.averaged, self.maps = averaged, 1 if averaged else len(heads)
        every = self.heads == list(range(attention.heads))
        self.index = slice(None) if every else self.heads  # a slice copies nothing
        self.q = trace.q[rows, self.index].float().transpose(0, 1)
        shared = self.index if attention.sharing == 1 else [h // attention.sharing for h in heads]
        self.k = trace.k[rows, shared].float().permute(1, 2, 0)
        self.shift = trace.normaliser_of(rows)[self.index].unsqueeze(-1).mul(-LOG2E)
        self.scale, self.reach = attention.scale * LOG2E, attention.reach
        self.added = partial(trace.added_scores, rows, self.index)
        self.merged = not self.units.is_token_level and self.units.has_merged_tokens
        self.log2_norms: Tensor | None = None  # of what values write, (heads, 1, tokens)
        if weight == "value_norm":
            values = attention.repeat_shared(trace.v[rows].float().transpose(0, 1), 0)
            lengths = output_norms(values, attention.output_triangles)[self.index]
            self.log2_norms = lengths.clamp_min(SMALLEST_MASS).log2().unsqueeze(1)

    @property
    def tile_rows(self) -> int:
        """Return the rows of a tile; by length alone, so that nothing else changes a map's bits."""
        return tile_height(self.units.tokens)

    def log_probabilities(
        self, queries: slice | Tensor, keys: slice, scratch: Tensor | None = None
    ) -> Tensor:
        """Return the base 2 logarithms of P, (heads, queries, keys), in `scratch` if given."""
        shift, q, k = self.shift[:, queries], self.q[:, queries], self.k[:, :, keys]
        out = _view_start(scratch, len(q), q.shape[1], k.shape[2])
        with without_idle_threads(len(q)):
            logs = torch.baddbmm(shift, q, k, alpha=self.scale, out=out)
        added = self.added(queries, keys)
        if added is not None:
            logs += added.float() * LOG2E
        if not self.reach.covers(self.units.tokens):
            place = torch.arange(self.units.tokens, device=self.q.device)
            logs.masked_fill_(beyond_reach(place[queries], place[keys], self.reach), HIDDEN_LOG)
        return logs

    def _normalised_weights(self, queries: Tensor, log2_scales: Tensor) -> Tensor:
        """Return P_ij, or P_ij ||v_j W^O||, each row divided by a scale, (heads, queries, tokens).

        Args:
            queries: the tokens i, by index.
            log2_scales: base 2 logarithms of all tokens' scales, (heads, tokens).
        """
        logs = self.log_probabilities(queries, slice(0, self.units.tokens))
        if self.merged:  # tokens of a word weigh alike, to the last digit
            logs -= exp2(logs, torch.empty_like(logs)).sum(-1, keepdim=True).log2_()
        if self.log2_norms is not None:
            logs += self.log2_norms
        logs.sub_(log2_scales[:, queries].unsqueeze(-1))
        return exp2(logs, logs)

    def read_tiles(
        self,
        places: Many[int] | None = None,
        scratch: Tensor | None = None,
        into: Tensor | None = None,
    ) -> Iterator[Tile]:
        """Yield tiles of the map's rows at these places on the axis, all by default.

        Args:
            scratch: memory of `allocate_scratch()`, for tiles where that is possible; each then
                lasts until the next. Writing to fresh memory takes twice as long.
            into: (maps, places, axis), which values are written into; what no tile covers
                stays as it is.
        """
        if self.averaged:
            return self._mean_tiles(self._head_tiles(places, scratch, None), into)
        return self._head_tiles(places, scratch, into)

    def _head_tiles(
        self, places: Many[int] | None, scratch: Tensor | None, into: Tensor | None
    ) -> Iterator[Tile]:
        """Yield tiles of each head's map; arguments as of `read_tiles`."""
        if self.units.is_token_level and self.log2_norms is None and places is None:
            return self._token_tiles(scratch, into)
        return self._unit_tiles(range(len(self.units.axis)) if places is None else places, into)

    def _mean_tiles(self, tiles: Iterator[Tile], into: Tensor | None) -> Iterator[Tile]:
        """Yield tiles of the heads' mean, (1, queries, keys), given theirs."""
        for tile in tiles:
            place = None if into is None else into[:, tile.queries, tile.keys]
            mean = torch.mean(tile.values, 0, keepdim=True, out=place)
            yield Tile(tile.queries, tile.keys, mean)

    def allocate_scratch(self) -> Tensor:
        """Allocate memory for one tile, of this reader or another one of the same sequence."""
        tokens = self.units.tokens
        return self.q.new_empty(2, len(self.shift) * min(self.tile_rows, tokens) * tokens)

    def _token_tiles(self, scratch: Tensor | None, into: Tensor | None) -> Iterator[Tile]:
        """Yield tiles of all tokens, with the keys within reach; arguments as of `read_tiles`."""
        first_half, second_half = (None, None) if scratch is None else scratch
        for queries, keys in tiles_within_reach(self.units.tokens, self.reach, self.tile_rows):
            logs = self.log_probabilities(queries, keys, first_half)
            place = _view_start(second_half, *logs.shape)
            values = exp2(logs, torch.empty_like(logs) if place is None else place)
            sums = values.sum(-1, keepdim=True)  # float32 is coarse near a normaliser of 100
            place = values if into is None else into[:, queries, keys]
            yield Tile(queries, keys, torch.div(values, sums, out=place), logs, sums)

    def _unit_tiles(self, units: Many[int], into: Tensor | None) -> Iterator[Tile]:
        """Yield tiles of these units' rows, normalised over all tokens or over the units shown."""
        members, places = (part.to(self.q.device) for part in self.units.members())
        log2_scales, keys = self._log2_maxima(members), slice(0, len(self.units.axis))
        for first in range(0, len(units), self.tile_rows):
            tile_units = units[first : first + self.tile_rows]
            queries = slice(first, first + len(tile_units))
            if into is None:
                values = self.q.new_zeros(len(self.heads), len(tile_units), keys.stop)
            else:
                values = into[:, queries].zero_()
            row_sums = values.new_zeros(values.shape[:2])
            for tokens, rows in self._tokens_of_units(tile_units):
                weights = self._normalised_weights(tokens, log2_scales)
                columns = self.units.merge(weights, 2, (members, places))
                summed = columns if self.units.renormalize else weights
                row_sums.index_add_(1, rows, summed.sum(2))
                values.index_add_(1, rows, columns)
            yield Tile(queries, keys, values.div_(row_sums.unsqueeze(2)))

    def _tokens_of_units(self, places: Many[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens of the units at these places, and their indices in `places`, (n,) each."""
        spans = [self.units.spans[self.units.axis[place]] for place in places]
        pairs = [(token, row) for row, span in enumerate(spans) for token in range(*span)]
        for part in torch.split(torch.tensor(pairs, device=self.q.device), self.tile_rows):
            tokens, rows = part.T.contiguous()
            yield tokens, rows

    def _log2_maxima(self, members: Tensor) -> Tensor:
        """Return the base 2 log of each row's largest P over `members`, (heads, tokens).

        Divided by it, a row that holds next to nothing over these tokens is scaled up. The tokens
        of a unit share the largest. Without renormalizing all are 0: rows stay as they are.
        """
        log2_maxima = self.q.new_zeros(len(self.heads), self.units.tokens)
        if not self.units.renormalize:
            return log2_maxima
        for queries, keys in tiles_within_reach(self.units.tokens, EVERYWHERE, self.tile_rows):
            log2_maxima[:, queries] = self.log_probabilities(queries, keys)[:, :, members].amax(2)
        for start, last in self.units.spans:
            if last - start > 1:
                log2_maxima[:, start:last] = log2_maxima[:, start:last].amax(1, keepdim=True)
        return log2_maxima


def tile_height(tokens: int) -> int:
    """Return the rows of a tile for a sequence of this many tokens."""
    return max(1, min(TILE_QUERIES, MOST_CELLS // tokens))


def _view_start(memory: Tensor | None, *shape: int) -> Tensor | None:
    """Return the start of some memory as a tensor of this shape; None without memory."""
    return None if memory is None else memory[: math.prod(shape)].view(shape)


def output_norms(vectors: Tensor, triangles: Tensor) -> Tensor:
    """Measure what each vector writes: (heads, tokens, head_dim) -> ||x W_i^O||, (heads, tokens).

    Args:
        triangles: L_i of every head; see MultiHeadAttention.output_triangles.
    """
    with without_idle_threads(len(vectors)):
        written = vectors @ triangles
    lengths: Tensor = torch.linalg.vector_norm(written, dim=-1)
    return lengths
