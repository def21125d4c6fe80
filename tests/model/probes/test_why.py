"""model/probes/why.py, next to scores in float64 of vectors that are made one by one."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.alibi import head_slopes
from model.attention.disentangled import distance_rows
from model.attention.positions import distance_buckets
from model.encoder import Encoder
from model.kernels import PLAIN
from model.lessons import explain_layer
from model.loading import assembly
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.probes.carried import Sources
from model.probes.why import POSITION, SHUFFLES, explain_scores, shuffle_weights
from tests.model.lessons.test_explain import BERT, CPU, KINDS, TOKENS, WIDTH, drawn
from tests.model.probes.test_carried import IDS, Twin, adapted, twin

ROWS = (2, TOKENS - 1, 0)
CLOSE, EXACT = 1e-5, 1e-12  # of the largest part, in float32 and in float64
AHEAD = torch.arange(TOKENS) - torch.arange(TOKENS)[:, None]  # key - query

kinds_and_layers = pytest.mark.parametrize(
    ("kind", "layer"),
    [(kind, at) for kind, made in KINDS.items() for at in sorted({0, made.layers - 1})],
)


def explained(
    encoder: Encoder, layer: int, numbers: range = range(TOKENS + 1), **sequence: Any
) -> dict[str, Tensor]:
    """The parts of the scores of a layer's heads, float64, of the sources with these numbers."""
    every = {layer: tuple(range(encoder.config.heads))}
    shown = Selection(every, divide_into_units(TOKENS), "why", rows=ROWS)
    sources = Sources(range(1, TOKENS + 1), numbers) if layer else None
    with torch.inference_mode():
        made = explain_scores(encoder, Sequence(IDS, **sequence), shown, sources)
    return {name: array.double() for name, array in made[layer].items()}


