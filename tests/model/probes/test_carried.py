"""model/probes/carried.py, next to a twin in float64 that carries each vector by itself."""

import copy
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from model.adapters import Adapter, LinearTerm
from model.config import PoolingMode
from model.encoder import Encoder
from model.kernels import ACTIVATIONS, PLAIN, Linear, NormedLinear
from model.lessons import explain_layer
from model.packing import Sequence
from model.probes.carried import FACTORS, Sources, carry_sources
from tests.model.lessons.test_explain import KINDS, TOKENS, WIDTH, drawn

IDS = [*range(TOKENS)]
ALONE = tuple(range(1, TOKENS + 1))  # each token a source of its own
EVERY = range(TOKENS + 1)
CLOSE, EXACT = 1e-5, 1e-12  # absolute, in float32 and in float64

kinds = pytest.mark.parametrize("kind", KINDS)


def carried(encoder: Encoder, sources: Sources, **sequence: Any) -> Tensor:
    """What each source adds, float64."""
    with torch.inference_mode():
        return carry_sources(encoder, Sequence(IDS, **sequence), sources).double()


def pooled(encoder: Encoder, mode: PoolingMode, **sequence: Any) -> Tensor:
    """The vector of the pass that serves, float64."""
    packed = encoder.pack([Sequence(IDS, **sequence)])
    with torch.inference_mode():
        rows = encoder(packed).last[packed.rows(0)].double()
    return rows.mean(0) if mode == "mean" else rows[-1]


