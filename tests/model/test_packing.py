"""model/packing.py"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.packing import FEWEST_ROWS, Packed, Sequence, filled_rows, pack_sequences

CPU = torch.device("cpu")

batches = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=23), min_size=1, max_size=13)


def packed(batch: list[list[int]]) -> Packed:
    """A batch of token ids as rows."""
    return pack_sequences([Sequence(ids) for ids in batch], CPU)


@given(batches)
def test_each_sequence_is_found_where_the_batch_says(batch: list[list[int]]) -> None:
    """The rows of number i hold the i-th sequence given, whatever the order inside."""
    rows = packed(batch)

    assert [rows.token_ids[rows.rows(i)].tolist() for i in range(len(batch))] == batch


@given(batches)
def test_positions_begin_anew_in_each_sequence(batch: list[list[int]]) -> None:
    """A token's position is counted in its own sequence."""
    rows = packed(batch)

    for i, ids in enumerate(batch):
        assert rows.positions[rows.rows(i)].tolist() == list(range(len(ids)))


@given(batches)
def test_groups_tile_the_rows_and_sequences_of_one_length_share_one(batch: list[list[int]]) -> None:
    """Attention takes each group as a view, so nothing may lie between or be cut apart."""
    groups = packed(batch).groups

    assert [group.length for group in groups] == sorted({len(ids) for ids in batch})
    assert groups[0].start == 0
    assert all(one.rows.stop == other.rows.start for one, other in pairwise(groups))
    assert groups[-1].rows.stop == sum(map(len, batch))


@pytest.mark.parametrize(("tokens", "rows"), [(1, 16), (16, 16), (17, 20), (41, 44), (129, 144)])
def test_a_batch_is_filled_up(tokens: int, rows: int) -> None:
    """Below FEWEST_ROWS the matrix kernels round differently; above, numbers of rows are few."""
    assert FEWEST_ROWS == 16

    assert packed([[7] * tokens]).token_ids.shape == (rows,)


def test_few_rows_are_fill() -> None:
    """However long a batch: an eighth at most, or three rows; and full ones have none."""
    numbers = [filled_rows(tokens, CPU) for tokens in range(16, 16_385)]

    assert all(0 <= rows - n <= max(3, n / 8) for n, rows in enumerate(numbers, 16))
    assert {filled_rows(rows, CPU) for rows in numbers} == set(numbers)
    assert len(set(numbers)) < 80


def test_types_stand_beside_their_tokens() -> None:
    """Types are the ones given, 0 where none are."""
    rows = pack_sequences([Sequence([5, 6, 7], [0, 1, 1]), Sequence([8, 9])], CPU)

    assert rows.types[rows.rows(0)].tolist() == [0, 1, 1]
    assert rows.types[rows.rows(1)].tolist() == [0, 0]


def test_embeddings_are_placed_among_token_ids() -> None:
    """A sequence of vectors has rows like any other; its token ids there mean nothing."""
    vectors = torch.ones(3, 5)

    rows = pack_sequences(
        [Sequence([5, 6, 7, 8, 9]), Sequence(embeddings=vectors), Sequence([3, 4])], CPU
    )

    assert [(place, given is vectors) for place, given in rows.embeddings] == [(rows.rows(1), True)]
    assert rows.token_ids[rows.rows(1)].tolist() == [0, 0, 0]
    assert rows.token_ids[rows.rows(2)].tolist() == [3, 4]


def test_a_sequence_is_as_long_as_what_it_holds() -> None:
    """Token ids or vectors count, and nothing is nothing."""
    lengths = [
        len(Sequence([1, 2, 3])),
        len(Sequence(embeddings=torch.ones(5, 7))),
        len(Sequence()),
    ]

    assert lengths == [3, 5, 0]