class Scores:
    """A layer's scores, (heads, query, key), and their parts, (.., heads, query, key), float64."""

    def __init__(self, own: Twin, layer: int) -> None:
        self.own, self.attention = own, own.encoder.layers[layer].attention
        x, parts = own.entered[layer] if layer else self.embed()
        x, parts = own.linear(x, parts, self.attention.project)
        (q, k), *sides = zip(*(self.cut(x, parts, first) for first in (0, 1)), strict=True)
        self.whole = self.turned(q) @ self.turned(k).mT * self.attention.scale
        self.whole = self.whole + self.by_query(q) + self.by_key(k) + self.by_place()
        scale = self.attention.scale
        if layer:
            self.parts = torch.stack(
                [
                    self.turned(q) @ self.turned(key).mT * scale + self.by_key(key)
                    for _, key in sides
                ]
            )
            self.parts[0] += self.by_query(q) + self.by_place()
            return
        rest, word, position = sides
        order = word, position, rest
        self.parts = torch.stack(
            [torch.stack([one @ other.mT * scale for _, other in order]) for one, _ in order]
        )
        for place, (one, other) in enumerate(order):
            self.parts[place, POSITION] += self.by_query(one)
            self.parts[POSITION, place] += self.by_key(other)
        moved = self.turned(q) @ self.turned(k).mT - q @ k.mT
        self.parts[POSITION, POSITION] += moved * scale + self.by_place()

    def embed(self) -> tuple[Any, Any]:
        """What the first layer's attention reads, and its parts: rest, word, position."""
        own, made = self.own, self.own.encoder.embeddings
        rows, none = [], torch.zeros(made.word.shape[1]).double()
        for place, token in enumerate(IDS):
            types = none if made.types is None else made.types[0].double()
            position = none if made.position is None else made.position[place].double()
            rows.append((types, made.word[token].double(), position))
        parts = torch.stack([torch.stack(part) for part in zip(*rows, strict=True)])
        x = parts.sum(0)
        if made.norm is not None:
            x, parts = own.norm(x, parts, made.norm)
        if made.project is not None:
            x, parts = own.linear(x, parts, made.project)
        first = own.encoder.layers[0].norms.before
        return own.norm(x, parts, first) if first else (x, parts)

    def cut(self, x: Any, parts: Any, side: int) -> list[Tensor]:
        """Queries (0) or keys (1) of the stream and of each part, (heads, tokens, head_dim)."""
        attention, size, made = self.attention, self.attention.head_dim, []
        for head in range(attention.heads):
            start = (attention.heads + head // attention.sharing if side else head) * size
            one, each = (rows[..., start : start + size] for rows in (x, parts))
            if attention.norms is not None:
                norm = attention.norms.key if side else attention.norms.query
                one, each = self.own.norm(one, each, norm)
            made.append([one, *each])
        return [torch.stack(heads) for heads in zip(*made, strict=True)]

    def turned(self, side: Tensor) -> Tensor:
        """Each vector turned by its place, pair of channels by pair."""
        if not (ropes := self.own.config.ropes):
            return side
        half = side.shape[-1] // 2
        rope = ropes[[layer.attention for layer in self.own.encoder.layers].index(self.attention)]
        turns = rope.theta ** (-torch.arange(half).double() / half)
        angle = torch.arange(TOKENS).double()[:, None] * turns
        one, other = side[..., :half], side[..., half:]
        made = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat(made, -1)

    def by_query(self, q: Tensor) -> Tensor | float:
        """What distance adds for the content of a query."""
        return self.looked_up(q, "keys")

    def by_key(self, k: Tensor) -> Tensor | float:
        """What distance adds for the content of a key."""
        return self.looked_up(k, "queries")

    def looked_up(self, side: Tensor, name: str) -> Tensor | float:
        """Products of each vector with the rows of its distances to all others."""
        if not self.own.config.relative.terms:
            return 0.0
        table = getattr(self.attention.distances, name).double()  # scaled, (heads, rows, head_dim)
        rows = distance_rows(self.own.config.relative, TOKENS)[AHEAD + TOKENS - 1]
        axes = "hid,hijd->hij" if name == "keys" else "hjd,hijd->hij"
        return torch.einsum(axes, side, table[:, rows])

    def by_place(self) -> Tensor | float:
        """What distance adds, for any content."""
        if self.own.config.positions == "alibi":
            slopes = torch.tensor(head_slopes(self.attention.heads)).double()
            return -slopes[:, None, None] * AHEAD.abs()
        if (table := self.own.encoder.distances) is None:
            return 0.0
        return table.double()[distance_buckets(TOKENS, len(table), table.device)].permute(2, 0, 1)


@cache
def scores(kind: str, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """A layer's scores, their parts, and which keys a row may see, (query, key)."""
    own, made = twin(kind), Scores(twin(kind), layer)
    states = drawn(kind)(drawn(kind).pack([Sequence(IDS)]), hidden={layer}).hidden[layer]
    told = explain_layer(own.encoder, layer, states[:TOKENS])["scores"]
    seen = told[0] > -math.inf
    torch.testing.assert_close(made.whole[:, seen], told[:, seen].double(), rtol=1e-4, atol=1e-4)
    return made.whole, made.parts, seen


def centred(rows: Tensor, seen: Tensor) -> Tensor:
    """Rows less the mean of what is seen, and 0 elsewhere."""
    mean = (rows * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    return (rows - mean) * seen


@kinds_and_layers
def test_in_float64_parts_sum_to_the_scores(kind: str, layer: int) -> None:
    """Less each row's mean, over the keys that it may see."""
    whole, parts, seen = scores(kind, layer)

    total = parts.sum(tuple(range(parts.ndim - 3)))

    gap = centred(total, seen) - centred(whole, seen)
    assert float(gap.abs().max()) < EXACT * max(1, float(parts.abs().max()))


@kinds_and_layers
def test_each_part_is_what_brute_force_finds(kind: str, layer: int) -> None:
    """Of all heads, and with it the share of each part in how scores vary."""
    whole, parts, seen = scores(kind, layer)
    expected, total = centred(parts, seen), centred(whole, seen)

    made = explained(drawn(kind), layer)

    shown = made["scores"].movedim((0, 1), (-3, -2))
    hidden = ~seen[list(ROWS)].expand_as(shown)
    assert bool((shown.isnan() == hidden).all())
    gap = shown.nan_to_num() - expected[..., ROWS, :]
    assert float(gap.abs().max()) < CLOSE * max(1, float(expected.abs().max()))
    share = (expected * total).sum((-2, -1)) / total.square().sum((-2, -1))
    torch.testing.assert_close(made["share"].movedim(0, -1), share, rtol=0, atol=1e-4)
    assert float((made["share"].flatten(1).sum(1) - 1).abs().max()) < 1e-4
    deviation = (total.square().sum((-2, -1)) / seen.sum()).sqrt()
    torch.testing.assert_close(made["deviation"], deviation, rtol=1e-4, atol=0)


def test_sources_may_be_explained_apart_or_together() -> None:
    """Each source's part is the same with or without others."""
    whole = explained(drawn("gte"), 2)

    some = explained(drawn("gte"), 2, range(5, 9))

    for name, axis in (("scores", 2), ("share", 1)):
        expected = whole[name].narrow(axis, 5, 4)
        torch.testing.assert_close(some[name], expected, rtol=0, atol=CLOSE)


def test_a_gate_or_an_adapter_is_in_what_later_layers_read() -> None:
    """The parts sum to the scores of the pass that they make, and those have changed."""
    gates = {0: {0: 0.0, 3: 0.5}}
    without = explained(drawn("bert"), 1)["scores"].sum(2)

    for encoder, more in ((drawn("bert"), {"gates": gates}), (adapted(), {})):
        made = explained(encoder, 1, **more)["scores"].sum(2)

        packed = encoder.pack([Sequence(IDS, **more)])
        with torch.inference_mode():
            trace = encoder(packed, traces={1}).traces[1]
        q, k = (side[packed.rows(0)].transpose(0, 1) for side in (trace.q, trace.k))
        rows = (q @ k.mT * trace.attention.scale)[:, ROWS]
        expected = (rows - rows.mean(-1, keepdim=True)).double()
        assert float((expected - without).abs().max()) > 1e-3
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-4)


def toy() -> Encoder:
    """One head of two channels: words are w = (1, 2, 0) in one, positions 0, 1, 2 in the other.

    Of tokens i and j, s_ij = (2 w_i w_j + 3 i j + 5 * 2 w_j) / sqrt(2): 5 is the bias of W^Q.
    """
    sizes = {"vocabulary": 3, "max_tokens": 3, "width": 2, "embedding_width": 2, "types": 0}
    config = replace(BERT, **sizes, heads=1, layers=1, feed_forward=1, embedding_norm=False)
    weights = {n: torch.zeros(shape) for n, shape in assembly.expected_shapes(config).items()}
    weights["word.weight"][:, 0] = torch.tensor([1.0, 2.0, 0.0])
    weights["position.weight"][:, 1] = torch.tensor([0.0, 1.0, 2.0])
    weights["layers.0.query.weight"].fill_diagonal_(1.0)
    weights["layers.0.query.bias"][0] = 5.0
    weights["layers.0.key.weight"][:] = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    return assembly.build_encoder(config, weights.__getitem__, CPU, torch.float32, PLAIN)


def test_parts_and_shares_of_a_toy_are_those_worked_by_hand() -> None:
    """Row 1 has w = 2: 4 w_j of words, 3 j of positions and 10 w_j of the bias, less their means.

    Over all rows the three are 148, -12 and 630 of 766: position works against the others.
    """
    shown = Selection({0: (0,)}, divide_into_units(3), "why", rows=(1,))

    made = explain_scores(toy(), Sequence([0, 1, 2]), shown)[0]

    expected, share = torch.zeros(3, 3, 3), torch.zeros(3, 3)
    word, position, rest = range(3)
    expected[word, word] = torch.tensor([0.0, 4.0, -4.0])
    expected[position, position] = torch.tensor([-3.0, 0.0, 3.0])
    expected[rest, word] = torch.tensor([0.0, 10.0, -10.0])
    share[word, word], share[position, position], share[rest, word] = 148, -12, 630
    torch.testing.assert_close(made["scores"][0, 0], expected / math.sqrt(2), rtol=0, atol=CLOSE)
    torch.testing.assert_close(made["share"][0], share / 766, rtol=0, atol=CLOSE)


def test_tokens_that_are_hidden_as_keys_are_in_no_row() -> None:
    """As filling is, of a late interaction; and embeddings are words, segments the rest."""
    encoder, random = drawn("bert"), torch.Generator().manual_seed(5)
    rows = torch.randn(TOKENS, WIDTH, generator=random)
    shown = Selection({0: (1,)}, divide_into_units(TOKENS), "why", rows=ROWS)
    types = [0] * 9 + [1] * (TOKENS - 9)

    made = explain_scores(encoder, Sequence(embeddings=rows, types=types, unseen=4), shown)[0]
    plain = explain_scores(encoder, Sequence(embeddings=rows, unseen=4), shown)[0]

    assert (
        bool(made["scores"][..., -4:].isnan().all()) and not made["scores"][..., :-4].isnan().any()
    )
    assert float(made["scores"][..., :-4].sum(-1).abs().max()) < 1e-4
    assert float(made["share"].sum()) == pytest.approx(1, abs=1e-4)
    assert float((made["scores"] - plain["scores"])[0, 0, 2, 2, :-4].abs().max()) > 1e-3


def biased(weight: float, bias: float) -> dict[str, Tensor]:
    """The toy's scores explained, its W^Q and W^K times a weight, and keys with a large bias."""
    encoder = toy()
    project = encoder.layers[0].attention.project
    scaled, biases = project.weight().clone(), torch.zeros(6)
    scaled[:4] *= weight
    biases[:2], biases[2:4] = 3.0, bias
    encoder.layers[0].attention.project = PLAIN.linear(scaled, biases)
    shown = Selection({0: (0,)}, divide_into_units(3), "why", rows=(1,))
    return explain_scores(encoder, Sequence([0, 1, 2]), shown)[0]


def test_shares_sum_to_one_also_where_keys_have_a_large_bias() -> None:
    """Which is the same for each key of a row, and so in no share."""
    made = biased(1.0, 1e4)

    assert float(made["share"].sum()) == pytest.approx(1, abs=2e-3)
    assert float(made["share"][0, :, 2].abs().max()) < 2e-3  # the bias' own part


@pytest.mark.parametrize("bias", [0.0, 1e4])
def test_there_is_no_share_where_scores_vary_by_rounding_alone(bias: float) -> None:
    """As of a head whose keys are all but a bias; it is told by how little they vary."""
    made = biased(1e-9, bias)

    assert bool(made["share"].isnan().all()) == bool(bias)
    assert float(made["deviation"]) < 1e-2


@pytest.mark.parametrize("layer", [0, 1])
def test_shares_stand_next_to_those_of_the_heads_own_weights_shuffled(layer: int) -> None:
    """The mean of the shares that an encoder with such weights has."""
    encoder, drawn_shares = drawn("bert"), list[Tensor]()
    attention = encoder.layers[layer].attention
    kept, made = attention.project, explained(encoder, layer)
    for draw in range(1, 1 + SHUFFLES):
        own, weight = shuffle_weights(attention, draw), kept.weight().clone()
        weight[: len(own)] = own
        attention.project = PLAIN.linear(weight, kept.bias)
        drawn_shares.append(explained(encoder, layer)["share"])
        attention.project = kept

    close = torch.stack(drawn_shares).mean(0)
    torch.testing.assert_close(made["shuffled"], close, rtol=0, atol=1e-5)
    assert float((made["shuffled"] - made["share"]).abs().max()) > 0.01


def test_shuffled_shares_have_the_same_bits_of_one_head_as_of_all() -> None:
    """Whichever heads are asked for."""
    encoder, units = drawn("bert"), divide_into_units(TOKENS)
    heads = range(encoder.config.heads)
    made = [
        explain_scores(encoder, Sequence(IDS), Selection({0: chosen}, units, "why", rows=ROWS))[0]
        for chosen in (tuple(heads), *((head,) for head in heads))
    ]

    assert torch.equal(made[0]["shuffled"], torch.cat([each["shuffled"] for each in made[1:]]))


def test_a_lone_token_has_no_share() -> None:
    """Its only score does not vary."""
    shown = Selection({0: (0,)}, divide_into_units(1), "why", rows=(0,))

    made = explain_scores(drawn("bert"), Sequence([7]), shown)[0]

    assert not made["scores"].any() and bool(made["share"].isnan().all())
