"""model/attention/attention.py"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from model.attention.attention import MultiHeadAttention, Trace
from model.attention.positions import beyond_reach
from model.attention.reach import EVERYWHERE, Reach
from model.kernels import ONEDNN, PLAIN, Kernels
from model.loading.checkpoint import Model
from model.packing import Packed, Sequence, pack_sequences
from tests.multi_head import head_weights

CPU = torch.device("cpu")
HEADS, HEAD = 3, 5
WIDTH = HEADS * HEAD
BATCH = [7, 2, 7, 11]  # tokens of each sequence

either = pytest.mark.parametrize(
    "chosen", [way for way in (PLAIN, ONEDNN) if way], ids=lambda way: way.name
)


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QKV = numbers(3 * WIDTH, WIDTH, seed=0) / WIDTH**0.5, numbers(3 * WIDTH, seed=1)
OUTPUT = numbers(WIDTH, WIDTH, seed=2) / WIDTH**0.5, numbers(WIDTH, seed=3)
PACKED = pack_sequences([Sequence([0] * length) for length in BATCH], CPU)
PLAINLY = [None] * len(PACKED.groups)  # nothing is added to the scores
X = numbers(sum(BATCH), WIDTH, seed=4)


def by_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    """torch.nn's own layer with the same weights: what it mixes, and its maps per head."""
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).requires_grad_(False)
    layer.in_proj_weight.copy_(QKV[0])
    layer.in_proj_bias.copy_(QKV[1])
    layer.out_proj.weight.copy_(OUTPUT[0])
    layer.out_proj.bias.copy_(OUTPUT[1])
    mixed, maps = layer(x[None], x[None], x[None], average_attn_weights=False)
    return mixed[0], maps[0]


@either
def test_each_sequence_is_mixed_as_by_torchs_own_layer(chosen: Kernels) -> None:
    """x + MultiHead(x), for every sequence by itself, though all lie in one matrix."""
    mixed, _ = MultiHeadAttention(QKV, OUTPUT, HEADS, chosen)(X, X, PACKED, PLAINLY)

    for i in range(len(BATCH)):
        x = X[PACKED.rows(i)]
        torch.testing.assert_close(mixed[PACKED.rows(i)], x + by_torch(x)[0], rtol=0, atol=1e-5)


@either
def test_a_token_moves_nothing_in_another_sequence(chosen: Kernels) -> None:
    """Changing one sequence leaves every other row at the same bits."""
    attention = MultiHeadAttention(QKV, OUTPUT, HEADS, chosen)
    other, changed = X.clone(), PACKED.rows(2)
    other[changed] += 1

    before, after = attention(X, X, PACKED, PLAINLY)[0], attention(other, other, PACKED, PLAINLY)[0]

    moved = (before != after).any(-1)
    assert moved[changed].all()
    assert moved.sum() == BATCH[2]


@either
def test_the_heads_one_by_one_make_the_layer(chosen: Kernels) -> None:
    """Z_i = softmax(Q_i K_i^T / sqrt(d)) V_i; Concat(Z) W_O is the sum of Z_i W_i^O."""
    attention = MultiHeadAttention(QKV, OUTPUT, HEADS, chosen)
    x = X[PACKED.rows(3)]

    total = x + OUTPUT[1]
    for i in range(HEADS):
        head = head_weights(attention, i)
        q_bias, k_bias, v_bias = QKV[1].view(3, HEADS, HEAD)[:, i]
        q, k, v = x @ head.query + q_bias, x @ head.key + k_bias, x @ head.value + v_bias
        z = (q @ k.T / HEAD**0.5).softmax(-1) @ v
        total = total + z @ head.output

    mixed = attention(X, X, PACKED, PLAINLY)[0][PACKED.rows(3)]
    torch.testing.assert_close(total, mixed, rtol=0, atol=1e-5)


def test_the_shapes_of_a_heads_weights_are_the_papers(model: Model) -> None:
    """W_i^Q, W_i^K, W_i^V are (width, head), W_i^O is (head, width); the 12 W_i^O stack to W^O."""
    attention = model.encoder.layers[0].attention

    heads = [head_weights(attention, i) for i in range(12)]

    assert {part.shape for head in heads for part in head[:3]} == {(384, 32)}
    stacked = torch.cat([head.output for head in heads])
    assert torch.equal(stacked, attention.output.weight().T)


