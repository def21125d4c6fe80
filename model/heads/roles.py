"""Maps of many sentences -> what each head does by position, with the score that says so.

P is a map, i a query, j a key within its reach: all, or those of a window, or before. Means are
over the rows of all sentences that may attend to such a key.

    previous, next, self    mean of P_ij, j = i - 1, i + 1, i
    cls, sep                mean of P_ij, j the first special token; summed over the others
    special                 cls + sep; of a decoder the first token is one of them, special or not
    entropy_ratio           mean of -sum_j P_ij ln P_ij / ln N_i, of N_i keys; 1: uniform attention
    positional              share of the ordinary tokens that have a key at one offset, at least
                            half of all, of which it is the strongest key

A score means nothing alone, so each has a baseline: the score, on the same sentences, of a head
that attends equally to all keys within its reach.

Sources: Clark et al. 2019, section 3; Voita et al. 2019, section 5.2; Kovaleva et al. 2019; of
sinks on the first token Xiao et al. 2023, "Efficient Streaming Language Models with Attention
Sinks" (arXiv 2309.17453).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention.positions import beyond_reach
from model.attention.reach import Reach

# measures that are means over rows
AVERAGED_MEASURES = ("previous", "next", "self", "cls", "sep", "special", "entropy_ratio")
DIAGONAL_OFFSETS = {"previous": -1, "next": 1, "self": 0}  # of the key from the query
FARTHEST_OFFSET = 8  # tokens; the farthest at which a head counts as positional

# Clark's: 0.5 next to oneself, 0.6 on separators. Voita's: the strongest key at one offset in
# 90 % of the cases. Clark's broad heads have over 3.8 nats in rows of 128 tokens: as a ratio it
# holds for shorter rows too.
THRESHOLDS = {
    "previous": 0.5,
    "next": 0.5,
    "self": 0.5,
    "positional": 0.9,
    "delimiter sink": 0.6,
    "broad": round(3.8 / math.log(128), 4),
}
# the other roles are measured by the measure of the same name
MEASURE_OF_ROLE = {"delimiter sink": "special", "broad": "entropy_ratio"}


@dataclass(frozen=True, slots=True)
class HeadRole:
    """A role of a head, and why it has it: a score that reaches the threshold.

    Args:
        role: its name, a key of THRESHOLDS.
        baseline: the score of a head that attends to all keys equally.
    """

    role: str
    score: float
    threshold: float
    baseline: float


class RoleTally:
    """Sums up measures over sentences for every head, and for a uniform head of each reach.

    Args:
        reaches: how far each head attends, of all layers together.
    """

    def __init__(self, reaches: Sequence[Reach]) -> None:
        self._reaches = list(dict.fromkeys(reaches))
        kinds = range(len(self._reaches))
        self._kinds = torch.tensor([*map(self._reaches.index, reaches), *kinds])  # of each head
        heads = len(self._kinds)
        self._sums = dict.fromkeys(AVERAGED_MEASURES, torch.zeros(heads, dtype=torch.float64))
        self._rows = dict.fromkeys(AVERAGED_MEASURES, torch.zeros(heads, dtype=torch.float64))
        self._hits = torch.zeros(heads, 2 * FARTHEST_OFFSET + 2, dtype=torch.float64)
        self._places = torch.zeros(heads, 2 * FARTHEST_OFFSET + 2, dtype=torch.float64)
        self._ordinary = 0

    def add_sentence(self, maps: Tensor, special: Sequence[bool]) -> None:
        """Add one sentence's maps to the sums.

        Args:
            maps: (heads, query, key); each row sums to 1 over key.
            special: for each token, whether the tokenizer added it.
        """
        tokens = maps.shape[1]
        every = torch.arange(tokens)
        far = torch.stack([beyond_reach(every, every, reach) for reach in self._reaches])
        seen = (~far).double()
        uniform = seen / seen.sum(2, keepdim=True)
        maps, seen = torch.cat([maps.double(), uniform]), seen[self._kinds]
        for name, offset in DIAGONAL_OFFSETS.items():
            self._add_to_mean(name, maps.diagonal(offset, 1, 2), seen.diagonal(offset, 1, 2))
        decodes = self._reaches[0].after == 0
        places = [at for at, added in enumerate(special) if added or (decodes and at == 0)]
        for name, columns in (("cls", places[:1]), ("sep", places[1:]), ("special", places)):
            self._add_to_mean(name, maps[:, :, columns].sum(2), seen[:, :, columns].sum(2) > 0)
        keys = seen.sum(2)
        entropy = torch.special.entr(maps).sum(2) / keys.log()
        self._add_to_mean("entropy_ratio", entropy.masked_fill(keys < 2, 0.0), keys > 1)
        self._count_strongest(maps, seen, [place for place in range(tokens) if not special[place]])

    def _add_to_mean(self, name: str, values: Tensor, rows: Tensor) -> None:
        """Add values to a measure's mean over the rows that count, both (heads, rows)."""
        self._sums[name] = self._sums[name] + (values * rows).sum(1)
        self._rows[name] = self._rows[name] + rows.sum(1)

    def _count_strongest(self, maps: Tensor, seen: Tensor, queries: list[int]) -> None:
        """Count at which offset each ordinary token's strongest key is; ties share a hit."""
        rows = maps[:, queries]  # (heads, queries, key)
        strongest = (rows == rows.amax(2, keepdim=True)).double()
        strongest /= strongest.sum(2, keepdim=True)
        offsets = torch.arange(maps.shape[2]) - torch.tensor(queries, dtype=torch.int64)[:, None]
        is_far, past_last = offsets.abs() > FARTHEST_OFFSET, 2 * FARTHEST_OFFSET + 1
        places = (offsets + FARTHEST_OFFSET).masked_fill(is_far, past_last).flatten()
        self._hits.index_add_(1, places, strongest.flatten(1))  # the last place is not counted
        self._places.index_add_(1, places, seen[:, queries].flatten(1))
        self._ordinary += len(queries)

    def measures(self) -> list[tuple[dict[str, float], dict[str, float]]]:
        """Return for each head (measures, baselines), both by name; NaN without a row."""
        measures = {name: self._sums[name] / self._rows[name] for name in AVERAGED_MEASURES}
        rare = self._places < max(1, self._ordinary / 2)
        best = (self._hits / self._places).masked_fill(rare, -1.0)[:, :-1].max(1)
        measures["positional"] = best.values.masked_fill(best.values < 0, math.nan)
        offsets = best.indices - FARTHEST_OFFSET
        measures["offset"] = offsets.masked_fill(best.values < 0, 0).double()
        every = [
            {name: values[head].item() for name, values in measures.items()}
            for head in range(len(best.values))
        ]
        heads = len(every) - len(self._reaches)
        return [(every[head], every[heads + int(self._kinds[head])]) for head in range(heads)]


def find_roles(
    measures: Mapping[str, float],
    baseline: Mapping[str, float],
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> list[HeadRole]:
    """Return the roles whose thresholds a head's measures reach, in the order of the thresholds.

    Example:
        >>> alike = dict.fromkeys((*AVERAGED_MEASURES, "positional"), 0.1)
        >>> find_roles({**alike, "previous": 0.9}, alike)
        [HeadRole(role='previous', score=0.9, threshold=0.5, baseline=0.1)]
    """
    scored = {role: MEASURE_OF_ROLE.get(role, role) for role in thresholds}
    return [
        HeadRole(role, measures[name], thresholds[role], baseline[name])
        for role, name in scored.items()
        if measures[name] >= thresholds[role]
    ]
