"""model/attention/disentangled.py: what a distance adds by content, and what that takes."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.attention.disentangled import MOST_CELLS, DistanceBias, distance_rows, queries_per_pass
from model.config import Relative

HEADS, HEAD = 3, 7
MOST = 1024  # of which a quarter is taken at a time


def made(relative: Relative, count: int = MOST) -> DistanceBias:
    """Random tables of as many rows."""
    random = torch.Generator().manual_seed(0)
    tables = [torch.randn(HEADS, 2 * relative.reach, HEAD, generator=random) for _ in range(2)]
    keys, queries = (
        table if there else None
        for table, there in zip(tables, (relative.by_query, relative.by_key), strict=True)
    )
    return DistanceBias(keys, queries, distance_rows(relative, count))


def drawn(tokens: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of a sequence."""
    random = torch.Generator().manual_seed(tokens)
    q, k = torch.randn(2, HEADS, tokens, HEAD, generator=random)
    return q, k


TERMS = {"both": (True, True), "queries": (True, False), "keys": (False, True)}


@pytest.mark.parametrize(("by_query", "by_key"), TERMS.values(), ids=TERMS)
def test_each_cell_is_the_products_with_its_distances_row(by_query: bool, by_key: bool) -> None:
    """Written out, of some heads, some queries and some keys."""
    tokens, relative = 23, Relative(reach=5, furthest=40, by_query=by_query, by_key=by_key)
    distances, (q, k), place = made(relative), drawn(tokens), distance_rows(relative, tokens)
    queries, keys, heads = torch.tensor([22, 0, 7]), slice(3, 20), [2, 0]

    found = distances(q, k, queries, keys, heads)

    for row, head in enumerate(heads):
        for line, i in enumerate(queries.tolist()):
            for column, j in enumerate(range(3, 20)):
                at, expected = place[tokens - 1 + j - i], torch.zeros(())
                if distances.keys is not None:
                    expected = expected + q[head, i] @ distances.keys[head, at]
                if distances.queries is not None:
                    expected = expected + k[head, j] @ distances.queries[head, at]
                torch.testing.assert_close(found[row, line, column], expected)


@pytest.mark.parametrize("tokens", [1, 8, 200, MOST])
@pytest.mark.parametrize(("by_query", "by_key"), TERMS.values(), ids=TERMS)
def test_a_score_takes_the_products_that_its_price_counts(
    by_query: bool, by_key: bool, tokens: int
) -> None:
    """As torch counts them, of a whole sequence a tile at a time."""
    relative = Relative(reach=50, by_query=by_query, by_key=by_key)
    distances, (q, k) = made(relative), drawn(tokens)

    with FlopCounterMode(display=False) as counted:
        for first in range(0, tokens, queries_per_pass(tokens)):
            distances(q, k, slice(first, first + queries_per_pass(tokens)), slice(0, tokens))

    own = 2 * HEADS * HEAD * tokens**2
    assert counted.get_total_flops() == round(
        own * relative.count_products(queries_per_pass(tokens), tokens)
    )


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 8192, 10**6])
def test_no_more_than_so_many_scores_of_a_head_are_there_at_once(tokens: int) -> None:
    """Of a short text all, of one too long even for that a query at a time."""
    assert 1 <= queries_per_pass(tokens) <= tokens
    assert queries_per_pass(tokens) * tokens <= MOST_CELLS or queries_per_pass(tokens) == 1
    assert queries_per_pass(tokens) == tokens or tokens > 512
