"""model/pooling.py"""

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from sentence_transformers import SentenceTransformer

from model import kernels
from model.config import PoolingMode
from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences
from model.pooling import Dense, Pooling, pool_each, pool_sequence, pool_together

CPU = torch.device("cpu")
TOKENS = torch.tensor([[1.0, -2.0], [3.0, 5.0], [2.0, 3.0]])  # (tokens, width)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [2.0, 2.0]),
        ("max", [3.0, 5.0]),
        ("cls", [1.0, -2.0]),
        ("last", [2.0, 3.0]),
        ("mean_sqrt_len", [6 / 3**0.5, 6 / 3**0.5]),
        ("weightedmean", [13 / 6, 17 / 6]),
    ],
)
def test_each_mode_makes_its_one_vector(mode: PoolingMode, expected: list[float]) -> None:
    """Worked by hand."""
    assert pool_sequence(TOKENS, Pooling((mode,), normalize=False)).tolist() == pytest.approx(
        expected
    )


def test_several_modes_stand_end_to_end() -> None:
    """In the order given."""
    how = Pooling(("last", "cls"), normalize=False)

    assert pool_sequence(TOKENS, how).tolist() == [2, 3, 1, -2]
    assert how.uncut_size(2) == 4


def test_dense_layers_come_before_the_cut_and_that_before_the_norm() -> None:
    """tanh([[1, 1], [2, 0], [0, 3]] [2, 3] + [0, -4, -8]) begins with 5, 0."""
    weight, bias = torch.tensor([[1.0, 1], [2, 0], [0, 3]]), torch.tensor([0.0, -4, -8])
    dense = Dense(kernels.PLAIN.linear(weight, bias), torch.tanh, 3, weight.numel())
    how = Pooling(("last",), normalize=False, layers=(dense,))

    assert pool_sequence(TOKENS, how).tolist() == pytest.approx([math.tanh(5), 0, math.tanh(1)])
    assert pool_sequence(TOKENS, replace(how, normalize=True, dimensions=2)).tolist() == [1, 0]
    assert how.uncut_size(2) == 3


def test_a_normalised_vector_has_length_one() -> None:
    """And its own direction."""
    vector = pool_sequence(TOKENS, Pooling(("mean",), normalize=True))

    assert vector.tolist() == pytest.approx([0.5**0.5, 0.5**0.5])


def test_a_zero_vector_stays_zero() -> None:
    """Normalising it makes no NaN."""
    assert pool_sequence(torch.zeros(3, 2), Pooling(("mean",), normalize=True)).tolist() == [0, 0]


def test_dimensions_are_cut_before_the_vector_is_normalised() -> None:
    """A shortened vector has length 1 as well."""
    assert pool_sequence(TOKENS, Pooling(("last",), normalize=True, dimensions=1)).tolist() == [1]


def test_half_precision_tokens_are_pooled_in_float32() -> None:
    """A mean over many tokens is not rounded at each step."""
    tokens = torch.full((4097, 1), 1 / 3).bfloat16()

    pooled = pool_sequence(tokens, Pooling(("mean",), normalize=False))

    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, tokens[0].float())


@pytest.mark.parametrize("mode", get_args(PoolingMode))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pooled_together_each_sequence_has_its_own_vector(
    mode: PoolingMode, dtype: torch.dtype
) -> None:
    """The way of GPUs: in any order, whatever lies between, as pooled one by one."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randn(29, 5, generator=random).to(dtype)
    rows = [slice(11, 18), slice(0, 1), slice(18, 29), slice(2, 5)]
    ways = [Pooling((mode,), normalize=False), Pooling((mode, "cls"), True, dimensions=7)]

    for how in ways:
        together = pool_together(tokens, rows, how)

        assert together.dtype == torch.float32
        torch.testing.assert_close(together, pool_each(tokens, rows, how), rtol=0, atol=1e-6)


def test_pooled_together_dense_layers_come_before_the_cut() -> None:
    """As one by one."""
    random = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 2, generator=random), torch.randn(3, generator=random)
    dense = Dense(kernels.PLAIN.linear(weight, bias), torch.tanh, 3, weight.numel())
    how = Pooling(("mean",), normalize=True, dimensions=2, layers=(dense,))
    rows = [slice(1, 3), slice(0, 3)]

    together = pool_together(TOKENS, rows, how)

    torch.testing.assert_close(together, pool_each(TOKENS, rows, how), rtol=0, atol=1e-6)


@pytest.fixture
def peer(folder: Path) -> SentenceTransformer:
    """sentence-transformers on the same files."""
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize(
    "limit",
    [pytest.param(512, id="longest", marks=pytest.mark.prove), pytest.param(256, id="default")],
)
def test_pooled_vectors_are_those_of_sentence_transformers(
    model: Model, peer: SentenceTransformer, texts: list[str], essay: str, limit: int
) -> None:
    """Text in, vector out, cut to the same length; all of ours in one batch."""
    peer.max_seq_length = limit
    expected = peer.encode([*texts, essay], batch_size=7, convert_to_tensor=True)

    cut = model.tokenizer([(text,) for text in [*texts, essay]], limit, "right")
    packed = pack_sequences([Sequence(tokens.token_ids) for tokens in cut], CPU)
    last = model.encoder(packed).last
    pooled = torch.stack(
        [pool_sequence(last[packed.rows(i)], model.pooling) for i in range(len(cut))]
    )

    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-5)


def test_left_to_itself_the_model_reads_as_far_as_sentence_transformers(
    model: Model, peer: SentenceTransformer
) -> None:
    """The checkpoint says how long a sequence it was made for."""
    assert model.max_tokens == peer.max_seq_length == 256
