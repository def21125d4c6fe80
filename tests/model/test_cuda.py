"""model/cuda.py, without a GPU.

What is computed is tried on a processor, with a stand-in for the one function that only a GPU has;
how torch's own are called, on tensors without numbers. benchmarks/gpu.py has the rest.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from model import cuda, kernels
from model.attention.attention import MultiHeadAttention
from model.attention.positions import beyond_reach
from model.attention.reach import EVERYWHERE, Reach
from model.kernels import PLAIN
from model.packing import Sequence, pack_sequences

CPU, META = torch.device("cpu"), torch.device("meta")
HEADS, HEAD = 3, 8
SHARED = 1  # heads of keys and values, where all share them
REACHES = (EVERYWHERE, Reach(2, 2), Reach(None, 0))
WIDTH = HEADS * HEAD
BATCH = [7, 2, 7, 11]  # tokens of each sequence


def by_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Tensor,
    same: Tensor,
    longest: int,
    as_long: int,
    *,
    return_aux: varlen.AuxRequest,
    scale: float,
    window_size: tuple[int, int],
    num_splits: int,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:
    """What varlen_attn is documented to give, a sequence at a time."""
    edges = list(pairwise(places.tolist()))
    assert places.dtype == torch.int32 and torch.equal(places, same)
    assert longest == as_long == max(2, *(stop - start for start, stop in edges))
    assert num_splits == 1 and return_aux.lse and enable_gqa
    sharing = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(sharing, 1), v.repeat_interleave(sharing, 1)
    pairs = []
    for start, stop in edges:
        place = torch.arange(stop - start)
        before, after = (None if side < 0 else side for side in window_size)
        far = beyond_reach(place, place, Reach(before, after))
        mask = torch.zeros(len(place), len(place)).masked_fill(far, -torch.inf)[None]
        parts = [part[start:stop].transpose(0, 1)[None] for part in (q, k, v)]
        pairs.append(PLAIN.attend(parts[0], parts[1], parts[2], scale, mask))
    mixed, normalisers = zip(*pairs, strict=True)
    return torch.cat(mixed, 2)[0].transpose(0, 1), torch.cat(normalisers, 2)[0]


def layer(kernels: Any, reach: Reach, like: Tensor, shared: int = HEADS) -> MultiHeadAttention:
    """One attention with fixed weights, and so many heads of keys and values."""
    random = torch.Generator().manual_seed(0)
    channels = WIDTH + 2 * shared * HEAD
    shapes = ((channels, WIDTH), (channels,), (WIDTH, WIDTH), (WIDTH,))
    weights = [torch.randn(shape, generator=random).to(like) / 5 for shape in shapes]
    qkv, output = (weights[0], weights[1]), (weights[2], weights[3])
    return MultiHeadAttention(qkv, output, HEADS, kernels, reach=reach)


@pytest.mark.parametrize("reach", REACHES, ids=["everywhere", "window", "before"])
@pytest.mark.parametrize("batch", [BATCH, [5], [1, 1]], ids=["full", "filled up", "single tokens"])
@pytest.mark.parametrize("shared", [HEADS, SHARED], ids=["own keys", "shared keys"])
def test_one_call_for_a_batch_gives_what_a_call_for_each_length_gives(
    monkeypatch: pytest.MonkeyPatch, shared: int, batch: list[int], reach: Reach
) -> None:
    """Values, and the normalisers of each sequence; rows that only fill up mix nothing."""
    monkeypatch.setattr(varlen, "varlen_attn", by_sequence)
    packed = pack_sequences([Sequence([0] * length) for length in batch], CPU)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(len(packed.token_ids), WIDTH, generator=random)

    ways = [replace(PLAIN, attend_packed=cuda.attend_packed), PLAIN]
    plainly = [None] * len(packed.groups)
    results = [layer(way, reach, x, shared)(x, x, packed, plainly) for way in ways]
    (one, left), (each, right) = results

    torch.testing.assert_close(one, each, rtol=0, atol=1e-5)
    for i in range(len(batch)):
        pair = [trace.normaliser_of(packed.rows(i)) for trace in (left, right)]
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5)


@wraps(by_sequence)
def by_row(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The same with the normaliser as torch's page says, (rows, heads)."""
    mixed, normaliser = by_sequence(*args, **kwargs)
    return mixed, normaliser.T


