"""What a real replica reports of its work."""

import asyncio
import time

import httpx
import pytest

from service.fleet.bounds import Load
from service.fleet.policy import BUSY, LOOP, WAITING
from service.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = {"inputs": [{"token_ids": [2035] * 251}] * 7}


async def test_a_report_is_the_share_of_time_since_the_last_and_the_work_that_is_left(
    replica: Replica, client: httpx.AsyncClient
) -> None:
    """Of both lanes, by a clock that the test moves; afterwards there is none of either."""
    now = 0.0
    load, before = Load(replica, lambda: now), replica.health.batches.lane_seconds

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
    load, clock = Load(replica, lambda: now), replica.loop_seconds

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

    assert 'headlight_waiting_seconds{replica="replica-1"} 0.0\n' in page
    assert 'headlight_lanes{replica="replica-1"} 2.0\n' in page
    (computed,) = (line for line in page.splitlines() if line.startswith("headlight_lane_seconds_"))
    assert float(computed.split()[1]) == pytest.approx(replica.health.batches.lane_seconds)
    (looped,) = (line for line in page.splitlines() if line.startswith("headlight_event_loop_sec"))
    assert float(looped.split()[1]) == pytest.approx(replica.loop_seconds(), rel=0.1)


def _compute(seconds: float) -> None:
    """Keep this thread's core busy for so long."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
