"""model/heads/mechanisms.py: which parts heads go by, on scores made for it."""

import math

import pytest
import torch
from torch import Tensor

from model.heads.mechanisms import MAJORITY, Mechanism, MechanismTally
from model.why import PARTS

LENGTHS = (5, 7, 11, 13)
WORD, POSITION, REST = range(len(PARTS))


def sentence(tokens: int, seed: int, *, causal: bool = False) -> Tensor:
    """Scores of three heads by part, (heads, query, query parts, key parts, key).

    The first goes by position with position, four times as much as by the rest with words; the
    second by both alike; the third's scores are all one.
    """
    random = torch.Generator().manual_seed(seed)
    one, other = torch.randn(2, tokens, tokens, generator=random)
    scores = torch.zeros(3, tokens, 3, 3, tokens)
    scores[0, :, POSITION, POSITION], scores[0, :, REST, WORD] = 2 * one, other
    scores[1, :, POSITION, POSITION], scores[1, :, REST, WORD] = one, other
    seen = torch.ones(tokens, tokens).tril() if causal else torch.ones(tokens, tokens)
    seen = seen[:, None, None]
    scores = scores - (scores * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    return scores.masked_fill(seen == 0, math.nan)


def tally(*sentences: Tensor) -> list[Mechanism | None]:
    """What is found in sentences."""
    made = MechanismTally(3)
    for scores in sentences:
        made.add_sentence(scores)
    return made.mechanisms()


@pytest.mark.parametrize("causal", [False, True])
def test_a_head_goes_by_the_pair_with_most_of_how_its_scores_vary(causal: bool) -> None:
    """By loops over every score; a pair with half of it, or a head without any, has none."""
    made = [sentence(LENGTHS[seed % 4], seed, causal=causal) for seed in range(200)]
    covariance = variance = 0.0
    for scores in made[:60]:
        for row in scores[0]:
            for key in range(row.shape[-1]):
                if not row[0, 0, key].isnan():
                    whole = float(row[..., key].double().sum())
                    covariance += float(row[POSITION, POSITION, key]) * whole
                    variance += whole**2

    found, few = tally(*made), tally(*made[:60])

    assert found[1:] == [None, None] and found[0] is not None and few[0] is not None
    assert (found[0].query, found[0].key) == ("position", "position")
    assert found[0].share == pytest.approx(0.8, abs=0.05) and found[0].share > MAJORITY
    assert few[0].share == pytest.approx(covariance / variance, abs=1e-5)


def test_the_control_falls_to_nothing_where_there_is_enough_to_shuffle() -> None:
    """Of one short sentence it does not, and then no mechanism is named."""
    long = [sentence(23, seed) for seed in range(50)]
    short = [tally(sentence(2, seed))[0] for seed in range(20)]

    (found, *_) = tally(*long)

    assert found is not None and abs(found.control) < 0.03
    assert tally(*long) == tally(*long)
    assert None in short
