"""The lanes: what comes out for each sequence, whatever runs with it."""

import pickle
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from starlette.types import ASGIApp

from model.kernels import PlainLinear
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.pooling import Dense, Pooling, identity
from model.probes import Maps, Parts, Probe, Readout, Sources, Steps, Targets, Why
from model.projection import Projection
from model.task_heads import Classifier, Tagger
from service.engine.arrays import NonFiniteOutput
from service.pipeline.replica import Replica
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import Settings


def done(replica: Replica, works: list[Work], threads: int = 1) -> list[Result]:
    """Results of a batch in which nothing may fail."""
    results = [r for r in replica.lanes.run_batch(works, threads) if isinstance(r, Result)]
    assert len(results) == len(works)
    return results


async def test_the_bits_of_an_answer_do_not_depend_on_the_batch(replica: Replica) -> None:
    """Alone, in company at any place, on one core and on several."""
    random = np.random.default_rng(7)
    works = [
        Work(Sequence(random.integers(1000, 30000, length).tolist()), Outputs(tokens=True))
        for length in (1, 2, 3, 17, 63, 128)
    ]
    alone = [done(replica, [work])[0].tokens for work in works]

    for threads in (1, 2, 3):
        order = random.permutation(len(works))
        batch = done(replica, [works[i] for i in order], threads)
        for place, i in enumerate(order):
            np.testing.assert_array_equal(batch[place].tokens, alone[i])


@pytest.mark.parametrize("length", [5, 11, 130])
async def test_the_bits_of_a_lesson_do_not_depend_on_the_cores(
    replica: Replica, length: int
) -> None:
    """Its kernels are the plain ones, which share a product out among the cores they have."""
    work = Work(Sequence([2000 + 37 * i for i in range(length)]), Outputs(probes=(Steps(5),)))

    one, *several = (done(replica, [work], threads)[0].made["steps"] for threads in (1, 2, 3))

    assert not [name for name in one for two in several if not np.array_equal(one[name], two[name])]


async def test_each_sequence_gets_what_it_wants(replica: Replica) -> None:
    """Wishes of different requests do not mix in a batch."""
    ids = [101, 2035, 102]
    plain = Work(Sequence(ids), Outputs())
    asked = Maps(Selection({2: (3, 5)}, divide_into_units(3)))
    maps = Work(Sequence(ids), Outputs(probes=(asked,), hidden=frozenset({0})))

    first, second = done(replica, [plain, maps])

    assert (first.pooled, first.tokens, first.hidden, first.made) == (None, None, {}, {})
    assert list(second.hidden) == [0]
    shown = second.made["attention"]["heads"][2]["map"]
    assert shown.shape == (2, 3, 3)
    np.testing.assert_allclose(shown.sum(-1), 1, atol=1e-5)


async def test_each_probe_makes_in_company_what_it_makes_alone(replica: Replica) -> None:
    """Of one sequence or of several, also where it makes use of one core alone."""
    width, mean = replica.lanes.model.config.width, Pooling(("mean",), normalize=True)
    dense = Dense(PlainLinear(torch.ones(1, width), None), identity, 1, width)
    units = divide_into_units(7)
    probes: list[Probe] = [
        Maps(Selection({2: (3, 5)}, units)),
        Parts([(0, 2), (3, 7)], mean),
        Steps(1),
        Sources(range(1, 8), range(3), ("mean",)),
        Targets(torch.ones(2, width), ("mean",)),
        Readout(Tagger(("a",), Projection((dense,))), torch.ones(2, 1), (3, 4)),
    ]
    why = Why(Selection({0: (1,)}, units, "why", rows=(2,)))
    asked = [*((probe,) for probe in probes), (why,), tuple(probes[::-1])]
    works = [Work(Sequence([101, *range(2000, 2005), 102]), Outputs(probes=one)) for one in asked]

    alone = [done(replica, [work], threads=2)[0].made for work in works]
    before = Work(Sequence([101, 3000, 102]), Outputs())
    together = [result.made for result in done(replica, [before, *works], threads=2)[1:]]

    assert [pickle.dumps(made) for made in together] == [pickle.dumps(made) for made in alone]
    *each, _, every = alone
    merged = {name: made for one in each[::-1] for name, made in one.items()}
    assert pickle.dumps(every) == pickle.dumps(merged)


async def test_a_part_that_is_not_finite_fails_alone(replica: Replica) -> None:
    """It is blamed, by the state that it is pooled of; what shares its batch is answered."""
    width = replica.lanes.model.config.width
    linear = PlainLinear(torch.zeros(2, width), torch.tensor([0, torch.inf]))
    pooling = Pooling(("mean",), False, layers=(Dense(linear, identity, 2, 2 * width),))
    probes = (Parts([(0, 1)], pooling),)
    works = [Work(Sequence([101, 102]), Outputs(probes=asked)) for asked in ((), probes)]

    sound, broken = replica.lanes.run_batch(works, 1)

    assert isinstance(sound, Result) and sound.made == {}
    assert isinstance(broken, NonFiniteOutput) and broken.layer == replica.lanes.model.config.layers


async def test_each_sequence_gets_its_own_rows_of_its_own_states(replica: Replica) -> None:
    """Next to others that want more or less."""
    wishes = [Outputs(tokens=True), Outputs(), Outputs(hidden=frozenset({2, 0}), tokens=True)]
    works = [
        Work(Sequence(list(range(1000, 1000 + length))), wish)
        for length, wish in zip((7, 5, 3), wishes, strict=True)
    ]
    alone = [done(replica, [work])[0] for work in works]

    for result, expected in zip(done(replica, works), alone, strict=True):
        np.testing.assert_array_equal(result.tokens, expected.tokens)
        assert list(result.hidden) == list(expected.hidden)
        for layer, rows in result.hidden.items():
            np.testing.assert_array_equal(rows, expected.hidden[layer])


async def test_a_task_head_that_is_not_finite_fails_alone(replica: Replica) -> None:
    """It is blamed, by the state that it reads; what shares its batch is answered."""
    width, first = replica.lanes.model.config.width, Pooling(("cls",), normalize=False)
    linear = PlainLinear(torch.zeros(2, width), torch.tensor([0, torch.nan]))
    project = Projection((Dense(linear, identity, 2, 2 * width),))
    head = Classifier(("a", "b"), first, project, "none", "none")
    works = [Work(Sequence([101, 102]), Outputs(first, task_heads=by)) for by in ((), (head,))]

    sound, broken = replica.lanes.run_batch(works, 1)

    assert isinstance(sound, Result) and sound.pooled is not None
    assert isinstance(broken, NonFiniteOutput) and broken.layer == replica.lanes.model.config.layers


async def test_large_finite_numbers_in_half_precision_are_answered(
    loud: Path, outer: Callable[[Replica], ASGIApp]
) -> None:
    """Their sum is beyond float16's largest number, which says nothing of any of them."""
    replica = await Replica.start(
        Settings(model=str(loud), device="cpu", dtype="float16", threads=1), "loud-1"
    )
    transport = httpx.ASGITransport(outer(replica))
    body = {"inputs": [{"token_ids": [101] + [2035] * 400 + [102]}], "tokens": True}

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answer = await client.post("/v1/encode", json=body)
    metrics = replica.freeze_metrics(False)().decode()
    await replica.close()

    assert answer.status_code == 200, answer.text
    vectors = np.array(answer.json()["data"][0]["token_vectors"])
    assert vectors.shape == (402, 37) and abs(vectors - 20).max() < 10
    assert (
        f'headlight_nonfinite_outputs_total{{model="{replica.name}",replica="loud-1"}} 0.0'
        in metrics
    )