@pytest.mark.parametrize("layer", range(6))
def test_the_real_heads_one_by_one_make_the_real_layer(
    model: Model, folder: Path, layer: int
) -> None:
    """The per-head views of the served weights recompute what the served layer gives."""
    attention = model.encoder.layers[layer].attention
    packed = pack_sequences([Sequence([101, 2035, 2003, 2092, 102])], CPU)
    x = model.encoder(packed, hidden=frozenset({layer})).hidden[layer]
    name = f"encoder.layer.{layer}.attention"
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        biases = [file.get_tensor(f"{name}.self.{part}.bias") for part in ("query", "key", "value")]
        total = x + file.get_tensor(f"{name}.output.dense.bias")

    rows = packed.rows(0)
    for i in range(attention.heads):
        head, part = head_weights(attention, i), slice(32 * i, 32 * (i + 1))
        q, k, v = (
            x[rows] @ weight + bias[part] for weight, bias in zip(head[:3], biases, strict=True)
        )
        total[rows] += (q @ k.T / 32**0.5).softmax(-1) @ v @ head.output

    torch.testing.assert_close(
        total[rows],
        attention(x, x, packed, [None] * len(packed.groups))[0][rows],
        rtol=0,
        atol=1e-5,
    )


@either
def test_a_trace_holds_the_queries_keys_and_normalisers_of_each_sequence(chosen: Kernels) -> None:
    """They give back torch's own maps, whichever group a sequence lies in."""
    _, trace = MultiHeadAttention(QKV, OUTPUT, HEADS, chosen)(X, X, PACKED, PLAINLY)

    for i in range(len(BATCH)):
        rows = PACKED.rows(i)
        q, k = (part[rows].transpose(0, 1) for part in (trace.q, trace.k))
        scores = q @ k.transpose(1, 2) * trace.attention.scale
        maps = (scores - trace.normaliser_of(rows).unsqueeze(-1)).exp()
        torch.testing.assert_close(maps, by_torch(X[rows])[1], rtol=0, atol=1e-5)


def test_rows_of_no_sequence_are_a_bug_and_said_to_be_one() -> None:
    """A trace does not make up a normaliser."""
    nothing = torch.zeros(3, HEADS, HEAD)
    attention = MultiHeadAttention(QKV, OUTPUT, HEADS, PLAIN)
    trace = Trace(attention, nothing, nothing, nothing, nothing, (), (), ())

    with pytest.raises(RuntimeError, match="bug"):
        trace.normaliser_of(slice(0, 3))


@either
def test_fill_mixes_nothing(chosen: Kernels) -> None:
    """Rows that only fill a short batch up take no value from any token."""
    packed = pack_sequences([Sequence([0] * 5)], CPU)
    x = numbers(len(packed.token_ids), WIDTH, seed=5)

    mixed, _ = MultiHeadAttention(QKV, OUTPUT, HEADS, chosen)(
        x, x, packed, [None] * len(packed.groups)
    )

    torch.testing.assert_close(mixed[5:], x[5:] + OUTPUT[1], rtol=0, atol=1e-6)


def test_sequences_of_one_length_are_attended_to_together() -> None:
    """Each length once, the shortest first."""
    seen = []

    def recorded(
        q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        seen.append(tuple(q.shape))  # (sequences, heads, tokens, head)
        return PLAIN.attend(q, k, v, scale, bias)

    MultiHeadAttention(QKV, OUTPUT, HEADS, replace(PLAIN, attend=recorded))(X, X, PACKED, PLAINLY)

    assert seen == [(1, HEADS, 2, HEAD), (2, HEADS, 7, HEAD), (1, HEADS, 11, HEAD)]


@pytest.mark.parametrize(
    "reach", [EVERYWHERE, Reach(2, 2), Reach(None, 0)], ids=["everywhere", "window", "before"]
)
def test_one_call_for_all_sequences_gives_what_a_call_for_each_length_gives(
    reach: Reach,
) -> None:
    """The way of GPUs: values, normalisers and so the maps fall into the same places."""

    def spread(
        q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        mixed, normaliser = torch.zeros_like(v), torch.zeros(HEADS, len(q))
        for i in range(len(BATCH)):
            rows = packed.rows(i)
            parts = [part[rows].transpose(0, 1)[None] for part in (q, k, v)]
            place = torch.arange(BATCH[i])
            far = beyond_reach(place, place, reach)
            mask = torch.zeros(BATCH[i], BATCH[i]).masked_fill(far, -torch.inf)[None]
            z, each = PLAIN.attend(parts[0], parts[1], parts[2], scale, mask)
            mixed[rows], normaliser[:, rows] = z[0].transpose(0, 1), each[0]
        return mixed, normaliser

    ways = [replace(PLAIN, attend_packed=spread), PLAIN]
    layers = [MultiHeadAttention(QKV, OUTPUT, HEADS, way, reach=reach) for way in ways]
    (one, left), (each, right) = (layer(X, X, PACKED, PLAINLY) for layer in layers)

    torch.testing.assert_close(one, each, rtol=0, atol=1e-5)
    for i in range(len(BATCH)):
        pair = (trace.normaliser_of(PACKED.rows(i)) for trace in (left, right))
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5)