@pytest.mark.parametrize("torchs", [by_sequence, by_row], ids=["given", "documented"])
def test_how_a_normaliser_lies_is_found_out_before_any_batch(
    monkeypatch: pytest.MonkeyPatch, torchs: Callable[..., Any]
) -> None:
    """One way agrees with the plain kernels, and is right where rows and heads are as many."""
    monkeypatch.setattr(varlen, "varlen_attn", torchs)
    ways = cuda.find_packed_attention(torch.bfloat16)
    tried = [replace(PLAIN, attend_packed=way) for way in ways]
    agreed = []
    for way in tried:
        monkeypatch.setattr(kernels, "ONEDNN", way)
        agreed += [way] if kernels.choose_kernels(CPU, torch.float32, HEAD) is way else []
    assert len(agreed) == 1 < len(tried)
    packed = pack_sequences([Sequence([0] * HEADS)], CPU)  # as many rows as heads
    x = torch.randn(len(packed.token_ids), WIDTH, generator=torch.Generator().manual_seed(1))

    traces = [layer(way, EVERYWHERE, x)(x, x, packed, [None])[1] for way in (agreed[0], PLAIN)]

    one, each = (trace.normaliser_of(packed.rows(0)) for trace in traces)
    torch.testing.assert_close(one, each, rtol=0, atol=1e-5)


def test_a_full_batch_is_mixed_without_a_copy_or_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch gives is passed on; normalisers are cut out where a map is made, not before."""
    mixed, normaliser = torch.zeros(sum(BATCH), HEADS, HEAD), torch.zeros(HEADS, sum(BATCH))
    monkeypatch.setattr(varlen, "varlen_attn", lambda *args, **kwargs: (mixed, normaliser))
    packed, x = (
        pack_sequences([Sequence([0] * length) for length in BATCH], CPU),
        torch.zeros(27, WIDTH),
    )
    packed = replace(packed, token_ids=packed.token_ids[:27])
    way = replace(PLAIN, attend_packed=cuda.attend_packed)

    _, trace = layer(way, EVERYWHERE, x)(x, x, packed, [None] * len(packed.groups))

    assert trace.z.data_ptr() == mixed.data_ptr()
    assert trace.row_normalisers is normaliser and trace.normalisers == ()


def test_rows_of_no_sequence_are_a_bug_here_too() -> None:
    """A trace does not make up a normaliser of what only fills up."""
    packed, nothing = pack_sequences([Sequence([0] * 5)], CPU), torch.zeros(16, WIDTH)
    spread = torch.zeros(HEADS, 16)
    way = replace(PLAIN, attend_packed=lambda q, k, v, *rest: (v, spread))
    _, trace = layer(way, EVERYWHERE, nothing)(
        nothing, nothing, packed, [None] * len(packed.groups)
    )

    with pytest.raises(RuntimeError, match="bug"):
        trace.normaliser_of(slice(5, 16))


def test_keys_that_heads_share_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads them for each head that shares them: no copy is made."""
    given = []

    def note(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        given.append((q.shape[1], k.shape[1], v.shape[1]))
        return by_sequence(q, k, v, *args, **kwargs)

    monkeypatch.setattr(varlen, "varlen_attn", wraps(by_sequence)(note))
    packed, x = pack_sequences([Sequence([0] * 16)], CPU), torch.zeros(16, WIDTH)
    way = replace(PLAIN, attend_packed=cuda.attend_packed)

    layer(way, EVERYWHERE, x, SHARED)(x, x, packed, [None])

    assert given == [(HEADS, SHARED, SHARED)]


@pytest.mark.parametrize("reach", REACHES, ids=["everywhere", "window", "before"])
@pytest.mark.parametrize("shared", [HEADS, SHARED], ids=["own keys", "shared keys"])
def test_torch_takes_all_sequences_as_they_are_given(shared: int, reach: Reach) -> None:
    """Its own function, on tensors without numbers: names, shapes and formats fit."""
    spread, *_ = cuda.find_packed_attention(torch.bfloat16)
    assert spread is cuda.attend_packed
    packed = pack_sequences([Sequence([0] * length) for length in BATCH], META)
    q = torch.empty(len(packed.token_ids), HEADS, HEAD, dtype=torch.bfloat16, device=META)

    mixed, normaliser = spread(q, q[:, :shared], q[:, :shared], packed, 0.5, reach)

    assert mixed.shape == q.shape and mixed.dtype == q.dtype
    assert normaliser.shape == (HEADS, len(q)) and normaliser.dtype == torch.float32


@pytest.mark.parametrize("biased", [False, True])
def test_torch_takes_the_sequences_of_one_length_as_they_are_given(biased: bool) -> None:
    """The normaliser comes padded, and is cut to its queries."""
    q = torch.empty(5, HEADS, 7, HEAD, dtype=torch.bfloat16, device=META)
    bias = torch.empty(HEADS, 7, 7, device=META) if biased else None

    mixed, normaliser = cuda.attend_grouped(q, q, q, 0.5, bias)

    assert mixed.shape == q.shape and mixed.dtype == q.dtype
    assert normaliser.shape == q.shape[:3] and normaliser.dtype == torch.float32
