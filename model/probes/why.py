"""Why a head scores a key as it does: the parts of query and key that its scores come from.

A score is bilinear in what enters a layer, where the divisors of norms are kept as the pass had
them. So with x_i = sum_a x_i^a, biases a part of their own,

    s_ij = scale q_i k_j + added_ij = sum_ab s_ij^ab      s_ij^ab = scale q_i^a k_j^b + added_ij^ab

In layer 0 both sides have the parts word, position and rest: segments, and the biases of the
embeddings' norm, of a norm before the layer, and of W^Q and W^K. Above it the query is whole, and
the key's parts are the tokens of the input, carried as carried.py does, and all biases together.
What distance does to a score is in layer 0 position's, and above it the biases' but for the rest:

    rotation         in layer 0, s^ab is that of both at one place; position's is what remains, by
                     the rotation between them. Above it each part of a key is rotated with it
    slopes, buckets  as they do not ask for content, position's on both sides; or the biases'
    disentangled     q_i K_d is a's with position, or the biases'; Q_d k_j position's with b, or b's

Softmax ignores a row's mean, which is taken out of each part, over the keys that the row may see.
With t the sum of all parts, a part's share of how scores vary is its covariance with t over the
variance of t, over all rows. Shares sum to 1; one that works against the others is negative:

    share^ab = sum_ij s_ij^ab t_ij / sum_ij t_ij^2        deviation = root of the mean of t_ij^2

Source: Kamath et al. 2025, "Tracing Attention Computation Through Feature Interactions"
(transformer-circuits.pub/2025/attention-qk).
"""

import math
from collections.abc import Callable, Collection, Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from model.attention.attention import MultiHeadAttention
from model.attention.positions import beyond_reach
from model.config import EncoderConfig
from model.encoder import Encoded, Encoder
from model.maps import price
from model.maps.forms import Selection
from model.packing import Sequence
from model.probes.carried import Carrier, Sources
from model.probes.maps import Maps
from model.probes.probe import FLOAT_BYTES, Made, Sizes
from model.steady import without_idle_threads

PARTS = ("word", "position", "rest")  # of a query and of a key in layer 0
EMBEDDED = [2, 3, 1]  # their places in what Carrier.embed returns, next to the whole
POSITION = PARTS.index("position")
ROUNDING = 2.0**-20  # of the largest product of a query's and a key's lengths, in float32
SHUFFLES = 5  # heads with shuffled W^Q and W^K, whose shares stand next to a head's own
MOST_CELLS = 1 << 20  # scores, of all parts and heads, that are computed at a time
PAIRS = len(PARTS) ** 2  # of a part of the query and one of the key
CELL_COST = 13_000  # of a score, in parts
SHUFFLE_COST = 4000  # of a number of W^Q and W^K, for each order that it is put in

# queries, (queries,) int64 -> scores by part, (.., heads, queries, keys)
Scorer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Why(Maps):
    """Makes "heads", the parts of scores by layer and name; see `explain_scores`.

    Args:
        selection: which heads, and which rows to show.
        sources: for layers above 0, which parts of the input to carry there.
    """

    one_core: ClassVar = True
    sources: Sources | None = None

    @property
    def traces(self) -> Collection[int]:
        return ()

    @property
    def price_key(self) -> Hashable:
        sources = self.sources
        return price.price_key(self.selection), sources and (len(sources), sources.layers)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Made:
        return {"heads": explain_scores(encoder, sequence, self.selection, self.sources)}

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        return self._count_work(config, tokens)[0]

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        numbers = config.width * config.head_dim * (config.heads + config.shared_heads)
        shuffled = SHUFFLES * len(self.selection.heads) * numbers * (SHUFFLE_COST + 2 * 4 * tokens)
        return sum(self._count_work(config, tokens)) + shuffled

    def _count_work(self, config: EncoderConfig, tokens: int) -> tuple[int, int]:
        """Count the operations of all products, and those that take as long as reading scores."""
        products, read = price.count_work(self.selection, config, CELL_COST)
        carried = self.sources.flops(config, tokens) if self.sources else 0
        heads = 1 + SHUFFLES
        return products * (1 + PAIRS) * heads + carried, read * heads

    def bytes(self, config: EncoderConfig, tokens: int, number: int = FLOAT_BYTES) -> Sizes:
        selection, units = self.selection, len(self.selection.units.axis)
        heads, lowest = price.count_heads(selection), len(selection.heads.get(0, ()))
        parts = PAIRS * lowest + (units + 1) * (heads - lowest)
        numbers = parts * (2 + len(selection.rows) * units) + heads
        return {"attention": numbers * (2 if selection.half else FLOAT_BYTES)}

    def scratch_bytes(self, config: EncoderConfig, tokens: int) -> int:
        if self.sources:
            return self.sources.scratch_bytes(config, tokens)
        return 6 * FLOAT_BYTES * (1 + len(PARTS)) * tokens * config.width


