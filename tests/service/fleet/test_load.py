"""What a real replica reports of its work."""

import asyncio

import httpx
import pytest

from service.fleet.load import Load
from service.fleet.policy import BUSY, WAITING
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


async def test_the_page_has_what_is_reported(replica: Replica, client: httpx.AsyncClient) -> None:
    """Seconds that wait, seconds computed, and the lanes to divide them by."""
    page = (await client.get("/metrics")).text

    assert 'headlight_waiting_seconds{replica="replica-1"} 0.0\n' in page
    assert 'headlight_lanes{replica="replica-1"} 2.0\n' in page
    (computed,) = (line for line in page.splitlines() if line.startswith("headlight_lane_seconds_"))
    assert float(computed.split()[1]) == pytest.approx(replica.health.batches.lane_seconds)
