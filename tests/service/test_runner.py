"""The runner: what comes out for each sequence, whatever runs beside it."""

import numpy as np
import pytest

from model.forms import Asked
from model.units import divide
from service.gateway import Gateway
from service.runner import Done, NotTrustworthy, Wanted, Work

pytestmark = pytest.mark.asyncio(loop_scope="session")


def done(gateway: Gateway, works: list[Work], threads: int = 1) -> list[Done]:
    """Results of a batch in which nothing may fail."""
    results = [r for r in gateway._runner.run(works, threads) if isinstance(r, Done)]
    assert len(results) == len(works)
    return results


async def test_the_bits_of_an_answer_do_not_depend_on_the_batch(gateway: Gateway) -> None:
    """Alone, in company at any place, on one core and on two."""
    random = np.random.default_rng(7)
    works = [
        Work(random.integers(1000, 30000, length).tolist(), None, None, Wanted(tokens=True))
        for length in (1, 2, 3, 5, 16, 17, 63, 64, 128, 256)
    ]
    alone = [done(gateway, [work])[0].tokens for work in works]

    for threads in (1, 2):
        for _ in range(3):
            order = random.permutation(len(works))
            batch = done(gateway, [works[i] for i in order], threads)
            for place, i in enumerate(order):
                np.testing.assert_array_equal(batch[place].tokens, alone[i])


async def test_each_sequence_gets_what_it_wants(gateway: Gateway) -> None:
    """Wishes of different requests do not mix in a batch."""
    ids = [101, 2035, 102]
    plain = Work(ids, None, None, Wanted())
    asked = Asked({2: (3, 5)}, divide(3))
    maps = Work(ids, None, None, Wanted(attention=asked, hidden=frozenset({0})))

    first, second = done(gateway, [plain, maps])

    assert (first.pooled, first.tokens, first.hidden, first.attention) == (None, None, {}, None)
    assert second.attention is not None and list(second.hidden) == [0]
    shown = second.attention.heads[2]["map"]
    assert shown.shape == (2, 3, 3)
    np.testing.assert_allclose(shown.sum(-1), 1, atol=1e-5)


async def test_a_model_whose_bits_depend_on_the_batch_is_not_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up check sees it; this is the negative control of the promise."""
    runner = gateway._runner
    run = runner.run

    def leaky(works: list[Work], threads: int) -> list[Done | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Done) and result.tokens is not None:
                result.tokens[0, 0] += len(works) * 1e-6
        return results

    monkeypatch.setattr(runner, "run", leaky)

    with pytest.raises(NotTrustworthy):
        runner._check_invariance()