def explain_scores(
    encoder: Encoder, sequence: Sequence, selection: Selection, sources: Sources | None = None
) -> dict[int, dict[str, Tensor]]:
    """Return the parts of some scores of one sequence, by layer and name.

    Args:
        selection: which heads, and which rows to show.
        sources: for layers above 0, which parts of the input to carry there.

    Returns:
        In layer 0 scores, (heads, rows, query parts, key parts, keys), NaN for a key that the row
        may not see; share, (heads, query parts, key parts), of all rows, NaN where scores vary by
        rounding alone; shuffled, the same of heads with shuffled weights, the mean of SHUFFLES; and
        deviation, (heads,), the standard deviation of scores in their rows. Above it the first
        three are without the axis of query parts.
    """
    carrier, shown = Carrier(encoder, sequence), dict[int, dict[str, Tensor]]()
    if 0 in selection.heads:
        shown[0] = _explain_layer(carrier, 0, carrier.embed(), selection)
    if sources is None:
        return shown
    parts = carrier.enter(sources)
    for index in range(1, max(selection.heads) + 1):
        parts = carrier.carry(parts, index - 1)
        if index in selection.heads:
            biased = 0 in sources.numbers
            shown[index] = _explain_layer(carrier, index, parts, selection, biased=biased)
    return shown


def _explain_layer(
    carrier: Carrier, index: int, parts: Tensor, selection: Selection, *, biased: bool = False
) -> dict[str, Tensor]:
    """Return the scores of one layer as explain_scores does.

    Args:
        biased: above layer 0, whether the first part but the pass is all biases.
    """

    def prepare(weight: Tensor | None) -> tuple[LayerScores, Scorer]:
        """Return the layer's scores with its own W^Q and W^K, or with others."""
        layer = LayerScores(carrier, index, parts, selection.heads[index], weight)
        return layer, layer.carried_scorer(biased=biased) if index else layer.embedded_scorer()

    layer, score = prepare(None)
    shown, row_cells = layer.show(score, selection.rows)
    drawn = []
    for draw in range(1, 1 + SHUFFLES):
        layer, score = prepare(shuffle_weights(carrier.attention(index), draw))
        drawn.append(layer.measure_shares(score, row_cells)[0])
    return {**shown, "shuffled": sum(drawn[1:], drawn[0]) / SHUFFLES}


def shuffle_weights(attention: MultiHeadAttention, draw: int) -> Tensor:
    """Return W^Q and W^K with the numbers of each head's in another order.

    Args:
        draw: which order, from 1 on; 0: as they are.

    Returns:
        (channels of both, width) float32, the same in each call.
    """
    weight = attention.project.weight().float()
    blocks = weight.view(-1, attention.head_dim * weight.shape[1])[: sum(attention.parts[:2])]
    if not draw:
        return blocks.reshape(-1, weight.shape[1])
    random, shuffled = torch.Generator().manual_seed(draw), torch.empty_like(blocks)
    for made, block in zip(shuffled, blocks, strict=True):
        made[:] = block[torch.randperm(len(block), generator=random).to(block.device)]
    return shuffled.view(-1, weight.shape[1])


