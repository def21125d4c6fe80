"""model/heads/roles.py: what a head does by position, on maps made for it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model.attention.reach import EVERYWHERE, Reach
from model.heads.roles import THRESHOLDS, RoleTally, find_roles

LENGTHS = (5, 7, 11)  # of sentences, first and last token special

Head = Callable[[int], Tensor]  # tokens -> a map, (query, key)


def looking(offset: int, share: float) -> Head:
    """A head that gives a share to one offset where there is such a key, the rest to all."""

    def head(tokens: int) -> Tensor:
        aim = torch.ones(tokens, tokens).triu(offset).tril(offset)
        return share * aim + (1 - share * aim.sum(1, keepdim=True)) / tokens

    return head


def sink(tokens: int) -> Tensor:
    """A head that gives 0.4 to each end."""
    ends = torch.zeros(tokens)
    ends[0] = ends[-1] = 0.4
    return (ends + 0.2 / tokens).expand(tokens, tokens)


def uniform(tokens: int) -> Tensor:
    """A head that looks everywhere alike."""
    return torch.full((tokens, tokens), 1 / tokens)


def scattered(tokens: int) -> Tensor:
    """A head that gives 0.7 to an ordinary key, each time at another offset."""
    aims = torch.tensor([1 + (3 * query) % (tokens - 2) for query in range(tokens)])
    return 0.7 * torch.nn.functional.one_hot(aims, tokens) + 0.3 / tokens


def within(head: Head, reach: Reach) -> Head:
    """A head that looks no farther, and gives what is beyond to what is not."""

    def cut(tokens: int) -> Tensor:
        before, after = reach.within(tokens)
        near = head(tokens).tril(after).triu(-before)
        return near / near.sum(1, keepdim=True)

    return cut


def first(tokens: int) -> Tensor:
    """A head that gives 0.8 to the first token."""
    return 0.8 * torch.eye(tokens)[0] + torch.full((tokens, tokens), 0.2 / tokens)


def tallied(
    head: Head, reach: Reach = EVERYWHERE, ends: tuple[int, ...] = (0, -1)
) -> tuple[dict[str, float], dict[str, float]]:
    """The measures of a head and of its baseline.

    Args:
        ends: places of special tokens.
    """
    tally = RoleTally([reach])
    for tokens in LENGTHS:
        special = [{place, place - tokens} & {*ends} != set() for place in range(tokens)]
        tally.add_sentence(within(head, reach)(tokens)[None], special)
    (found,) = tally.measures()
    return found


PLANTED: dict[str, tuple[Head, str | None]] = {
    "previous": (looking(-1, 0.8), "previous"),
    "next": (looking(1, 0.8), "next"),
    "self": (looking(0, 0.8), "self"),
    "two back": (looking(-2, 0.7), "positional"),
    "three ahead": (looking(3, 0.7), "positional"),
    "one back, weakly": (looking(-1, 0.4), "positional"),
    "ends": (sink, "delimiter sink"),
    "everywhere": (uniform, "broad"),
    "content": (scattered, None),
}


@pytest.mark.parametrize(("head", "role"), PLANTED.values(), ids=PLANTED.keys())
def test_a_head_made_for_a_role_is_given_that_role(head: Head, role: str | None) -> None:
    """And one that is made for none is given none, however sharply it looks."""
    own, baseline = tallied(head)

    assert next((found.role for found in find_roles(own, baseline)), None) == role


DECODER, LOCAL = Reach(None, 0), Reach(3, 0)
CAUSAL: dict[str, tuple[Head, Reach, str | None]] = {
    "previous": (looking(-1, 0.8), DECODER, "previous"),
    "self": (looking(0, 0.8), DECODER, "self"),
    "two back": (looking(-2, 0.7), DECODER, "positional"),
    "the first token": (first, DECODER, "delimiter sink"),
    "everywhere": (uniform, DECODER, "broad"),
    "content": (scattered, DECODER, None),
    "previous, in a window": (looking(-1, 0.8), LOCAL, "previous"),
    "everywhere in a window": (uniform, LOCAL, "broad"),
    "the first token, in a window": (first, LOCAL, "delimiter sink"),
    "next, in a window": (looking(1, 0.8), Reach(3, 3), "next"),
}


@pytest.mark.parametrize(("head", "reach", "role"), CAUSAL.values(), ids=CAUSAL.keys())
def test_a_head_that_may_not_look_everywhere_is_given_its_role(
    head: Head, reach: Reach, role: str | None
) -> None:
    """A decoder, whose tokenizer puts one special token at the end: its sink is the first."""
    own, baseline = tallied(head, reach, (-1,))

    assert next((found.role for found in find_roles(own, baseline)), None) == role


@pytest.mark.parametrize("reach", [DECODER, LOCAL, Reach(3, 3)])
def test_the_baseline_looks_alike_at_all_that_may_be_seen(reach: Reach) -> None:
    """And is counted where there is something to look at; a decoder sees no next token."""
    own, baseline = tallied(uniform, reach, (-1,))

    assert own == pytest.approx(baseline, abs=1e-6, nan_ok=True)
    assert baseline["entropy_ratio"] == pytest.approx(1)
    assert math.isnan(baseline["next"]) == (reach.after == 0)
    rows = [(i, *reach.within(n), n) for n in LENGTHS for i in range(n)]
    keys = [min(i, before) + 1 + min(n - 1 - i, after) for i, before, after, n in rows]
    looks = [1 / many for (i, *_), many in zip(rows, keys, strict=True) if i]
    assert baseline["previous"] == pytest.approx(sum(looks) / len(looks))


def test_layers_that_look_differently_far_have_baselines_of_their_own() -> None:
    """In the order of the heads."""
    tally = RoleTally([DECODER, LOCAL, DECODER])
    maps = [within(uniform, reach)(7) for reach in (DECODER, LOCAL, DECODER)]
    tally.add_sentence(torch.stack(maps), [False] * 7)

    for own, baseline in tally.measures():
        assert own == pytest.approx(baseline, abs=1e-6, nan_ok=True)
    (_, one), (_, two), (_, three) = tally.measures()
    assert one == pytest.approx(three, nan_ok=True) and one["previous"] < two["previous"]


def test_a_positional_head_says_which_offset() -> None:
    """The share is of the ordinary tokens that have such a key, when they are half of all."""
    own, _ = tallied(looking(-2, 0.7))
    far, _ = tallied(looking(8, 0.7))

    assert (own["offset"], own["positional"]) == (-2, 1)
    assert far["offset"] != 8 and far["positional"] < 0.9


def test_the_baseline_is_what_a_uniform_head_scores() -> None:
    """By the same arithmetic on the same sentences."""
    own, baseline = tallied(uniform)

    assert own == pytest.approx(baseline, abs=1e-6)
    assert baseline["previous"] == pytest.approx((4 / 5 + 6 / 7 + 10 / 11) / 20)
    assert baseline["special"] == pytest.approx(2 * 3 / sum(LENGTHS))
    assert baseline["positional"] < 0.2 and baseline["entropy_ratio"] == pytest.approx(1)


def test_a_label_carries_its_score_threshold_and_baseline() -> None:
    """A head may fill several roles; the most telling stands first."""
    own, baseline = tallied(looking(-1, 0.8))

    found = find_roles(own, baseline)

    assert [role.role for role in found] == ["previous", "positional"]
    assert found[0].score == pytest.approx(own["previous"]) and own["previous"] > 0.8
    assert found[0].threshold == 0.5 and found[0].baseline == baseline["previous"]


def test_thresholds_may_be_moved() -> None:
    """What is no role at 0.9 is one at 0.8."""
    own, baseline = tallied(looking(-1, 0.8))

    assert not find_roles(own, baseline, {"previous": 0.9})
    assert find_roles(own, baseline, {**THRESHOLDS, "previous": 0.8})[0].threshold == 0.8


def test_what_was_never_measured_makes_no_role() -> None:
    """A lone token has no neighbour and no entropy ratio; no text at all has nothing."""
    lone = RoleTally([EVERYWHERE])
    lone.add_sentence(torch.ones(1, 1, 1), [False])
    ((own, baseline),) = lone.measures()

    assert math.isnan(own["previous"]) and math.isnan(own["entropy_ratio"])
    assert [role.role for role in find_roles(own, baseline)] == ["self", "positional"]
    lone.add_sentence(uniform(5)[None], [False] * 5)
    assert lone.measures()[0][0]["entropy_ratio"] == pytest.approx(1)
    assert not find_roles(*RoleTally([EVERYWHERE]).measures()[0])
