"""What simulations of many replicas stand on: queues whose answer is known, and Ray's own code."""

import asyncio
import json
import math
import re
import sys
import warnings
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import cores  # noqa: E402  scripts, no package of ours
import fleet  # noqa: E402
from publish import between  # noqa: E402
from served import simulation  # noqa: E402

MEAN = 0.02
LOOP, PROXY, PASS, PAIR = 0.0005, 0.0001, 0.003, 0.002  # seconds
COSTS = simulation.Costs(
    loop=(2 * LOOP, LOOP),
    text=0.00002,
    proxy=(2 * PROXY, PROXY),
    alone=[(16, PASS), (1024, 32 * PASS)],
    beside=[(16, 2 * PASS), (1024, 64 * PASS)],
    pair=[(16, PAIR), (1024, 18 * PASS)],
)
READY = simulation.Costs((LOOP, LOOP), 0.0, (PROXY, PROXY), *[[(1, 1e-9), (10**6, 1e-9)]] * 3)


@pytest.fixture(scope="module")
def autoscale() -> ModuleType:
    """The script, whose import of Ray warns of Ray's own age."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import autoscale
    return autoscale


def test_haproxy_takes_the_fewest_connections_then_the_longest_unused() -> None:
    """As its leastconn does."""
    balancer = fleet.Balancer([5, 3, 7])

    first = [balancer.take() for _ in range(4)]
    balancer.give(7)
    later = [balancer.take(), balancer.take()]

    assert first == [5, 3, 7, 5]
    assert later == [7, 3]


def test_one_replica_waits_as_the_formula_says() -> None:
    """M/M/1: times are exponential with the rate of what is left; half-way, ln 2 of that."""
    one = fleet.simulate(1, 1, busy=0.5, mean=MEAN, fixed=False)

    assert one.p50 == pytest.approx(math.log(2) * MEAN / 0.5, rel=0.1)
    assert one.p99 == pytest.approx(math.log(100) * MEAN / 0.5, rel=0.2)
    assert one.busiest == pytest.approx(0.5, rel=0.05)


def test_haproxies_that_do_not_know_each_other_choose_worse() -> None:
    """The same load and replicas behind one and behind many; and none is worked more than all."""
    one, many = (fleet.simulate(40, nodes, fixed=False) for nodes in (1, 40))

    assert one.p99 < many.p99 and one.p50 < many.p50
    assert one.busiest - one.idlest < many.busiest - many.idlest


def test_what_each_hop_holds_grows_with_the_replicas() -> None:
    """Beyond what a setting allows too."""
    few, many = fleet.hops(100, 25), fleet.hops(1000, 250)

    assert [b / a for a, b in zip(few, many, strict=True)] == pytest.approx([10] * 5, rel=0.15)


@pytest.mark.parametrize("name", ["diurnal", "bursty", "crowd"])
def test_every_policy_runs_a_trace_within_its_bounds(autoscale: ModuleType, name: str) -> None:
    """Some minutes; the fixed number costs exactly its time, and answers everything."""
    end = 150.0
    done = {
        title: autoscale.Simulation(way, 5.0).run(autoscale.TRACES[name], end)
        for title, way in autoscale.ways().items()
    }

    fixed = done["fixed"]
    assert fixed.replica_seconds == pytest.approx(autoscale.MOST * end, rel=0.01)
    assert fixed.refused == 0 and fixed.changes == 0
    for one in done.values():
        assert end <= one.replica_seconds <= fixed.replica_seconds * 1.01
        assert 0 < one.p50 <= one.p99 and 1 <= one.peak <= autoscale.MOST
        assert one.p99 <= autoscale.SURE_SECONDS + 3


def test_replicas_that_find_no_place_keep_none_of_the_others(autoscale: ModuleType) -> None:
    """A crowd wants twelve, five have a place; after it, one is left."""
    crowd = autoscale.Trace(lambda now, end: 7.0 if now < 150 else 0.2, places=autoscale.few)

    done = autoscale.Simulation(autoscale.ways()["Headlight"], 5.0).run(crowd, 450.0)

    assert (done.peak, done.last) == (autoscale.MOST, 1)


def test_short_texts_bring_replicas_while_lanes_idle(autoscale: ModuleType) -> None:
    """A fifth of the lanes' time, and all of the event loop's."""
    trace = autoscale.Trace(lambda now, end: 2.0, loop=0.1, lanes=0.02)

    done = autoscale.Simulation(autoscale.ways()["Headlight"], 5.0).run(trace, 200.0)

    assert done.peak > 2 and done.refused == 0


def test_what_a_lost_node_was_doing_is_not_answered(autoscale: ModuleType) -> None:
    """Eleven of twelve are lost half-way, and come again."""
    trace = autoscale.Trace(lambda now, end: 6.0, places=lambda now, end: 1 if now == 100 else 12)

    done = autoscale.Simulation(autoscale.ways()["fixed"], 0.0).run(trace, 200.0)

    assert done.refused > 0 and done.last == autoscale.MOST
    assert done.replica_seconds == autoscale.MOST * 200 + autoscale.MOST - 11


def test_rays_policy_is_rays_and_ours_is_the_services(autoscale: ModuleType) -> None:
    """Neither is retyped."""
    ways = autoscale.ways()

    assert ways["Headlight"].decide.__module__ == "service.fleet.policy"
    assert ways["Ray's default"].decide.__module__ == "ray.serve.autoscaling_policy"
    assert ways["Ray's default"].config.upscale_delay_s == 30  # as it comes


def test_what_shares_a_core_takes_as_much_longer() -> None:
    """Two of one second have one core for two; a third, half as long, has a third of it."""

    async def ends() -> list[float]:
        shared, loop = simulation.Cores(1), asyncio.get_running_loop()

        async def one(seconds: float) -> float:
            await shared.compute(seconds)
            return loop.time()

        return await asyncio.gather(one(1.0), one(1.0), one(0.5))

    with asyncio.Runner(loop_factory=simulation.Simulated) as runner:
        assert runner.run(ends()) == pytest.approx([2.5, 2.5, 1.5])


@pytest.mark.parametrize(("threads", "seconds"), [(1, PASS), (2, PAIR)])
def test_a_lone_request_takes_its_steps_one_after_the_other(threads: int, seconds: float) -> None:
    """HAProxy, the event loop and a pass on all cores, each as when nothing else runs."""
    one = simulation.simulate(COSTS, 8, 1, threads, 1, requests=150)

    assert one.p50 == pytest.approx(2 * PROXY + 2 * LOOP + seconds, rel=0.001)
    assert one.rate == pytest.approx(1 / one.p50, rel=0.1)


def test_three_threads_follow_from_one_and_two() -> None:
    """Amdahl's law: of 3 ms two threads share 2, and three have a third of that each."""
    assert COSTS.computing(16, 2, others=False) == pytest.approx(PAIR)
    assert COSTS.computing(16, 3, others=False) == pytest.approx(0.001 + 0.002 / 3)
    assert COSTS.computing(16, 1, others=True) == pytest.approx(2 * PASS)
    assert COSTS.computing(2048, 1, others=False) == pytest.approx(64 * PASS)


