"""What simulations of many replicas stand on: queues whose answer is known, and Ray's own code."""

import math
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import fleet  # noqa: E402  a script, no package of ours

MEAN = 0.02


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
