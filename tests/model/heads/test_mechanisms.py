"""model/heads/mechanisms.py: which parts heads go by, held against their own weights shuffled."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from model import packing
from model.encoder import Encoder
from model.heads.mechanisms import DRAWS, MAJORITY, Mechanism, MechanismTally
from model.kernels import PLAIN
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.probes.why import explain_scores, shuffle_weights
from service.heads import sentences
from service.pipeline.replica import Replica
from tests.model.lessons.test_explain import KINDS, drawn

UNSEEN = 99  # an order of weights that is none of the control's


@pytest.fixture
def encoder(replica: Replica) -> Encoder:
    """The bundled model's, whose weights were trained."""
    return replica.lanes.model.encoder


@pytest.fixture
def read(replica: Replica) -> list[packing.Sequence]:
    """Some sentences of the bundled corpus."""
    model, chosen = replica.lanes.model, sentences.read_bundled().sentences[::84]
    tokenized = model.tokenizer([(each.text,) for each in chosen], model.max_tokens)
    return [packing.Sequence(each.token_ids, each.types) for each in tokenized]


@contextmanager
def shuffled(encoder: Encoder) -> Iterator[None]:
    """The numbers of W^Q and of W^K of layer 0 in another order, head by head."""
    attention = encoder.layers[0].attention
    kept = attention.project
    drawn, weight = shuffle_weights(attention, UNSEEN), kept.weight().clone()
    weight[: len(drawn)] = drawn
    attention.project = PLAIN.linear(weight, kept.bias)
    try:
        yield
    finally:
        attention.project = kept


def find(encoder: Encoder, read: list[packing.Sequence]) -> list[Mechanism | None]:
    """What is found in sentences."""
    tally = MechanismTally(encoder, read)
    with torch.inference_mode():
        for draw in range(1 + DRAWS):
            tally.add_draw(draw)
    return tally.mechanisms()


def largest_shares(encoder: Encoder, read: list[packing.Sequence]) -> Tensor:
    """The largest share of each head by its scores one by one, as the form why shows them."""
    heads, sums = tuple(range(encoder.config.heads)), list[tuple[Tensor, Tensor]]()
    for sequence in read:
        tokens = len(sequence)
        every = Selection({0: heads}, divide_into_units(tokens), "why", rows=tuple(range(tokens)))
        with torch.inference_mode():
            scores = explain_scores(encoder, sequence, every)[0]["scores"].nan_to_num().double()
        whole = scores.sum((2, 3))
        sums.append((torch.einsum("hiabj,hij->hab", scores, whole), whole.square().sum((1, 2))))
    covariance, variance = (sum(each) for each in zip(*sums, strict=True))
    return (covariance / variance[:, None, None]).flatten(1).amax(1)


def test_a_head_of_trained_weights_goes_by_what_no_shuffled_ones_do(
    encoder: Encoder, read: list[packing.Sequence]
) -> None:
    """Position with position, or words by a bias; the share is that of all scores together."""
    found = find(encoder, read)

    assert {head: (made.query, made.key) for head, made in enumerate(found) if made} == {
        2: ("position", "position"),
        9: ("rest", "word"),
    }
    for head, share in enumerate(largest_shares(encoder, read).tolist()):
        if (made := found[head]) is not None:
            assert made.share == pytest.approx(share, abs=1e-4) and made.share > made.control > 0.6


def test_a_share_that_shuffled_weights_have_too_is_no_mechanism(
    encoder: Encoder, read: list[packing.Sequence]
) -> None:
    """Every head of such weights has a pair with most of the variation, as its draws have.

    One head of twenty may lie above 95 % of its draws.
    """
    with shuffled(encoder):
        shares, found = largest_shares(encoder, read), find(encoder, read)

    assert int((shares >= MAJORITY).sum()) >= 11
    assert len([made for made in found if made]) <= 1


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_the_draws_are_the_same_each_time_and_keep_each_heads_numbers(kind: str) -> None:
    """In queries and in keys, of which heads may share some."""
    encoder = drawn(kind)
    attention = encoder.layers[0].attention
    own, one, again, other = (shuffle_weights(attention, draw) for draw in (0, 1, 1, 2))
    sides = attention.parts[0] + attention.parts[1]

    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(own, attention.project.weight()[: len(own)].float())
    blocks = [each.reshape(sides, -1) for each in (own, one)]
    assert torch.equal(*(each.sort(1).values for each in blocks))
    assert bool((blocks[0] != blocks[1]).any(1).all())
    assert len(find(encoder, [packing.Sequence([3, 5, 7])])) == KINDS[kind].heads


def test_scores_that_do_not_vary_have_no_mechanism() -> None:
    """As of a single token."""
    assert {*find(drawn("bert"), [packing.Sequence([7])])} == {None}