def test_one_event_loop_carries_what_it_has_time_for_whatever_the_lanes_do() -> None:
    """And two replicas twice that, up to what HAProxy's two threads carry."""
    one, two, many = (
        simulation.simulate(READY, 64, replicas, 1, 256, requests=6000) for replicas in (1, 2, 32)
    )

    assert one.rate == pytest.approx(1 / LOOP, rel=0.02)
    assert two.rate == pytest.approx(2 / LOOP, rel=0.02)
    assert many.rate == pytest.approx(2 / PROXY, rel=0.02)
    assert (one.loop, many.proxy) == pytest.approx((1, 1), abs=0.05)
    assert cores.front(READY) == pytest.approx(1 / LOOP, rel=0.02)


def test_cores_are_not_worked_more_than_there_are() -> None:
    """Four replicas of four threads on four cores do what the cores have time for."""
    one = simulation.simulate(COSTS, 4, 4, 4, 64)

    assert one.rate < 4 / (LOOP + PROXY + 16 * PASS / 256)


def test_the_batcher_of_the_simulation_is_the_services_own() -> None:
    """It is not retyped."""
    assert simulation.Batcher.__module__ == "service.engine.batcher"


@pytest.mark.parametrize(
    ("number", "rows"),
    [(4, None), (16, None), (64, 1), pytest.param(64, None, marks=pytest.mark.prove)],
)
def test_the_page_says_what_the_simulation_says_of_so_many_cores(
    number: int, rows: int | None
) -> None:
    """By the costs that were measured; a batcher that batches otherwise may do a little else."""
    page = between(cores.PAGE.read_text("utf-8"), cores.COMMAND)
    costs = cores.read(json.loads(cores.COSTS.read_text())["costs"])

    for row in islice(cores.plan(costs, number), rows):
        cells = row.split(" | ")[:2]
        (told,) = (line for line in page.splitlines() if line.startswith(" | ".join(cells)))
        assert figures(told) == pytest.approx(figures(row), rel=0.2, abs=5), row


def test_the_page_says_what_a_gpu_needs() -> None:
    """By the same costs."""
    page = between(cores.PAGE.read_text("utf-8"), cores.COMMAND).splitlines()
    costs = cores.read(json.loads(cores.COSTS.read_text())["costs"])

    for row in cores.gpu(costs):
        (told,) = (line for line in page if line.startswith(" | ".join(row.split(" | ")[:1])))
        assert figures(told) == pytest.approx(figures(row), rel=0.1), row


def figures(row: str) -> list[float]:
    """Return the numbers of a table's row."""
    return [float(each) for each in re.findall(r"[\d.]+", row.replace(",", ""))]
