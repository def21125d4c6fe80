"""What the simulation of a service stands on: steps whose times are known."""

import asyncio
import json
import re
import sys
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import cores  # noqa: E402  scripts, no package of ours
from publish import text_between_marks  # noqa: E402
from served import simulation  # noqa: E402
from served.balancer import Balancer  # noqa: E402

LOOP, PROXY, PASS, PAIR = 0.0005, 0.0001, 0.003, 0.002  # seconds
COSTS = simulation.StepCosts(
    loop=(2 * LOOP, LOOP),
    text=0.00002,
    proxy=(2 * PROXY, PROXY),
    alone=[(16, PASS), (1024, 32 * PASS)],
    beside=[(16, 2 * PASS), (1024, 64 * PASS)],
    pair=[(16, PAIR), (1024, 18 * PASS)],
)
READY = simulation.StepCosts((LOOP, LOOP), 0.0, (PROXY, PROXY), *[[(1, 1e-9), (10**6, 1e-9)]] * 3)


def test_haproxy_takes_the_fewest_connections_then_the_longest_unused() -> None:
    """As its leastconn does."""
    balancer = Balancer([5, 3, 7])

    first = [balancer.take() for _ in range(4)]
    balancer.give(7)
    later = [balancer.take(), balancer.take()]

    assert first == [5, 3, 7, 5]
    assert later == [7, 3]


def test_what_shares_a_core_takes_as_much_longer() -> None:
    """Two of one second have one core for two; a third, half as long, has a third of it."""

    async def ends() -> list[float]:
        shared, loop = simulation.Cores(1), asyncio.get_running_loop()

        async def one(seconds: float) -> float:
            await shared.compute(seconds)
            return loop.time()

        return await asyncio.gather(one(1.0), one(1.0), one(0.5))

    with asyncio.Runner(loop_factory=simulation.SimulatedLoop) as runner:
        assert runner.run(ends()) == pytest.approx([2.5, 2.5, 1.5])


@pytest.mark.parametrize(("threads", "seconds"), [(1, PASS), (2, PAIR)])
def test_a_lone_request_takes_its_steps_one_after_the_other(threads: int, seconds: float) -> None:
    """HAProxy, the event loop and a pass on all cores, each as when nothing else runs."""
    one = simulation.simulate(COSTS, 8, 1, threads, 1, requests=150)

    assert one.p50 == pytest.approx(2 * PROXY + 2 * LOOP + seconds, rel=0.001)
    assert one.rate == pytest.approx(1 / one.p50, rel=0.1)


def test_three_threads_follow_from_one_and_two() -> None:
    """Amdahl's law: of 3 ms two threads share 2, and three have a third of that each."""
    assert COSTS.pass_seconds(16, 2, others=False) == pytest.approx(PAIR)
    assert COSTS.pass_seconds(16, 3, others=False) == pytest.approx(0.001 + 0.002 / 3)
    assert COSTS.pass_seconds(16, 1, others=True) == pytest.approx(2 * PASS)
    assert COSTS.pass_seconds(2048, 1, others=False) == pytest.approx(64 * PASS)


@pytest.mark.prove
def test_one_event_loop_carries_what_it_has_time_for_whatever_the_lanes_do() -> None:
    """And two replicas twice that, up to what HAProxy's two threads carry."""
    one, two, many = (
        simulation.simulate(READY, 64, replicas, 1, 256, requests=3000) for replicas in (1, 2, 32)
    )

    assert one.rate == pytest.approx(1 / LOOP, rel=0.02)
    assert two.rate == pytest.approx(2 / LOOP, rel=0.02)
    assert many.rate == pytest.approx(2 / PROXY, rel=0.02)
    assert (one.loop, many.proxy) == pytest.approx((1, 1), abs=0.05)
    assert cores.front_rate(READY) == pytest.approx(1 / LOOP, rel=0.02)


def test_cores_are_not_worked_more_than_there_are() -> None:
    """Four replicas of four threads on four cores do what the cores have time for."""
    one = simulation.simulate(COSTS, 4, 4, 4, 64)

    assert one.rate < 4 / (LOOP + PROXY + 16 * PASS / 256)


def test_the_batcher_of_the_simulation_is_the_services_own() -> None:
    """It is not retyped."""
    assert simulation.Batcher.__module__ == "service.engine.batcher"


@pytest.mark.parametrize(
    ("number", "rows"),
    [(4, None), (16, 1), *(pytest.param(n, None, marks=pytest.mark.prove) for n in (16, 64))],
)
def test_the_page_says_what_the_simulation_says_of_so_many_cores(
    number: int, rows: int | None
) -> None:
    """By the costs that were measured; a batcher that batches otherwise may do a little else."""
    page = text_between_marks(cores.PAGE.read_text("utf-8"), cores.COMMAND)
    costs = cores.read_costs(json.loads(cores.COSTS.read_text())["costs"])

    for row in islice(cores.plan_rows(costs, number), rows):
        cells = row.split(" | ")[:2]
        (told,) = (line for line in page.splitlines() if line.startswith(" | ".join(cells)))
        assert figures(told) == pytest.approx(figures(row), rel=0.2, abs=5), row


def test_the_page_says_what_a_gpu_needs() -> None:
    """By the same costs."""
    page = text_between_marks(cores.PAGE.read_text("utf-8"), cores.COMMAND).splitlines()
    costs = cores.read_costs(json.loads(cores.COSTS.read_text())["costs"])

    for row in cores.gpu_rows(costs):
        (told,) = (line for line in page if line.startswith(" | ".join(row.split(" | ")[:1])))
        assert figures(told) == pytest.approx(figures(row), rel=0.1), row


def figures(row: str) -> list[float]:
    """Return the numbers of a table's row."""
    return [float(each) for each in re.findall(r"[\d.]+", row.replace(",", ""))]
