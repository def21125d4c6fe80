"""model/probes/head_shares.py, next to a float64 twin that carries what each head writes."""

import copy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from model.encoder import Encoder
from model.packing import Sequence
from model.probes.head_shares import Targets, share_heads
from tests.model.lessons.test_explain import TOKENS, WIDTH, drawn
from tests.model.probes.test_carried import CLOSE, EXACT, IDS, Twin, adapted, kinds

GATES = {1: {0: 0.0, 3: 0.5}}


def shares_of(encoder: Encoder, targets: Tensor, **sequence: Any) -> Tensor:
    """Of a text's mean and of its last token, end to end, float64."""
    with torch.inference_mode():
        told = share_heads(encoder, Sequence(IDS, **sequence), Targets(targets, ("mean", "last")))
        return told.double()


def reduced(rows: Any) -> Tensor:
    """The mean of some rows, and the last."""
    return torch.cat([sum(rows) / TOKENS, rows[-1]])


class HeadTwin(Twin):
    """A pass in float64 whose parts are what each head of one layer writes, and first all else."""

    def __init__(self, encoder: Encoder, layer: int, gates: Any) -> None:
        self.layer = layer
        super().__init__(encoder, gates)

    def run_layer(self, index: int) -> None:
        """Before the layer, all is one part: the pass itself."""
        if index == 0:
            self.parts = self.x[None].clone()
        super().run_layer(index)

    def attend(self, index: int, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Where the layer is, each head's values are a part; all else has W^O's bias."""
        if index != self.layer:
            return super().attend(index, x, parts)
        attention = self.encoder.layers[index].attention
        heads = torch.stack(self.mix(index, self.linear(x, parts, attention.project)[0]))
        alone = torch.zeros(1 + len(heads), *heads.shape).double()  # (part, head, token, width)
        for h, head in enumerate(heads):
            alone[1 + h, h] = head
        none = torch.zeros(len(heads), TOKENS, WIDTH).double()
        self.parts = torch.cat([self.parts, none])
        mixed = (torch.cat([*each], -1) for each in (heads, *alone))
        return self.linear(next(mixed), torch.stack([*mixed]), attention.output)


@cache
def twins(kind: str) -> list[HeadTwin]:
    """Of one kind's encoder, one for each layer, with gates."""
    return [HeadTwin(drawn(kind), layer, GATES) for layer in range(drawn(kind).config.layers)]


def targets(count: int = 3) -> Tensor:
    """Random, the same in every run."""
    return torch.randn(count, 2 * WIDTH, generator=torch.Generator().manual_seed(5))


@kinds
def test_in_float64_heads_and_the_rest_sum_to_the_pass(kind: str) -> None:
    """In each layer by itself; every number of every token, within rounding."""
    for own in twins(kind):
        gaps, largest = (own.parts.sum(0) - own.x).abs().amax(1), own.x.abs().amax(1)
        assert bool((gaps < EXACT * largest.clamp(min=1)).all())


@kinds
def test_each_share_is_what_brute_force_finds(kind: str) -> None:
    """Of every head of every layer, some of them gated; with the rest they make each product."""
    by_layer = [
        torch.stack([reduced(part) for part in (*own.parts[1:], own.parts[0])])
        for own in twins(kind)
    ]
    expected = torch.stack(by_layer) @ targets().double().T

    actual = shares_of(drawn(kind), targets(), gates=GATES)

    scale = max(1, float(expected.abs().max()))
    assert float((actual - expected).abs().max()) < CLOSE * scale
    packed = drawn(kind).pack([Sequence(IDS, gates=GATES)])
    with torch.inference_mode():
        served = reduced([*drawn(kind)(packed).last[packed.rows(0)].double()])
    products = (targets().double() @ served).expand(len(actual), -1)
    assert float((actual.sum(1) - products).abs().max()) < CLOSE * scale
    assert not actual[1:2, 0].any()  # where there is a second layer


def test_a_targets_shares_are_its_own() -> None:
    """With or without others that are carried back."""
    together = shares_of(drawn("gte"), targets())

    alone = shares_of(drawn("gte"), targets()[1:2])

    torch.testing.assert_close(alone, together[..., 1:2], rtol=0, atol=CLOSE)


def test_an_adapter_is_part_of_what_heads_write() -> None:
    """The shares sum to the products of the vector that it makes."""
    told = shares_of(adapted(), targets()).sum(1)

    packed = adapted().pack([Sequence(IDS)])
    with torch.inference_mode():
        served = reduced([*adapted()(packed).last[packed.rows(0)].double()])
    torch.testing.assert_close(told[0], targets().double() @ served, rtol=0, atol=1e-4)
    assert float((told - shares_of(drawn("bert"), targets()).sum(1)).abs().max()) > 1e-2


def test_what_a_head_copies_is_copied_again_above() -> None:
    """By hand: two layers that add the mean of some channels, m, one head for each few of them.

    So of m, which the first layer writes, 2 m comes out of the second, and that writes 2 m itself:
    it reads m and the text, of whose mean it makes mean + m.
    """
    encoder = copy.copy(drawn("eurobert"))
    layer = copy.copy(encoder.layers[0])
    attention = copy.copy(layer.attention)
    plain = partial(attention.kernels.linear)
    size, heads, groups = attention.head_dim, attention.heads, attention.parts[1]
    values = torch.zeros((heads + 2 * groups) * size, WIDTH)
    values[-groups * size :] = torch.eye(groups * size, WIDTH)
    spread = torch.zeros(WIDTH, heads * size)  # the first head of each group that shares values
    for group in range(groups):
        first = group * attention.sharing * size
        spread[group * size : (group + 1) * size, first : first + size] = torch.eye(size)
    attention.project, attention.output = plain(values, None), plain(spread, None)
    layer.attention = attention
    layer.norms = layer.norms._replace(before=None, after=None)
    layer.down = plain(torch.zeros(WIDTH, encoder.config.feed_forward), None)
    encoder.layers, encoder.native = [layer, layer], None
    packed = encoder.pack([Sequence(IDS)])
    mean = encoder.embeddings(packed)[packed.rows(0)].double().mean(0)
    v = targets(1)[:, :WIDTH]

    with torch.inference_mode():
        first, second = share_heads(encoder, Sequence(IDS), Targets(v, ("mean",)))[..., 0].double()

    product, copied = mean * v[0].double(), groups * size
    by_group = product[:copied].view(groups, size).sum(1)
    every = torch.zeros(heads).double()
    every[:: attention.sharing] = by_group
    both = product.sum() + by_group.sum()  # <mean + m, v>
    torch.testing.assert_close(first[:-1], 2 * every, rtol=0, atol=CLOSE)
    torch.testing.assert_close(second[:-1], 2 * every, rtol=0, atol=CLOSE)
    torch.testing.assert_close(first[-1], both, rtol=0, atol=CLOSE)
    torch.testing.assert_close(second[-1], both, rtol=0, atol=CLOSE)
    assert float(by_group.abs().min()) > 1e-3