def sum_scores(encoder: Encoder, sequence: Sequence, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return how the scores of layer 0's heads vary, with a weight of `shuffle_weights`.

    Returns:
        Of each pair of parts the covariance with the whole, (heads, query parts, key parts), and
        the variance of the whole, (heads,): sums over all scores, float64.
    """
    carrier, heads = Carrier(encoder, sequence), range(encoder.config.heads)
    layer = LayerScores(carrier, 0, carrier.embed(), heads, weight)
    row_cells = len(PARTS) ** 2 * len(heads) * len(sequence)
    return layer.sum_squares(layer.embedded_scorer(), row_cells)[:2]


class LayerScores:
    """The scores of some heads of one layer, whole and in parts.

    Args:
        parts: what enters the layer, of which the first is the pass, (1 + parts, tokens, width).
        weight: in place of the layer's W^Q and W^K, as of Carrier.score_sides.
    """

    def __init__(
        self,
        carrier: Carrier,
        index: int,
        parts: Tensor,
        heads: Many[int],
        weight: Tensor | None = None,
    ) -> None:
        self._attention, self._heads = carrier.attention(index), list(heads)
        self._places = torch.arange(parts.shape[1], device=parts.device)
        self._every, self._bias = slice(0, len(self._places)), carrier.bias
        self._unseen = self._places >= len(self._places) - carrier.unseen
        # (1 + parts, heads, tokens, head_dim) each, before rotation and as they are multiplied
        self._still = [side.transpose(1, 2) for side in carrier.score_sides(parts, index, weight)]
        self._q, self._k = (self._rotate(side, carrier.positions) for side in self._still)

    def show(self, score: Scorer, rows: Many[int]) -> tuple[dict[str, Tensor], int]:
        """Return the scores of some rows and the shares of all, and how many scores a row has."""
        chosen = self._places[list(rows)]
        shown = self._centre(score(chosen), chosen, math.nan)
        row_cells = shown.numel() // len(rows)
        share, deviation = self.measure_shares(score, row_cells)
        scores = shown.movedim((-3, -2), (0, 1))
        return {"scores": scores, "share": share, "deviation": deviation}, row_cells

    def measure_shares(self, score: Scorer, row_cells: int) -> tuple[Tensor, Tensor]:
        """Return the shares, (heads, ..), and the deviation, (heads,), of all rows."""
        covariance, variance, cells = self.sum_squares(score, row_cells)
        deviation = (variance / cells).sqrt()
        share = (covariance.movedim(0, -1) / variance).where(deviation > self._rounding(), math.nan)
        return share.movedim(-1, 0).float(), deviation.float()

    def sum_squares(self, score: Scorer, row_cells: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return each part's products with the whole, (heads, ..), the whole's squares, (heads,).

        Args:
            row_cells: how many scores a row of the sequence has, of all parts and heads.

        Returns:
            Both summed over all scores, float64, and how many scores a head has.
        """
        whole = self._whole_scorer()
        covariance = variance = cells = torch.zeros((), dtype=torch.float64, device=self._q.device)
        for queries in torch.split(self._places, max(1, MOST_CELLS // row_cells)):
            total = self._centre(whole(queries), queries)
            parts = self._centre(score(queries), queries)
            covariance = covariance + torch.einsum("...hqk,hqk->h...", parts, total).double()
            variance = variance + total.square().sum((1, 2)).double()
            cells = cells + (~self._hidden(queries)).sum()
        return covariance, variance, cells

    def _rounding(self) -> Tensor:
        """Return what rounding alone may vary scores by at most, (heads,)."""
        lengths = [side[:, self._heads].norm(dim=-1).amax((0, 2)) for side in (self._q, self._k)]
        most: Tensor = lengths[0] * lengths[1]
        return most * self._attention.scale * ROUNDING

    def embedded_scorer(self) -> Scorer:
        """Return what scores layer 0, (query parts, key parts, heads, queries, keys)."""
        start, whole = torch.zeros_like(self._places), self._whole_scorer()
        all_q, all_k = (self._rotate(side, start) for side in self._still)
        still = self._multiplier(all_q[0], all_k[0])
        all_q, all_k = all_q[EMBEDDED], all_k[EMBEDDED]
        pairs = [[self._multiplier(q, k) for k in all_k] for q in all_q]

        def score(queries: Tensor) -> Tensor:
            """Return the scores of some queries."""
            scores = torch.stack(
                [torch.stack([multiply(queries) for multiply in row]) for row in pairs]
            )
            if not self._by_content:
                scores[POSITION, POSITION] += whole(queries) - still(queries)
                return scores
            for part, (q, k) in enumerate(zip(all_q, all_k, strict=True)):
                scores[part, POSITION] += self._added(q, torch.zeros_like(k), queries)
                scores[POSITION, part] += self._added(torch.zeros_like(q), k, queries)
            return scores

        return score

    def carried_scorer(self, *, biased: bool) -> Scorer:
        """Return what scores a layer above 0, (key parts, heads, queries, keys).

        Args:
            biased: whether the first part is all biases.
        """
        q, all_k = self._q[0], self._k[1:]
        products = [self._multiplier(q, k) for k in all_k]

        def score(queries: Tensor) -> Tensor:
            """Return the scores of some queries."""
            scores = torch.stack([multiply(queries) for multiply in products])
            if self._by_content:
                for part, k in zip(scores, all_k, strict=True):
                    part += self._added(torch.zeros_like(q), k, queries)
            if biased:
                scores[0] += self._added(q, torch.zeros_like(q), queries)
            return scores

        return score

    @property
    def _by_content(self) -> bool:
        """Tell whether what distance adds follows from queries and keys."""
        distances = self._attention.distances
        return distances is not None and distances.by_content

    def _whole_scorer(self) -> Scorer:
        """Return what scores the pass itself, (heads, queries, keys)."""
        q, k = self._q[0], self._k[0]
        multiply = self._multiplier(q, k)
        return lambda queries: multiply(queries) + self._added(q, k, queries)

    def _multiplier(self, q: Tensor, k: Tensor) -> Scorer:
        """Return what multiplies queries by all keys, of two sides, (heads, tokens, head_dim)."""
        q, k = q[self._heads] * self._attention.scale, k[self._heads].mT

        def multiply(queries: Tensor) -> Tensor:
            """Multiply some queries."""
            with without_idle_threads(len(q)):
                return q[:, queries] @ k

        return multiply

    def _added(self, q: Tensor, k: Tensor, queries: Tensor) -> Tensor:
        """Return what is added to products, (heads or 1, queries, keys)."""
        added = self._attention.added_scores(q, k, self._bias, queries, self._every, self._heads)
        return self._q.new_zeros(1, 1, 1) if added is None else added.float()

    def _rotate(self, sides: Tensor, positions: Tensor) -> Tensor:
        """Return (parts, heads, tokens, head_dim) rotated by tokens' positions."""
        if self._attention.rotation is None:
            return sides
        rows = sides.transpose(1, 2)
        turned = self._attention.rotation(rows.flatten(0, 1), positions.repeat(len(rows)))
        return turned.view_as(rows).transpose(1, 2)

    def _centre(self, scores: Tensor, queries: Tensor, hidden: float = 0.0) -> Tensor:
        """Take each row's mean out of scores, over the keys it may see; set others to `hidden`."""
        unseen = self._hidden(queries)
        seen = scores.masked_fill(unseen, 0.0)
        mean = seen.sum(-1, keepdim=True) / (~unseen).sum(-1, keepdim=True)
        return (seen - mean).masked_fill(unseen, hidden)

    def _hidden(self, queries: Tensor) -> Tensor:
        """Tell which keys some queries may not see, (queries, keys)."""
        return beyond_reach(queries, self._places, self._attention.reach) | self._unseen