class Twin:
    """A pass in float64 and its parts, (part, token, width): part s of token s - 1, 0 of biases.

    With gates, by layer and head, as factors of what is mixed. `entered` is what the attention of
    each layer reads, the stream and its parts.
    """

    def __init__(self, encoder: Encoder, gates: Mapping[int, Mapping[int, float]] = {}) -> None:
        self.encoder, self.config, self.gates = encoder, encoder.config, gates
        packed = encoder.pack([Sequence(IDS)])
        self.x = encoder.embeddings(packed)[packed.rows(0)].double()
        self.parts = torch.zeros(TOKENS + 1, TOKENS, WIDTH).double()
        self.parts[1:][IDS, IDS] = self.x
        self.entered = list[tuple[Tensor, Tensor]]()
        for index in range(self.config.layers):
            self.run_layer(index)

    def run_layer(self, index: int) -> None:
        """Run one layer as encoder.Layer describes it."""
        first, second, last = self.encoder.layers[index].norms
        x, parts = self.x, self.parts
        if first is not None:
            x, parts = self.norm(x, parts, first)
        self.entered.append((x, parts))
        self.add(self.attend(index, x, parts))
        x, parts = self.norm(self.x, self.parts, second)
        if not self.config.pre_norm:
            self.x, self.parts = x, parts
        self.add(self.feed_forward(index, x, parts))
        if last is not None:
            self.x, self.parts = self.norm(self.x, self.parts, last)

    def add(self, more: tuple[Tensor, Tensor]) -> None:
        """Add to the stream, and to each part of it."""
        self.x, self.parts = self.x + more[0], self.parts + more[1]

    def norm(self, x: Tensor, parts: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        """LayerNorm or RMSNorm of the stream, by the book; each part by the stream's divisor."""
        weight, bias = (0 if each is None else each.double() for each in norm)
        if self.config.norm == "layer":
            x, parts = x - x.mean(-1, keepdim=True), parts - parts.mean(-1, keepdim=True)
        sigma = (x.square().mean(-1, keepdim=True) + self.config.norm_eps) ** 0.5
        divided = parts / sigma * weight
        divided[0] += bias
        return x / sigma * weight + bias, divided

    def linear(self, x: Tensor, parts: Tensor, linear: Linear) -> tuple[Tensor, Tensor]:
        """A product of each vector; the bias goes to the stream and to the part of biases."""
        if isinstance(linear, NormedLinear):
            return self.norm(*self.linear(x, parts, linear.linear), linear.norm)
        weight, bias = linear.weight().double(), linear.bias
        bias = 0 if bias is None else bias.double()
        made = parts @ weight.T
        made[0] += bias
        return x @ weight.T + bias, made

    def attend(self, index: int, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Values mixed head by head, as the layer's lesson has the probabilities."""
        attention = self.encoder.layers[index].attention
        x, parts = self.linear(x, parts, attention.project)
        mixed = torch.cat(self.mix(index, torch.cat([x[None], parts])), -1)
        return self.linear(mixed[0], mixed[1:], attention.output)

    def mix(self, index: int, rows: Tensor) -> list[Tensor]:
        """What each head mixes of rows of W^Q, W^K, W^V, (.., tokens, head_dim) each."""
        attention = self.encoder.layers[index].attention
        told = explain_layer(self.encoder, index, self.x.float())
        pattern, gates = told["probabilities"].double(), self.gates.get(index, {})
        size, keys = attention.head_dim, attention.parts[1]
        start = (attention.heads + keys) * size
        firsts = [start + h // attention.sharing * size for h in range(attention.heads)]
        return [
            gates.get(h, 1) * pattern[h] @ rows[..., at : at + size] for h, at in enumerate(firsts)
        ]

    def feed_forward(self, index: int, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Each activation as activation(z) / z, or where it gates, as the gate that it was."""
        layer, act = self.encoder.layers[index], ACTIVATIONS[self.config.activation]
        x, parts = self.linear(x, parts, layer.up)
        half = x.shape[1] // 2
        if self.config.gated:
            factor, x, parts = act(x[:, :half]), x[:, half:], parts[..., half:]
        else:
            factor = torch.where(x == 0, 0.5, act(x) / x)
        return self.linear(factor * x, factor * parts, layer.down)


@cache
def twin(kind: str) -> Twin:
    """Of one kind's encoder."""
    return Twin(drawn(kind))


@kinds
def test_in_float64_parts_sum_to_the_pass(kind: str) -> None:
    """Every number of every token, within rounding; and the pass is the one that serves."""
    own = twin(kind)

    gaps, largest = (own.parts.sum(0) - own.x).abs().amax(1), own.x.abs().amax(1)
    assert bool((gaps < EXACT * largest.clamp(min=1)).all())
    last = pooled(drawn(kind), "last")
    torch.testing.assert_close(own.x[-1], last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["mean", "last"])
@kinds
def test_each_part_is_what_brute_force_finds(kind: str, mode: PoolingMode) -> None:
    """Of all biases and of each token; together they are the vector that is served."""
    own, scale = twin(kind), pooled(drawn(kind), mode).abs().max()
    expected = own.parts.mean(1) if mode == "mean" else own.parts[:, -1]

    actual = carried(drawn(kind), Sources(ALONE, EVERY, (mode,)))

    assert float((actual - expected).abs().max()) < CLOSE * max(1, float(expected.abs().max()))
    assert float((actual.sum(0) - pooled(drawn(kind), mode)).abs().max()) < CLOSE * max(1, scale)


def test_sources_may_be_carried_apart_or_together() -> None:
    """A word's part is the sum of its tokens' parts, with or without others."""
    encoder, words = drawn("gte"), (1, *(2,) * 3, *range(3, TOKENS - 1))
    whole = carried(encoder, Sources(ALONE, EVERY, ("mean", "last")))

    some = carried(encoder, Sources(ALONE, range(5, 9), ("mean", "last")))
    word = carried(encoder, Sources(words, range(2, 3), ("mean", "last")))

    torch.testing.assert_close(some, whole[5:9], rtol=0, atol=CLOSE)
    torch.testing.assert_close(word[0], whole[2:5].sum(0), rtol=0, atol=CLOSE)


def test_a_gated_head_carries_what_its_gate_lets_through() -> None:
    """The parts sum to the vector that the gate makes."""
    gates = {1: {0: 0.0, 3: 0.5}}
    without = pooled(drawn("bert"), "mean")

    parts = carried(drawn("bert"), Sources(ALONE, EVERY, ("mean",)), gates=gates)

    expected = pooled(drawn("bert"), "mean", gates=gates)
    assert float((expected - without).abs().max()) > 1e-3
    torch.testing.assert_close(parts.sum(0), expected, rtol=0, atol=CLOSE)


@cache
def adapted() -> Encoder:
    """BERT's encoder with an adapter of random weights in one layer."""
    random = torch.Generator().manual_seed(3)
    narrow, widen = (torch.randn(shape, generator=random) for shape in ((2, WIDTH), (3 * WIDTH, 2)))
    term = LinearTerm(PLAIN.linear(narrow, None), PLAIN.linear(widen, None))
    return Adapter.build(drawn("bert"), "sha256:0", {(1, "project"): term}).encoder


def test_an_adapter_is_carried_with_what_it_adds() -> None:
    """The parts sum to the vector that it makes."""
    parts = carried(adapted(), Sources(ALONE, EVERY, ("mean",)))

    expected = pooled(adapted(), "mean")
    assert float((expected - pooled(drawn("bert"), "mean")).abs().max()) > 1e-3
    torch.testing.assert_close(parts.sum(0), expected, rtol=0, atol=CLOSE)


def test_values_that_are_copied_add_what_they_are() -> None:
    """By hand: with P = 1/T, values as they are and no feed-forward, a token adds 2 x_s / T."""
    encoder = copy.copy(drawn("eurobert"))
    layer = copy.copy(encoder.layers[0])
    attention = copy.copy(layer.attention)
    plain = partial(attention.kernels.linear)
    mixed, keys = attention.heads * attention.head_dim, attention.parts[1] * attention.head_dim
    values = torch.zeros(mixed + 2 * keys, WIDTH)
    values[-keys:] = torch.eye(keys, WIDTH)
    spread = torch.zeros(WIDTH, mixed)  # the first head of each pair that shares values
    for group in range(attention.parts[1]):
        size, first = attention.head_dim, group * attention.sharing * attention.head_dim
        spread[group * size : (group + 1) * size, first : first + size] = torch.eye(size)
    attention.project, attention.output = plain(values, None), plain(spread, None)
    layer.attention = attention
    layer.norms = layer.norms._replace(before=None, after=None)
    layer.down = plain(torch.zeros(WIDTH, encoder.config.feed_forward), None)
    encoder.layers, encoder.native = [layer], None
    packed = encoder.pack([Sequence(IDS)])
    x = encoder.embeddings(packed)[packed.rows(0)].double()

    parts = carried(encoder, Sources(ALONE, EVERY, ("mean",)))

    copied = (torch.arange(WIDTH) < keys) + 1.0
    torch.testing.assert_close(parts[1:], x * copied / TOKENS, rtol=0, atol=1e-6)
    assert not parts[0].any()


@pytest.mark.parametrize("activation", FACTORS)
def test_an_activation_is_its_factor_times_what_it_reads(activation: Any) -> None:
    """Also near 0, where the factor is the slope: a half of GELU and of SiLU."""
    z = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([1e-30, -1e-30, 0.0])]).double()

    made = FACTORS[activation](z)

    torch.testing.assert_close(made * z, ACTIVATIONS[activation](z), rtol=1e-15, atol=1e-15)
    assert made[-1] == (0 if activation == "relu" else 0.5)
