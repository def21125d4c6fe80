"""The bounds that Ray gets, and the load that each replica reports."""

import asyncio
import pickle
import time
import warnings
from typing import Any

import httpx
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Ray warns of Ray's own age
    from service.fleet import bounds, policy
    from service.fleet.bounds import ReplicaLoad
from service.cluster.start_report import StartFailed
from service.fleet.policy import BUSY, LOOP, WAITING
from service.pipeline.replica import Replica
from service.tables.settings import Settings

SCALED = Settings(min_replicas=2, max_replicas=7, downscale_delay_seconds=41)


def test_a_number_that_is_fixed_is_told_as_one() -> None:
    """Ray's own policy is nowhere."""
    assert bounds.replica_options(Settings(replicas=3)) == {"num_replicas": 3}


def test_bounds_delays_and_our_policy_are_what_ray_gets() -> None:
    """As it reads them in its controller, where the policy comes out of the pickle."""
    (config,) = bounds.replica_options(SCALED).values()

    assert (config.min_replicas, config.max_replicas, config.initial_replicas) == (2, 7, None)
    assert config.downscale_delay_s == 41 and config.upscale_delay_s < 10
    assert config.look_back_period_s == policy.STALE_SECONDS >= policy.WINDOW_SECONDS
    assert config.metrics_interval_s * 4 < policy.WINDOW_SECONDS
    pickled = config.policy.get_serialized_policy_def()
    found = pickle.loads(pickled)
    assert found.__name__ == "scale" and found is not policy.scale
    assert found.__globals__["HIGH"] == policy.HIGH


TWICE = "max_replicas: leave autoscaling_config out of the deployment"


@pytest.mark.parametrize(
    ("settings", "options", "line"),
    [
        (
            Settings(),
            {"autoscaling_config": {"max_replicas": 3}},
            "not autoscaling_config but min_replicas and max_replicas in args",
        ),
        (
            Settings(),
            {"num_replicas": "auto"},
            "not autoscaling_config but min_replicas and max_replicas in args",
        ),
        (SCALED, {"autoscaling_config": {"max_replicas": 3}}, TWICE),
        (SCALED, {"autoscaling_config": None}, TWICE),
        (SCALED, {"num_replicas": 3}, "max_replicas: leave num_replicas out of the deployment"),
    ],
    ids=["without our policy", "by Ray's policy", "before our policy", "switched off", "ignored"],
)
def test_a_file_that_says_it_twice_is_refused(
    settings: Settings, options: dict[str, Any], line: str
) -> None:
    """Ray would let the deployment's own go first, or ignore it, without a word."""
    with pytest.raises(StartFailed, match=f"^{line}$"):
        bounds.refuse_overrides(settings, options)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("max_ongoing_requests", 5, "leave it out; max_waiting_requests in args decides it"),
        ("max_queued_requests", -1, "leave it out; max_waiting_requests in args decides it"),
        ("graceful_shutdown_timeout_s", 20, "write at least 35, or leave it out"),
    ],
)
def test_what_would_cut_requests_off_is_refused(name: str, value: float, line: str) -> None:
    """Ray would refuse them in its own words, or end their replica first."""
    with pytest.raises(StartFailed, match=f"^{name}: {line}$"):
        bounds.refuse_overrides(Settings(), {name: value})


def test_what_is_said_once_is_taken() -> None:
    """In args alone, or as the deployment's number."""
    bounds.refuse_overrides(SCALED, {"max_ongoing_requests": 768})
    bounds.refuse_overrides(Settings(), {"num_replicas": 2, "graceful_shutdown_timeout_s": 35})


@pytest.mark.parametrize(
    ("settings", "world", "counted"),
    [(Settings(), 5, 5), (Settings(replicas=3), None, 3), (SCALED, 1, 7), (SCALED, None, 7)],
)
def test_room_is_held_for_the_most_there_may_be(
    settings: Settings, world: int | None, counted: int
) -> None:
    """What Ray says of the number where it is fixed; the bound where it scales."""
    assert bounds.with_replicas(settings, world).most_replicas == counted


LONG = {"inputs": [{"token_ids": [2035] * 251}] * 7}


async def test_a_report_is_the_share_of_time_since_the_last_and_the_work_that_is_left(
    replica: Replica, client: httpx.AsyncClient
) -> None:
    """Of both lanes, by a clock that the test moves; afterwards there is none of either."""
    now = 0.0
    load, before = ReplicaLoad(replica, lambda: now), replica.health.batches.lane_seconds

    asked = asyncio.create_task(client.post("/v1/encode", json=LONG))
    while not replica.batcher.busy:
        await asyncio.sleep(0)
    under_way = load.report()
    assert (await asked).status_code == 200
    now = 13.0
    after = load.report()

    spent = replica.health.batches.lane_seconds - before
    assert under_way[BUSY] == 0 and under_way[WAITING] > 0
    assert after[WAITING] == 0 and spent > 0
    assert after[BUSY] == pytest.approx(spent / 13 / len(replica.lanes))
    assert load.report()[BUSY] == 0


async def test_what_the_event_loop_computes_is_a_share_of_its_own(replica: Replica) -> None:
    """Its thread's seconds, from whichever thread is asked, and none of another thread's."""
    now = 0.0
    load, clock = ReplicaLoad(replica, lambda: now), replica.loop_seconds

    before = clock()
    while clock() - before < 0.05:
        pass
    now = 0.5
    full = await asyncio.to_thread(load.report)
    await asyncio.to_thread(_compute, 0.1)
    now = 1.0
    idle = load.report()

    assert full[LOOP] == pytest.approx(0.1, rel=0.2) and full[BUSY] == 0
    assert idle[LOOP] < full[LOOP] / 2


async def test_the_page_has_what_is_reported(replica: Replica, client: httpx.AsyncClient) -> None:
    """Seconds that wait, seconds computed, and the lanes to divide them by; the loop's own."""
    page = (await client.get("/metrics")).text

    assert 'headlight_waiting_seconds{model="all-MiniLM-L6-v2",replica="replica-1"} 0.0\n' in page
    assert 'headlight_lanes{model="all-MiniLM-L6-v2",replica="replica-1"} 2.0\n' in page
    (computed,) = (line for line in page.splitlines() if line.startswith("headlight_lane_seconds_"))
    assert float(computed.split()[1]) == pytest.approx(replica.health.batches.lane_seconds)
    (looped,) = (line for line in page.splitlines() if line.startswith("headlight_event_loop_sec"))
    assert float(looped.split()[1]) == pytest.approx(replica.loop_seconds(), rel=0.1)


def _compute(seconds: float) -> None:
    """Keep this thread's core busy for so long."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
