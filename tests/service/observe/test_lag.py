"""What holds the event loop up shows."""

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observe import lag
from service.observe.metrics import Metrics

pytestmark = pytest.mark.asyncio(loop_scope="session")


def slow(metrics: Metrics, seconds: str) -> tuple[float, float]:
    """Of all measurements: how many are above so many seconds, and how many there are."""
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == "headlight_event_loop_lag_seconds_bucket"
    ]
    counts = {sample.labels["le"]: sample.value for sample in samples}
    return counts["+Inf"] - counts[seconds], counts["+Inf"]


async def test_a_held_loop_is_seen_and_a_free_one_is_not() -> None:
    """One block of 300 ms among sleeps, not all of which are late even on a busy machine."""
    metrics = Metrics("replica-1")

    async def measured(count: int) -> float:
        while (found := slow(metrics, "0.1"))[1] < count:
            await asyncio.sleep(lag.PERIOD_SECONDS)
        return found[0]

    async with asyncio.timeout(60):
        watching = asyncio.create_task(lag.watch(metrics.lagged))
        before = await measured(5)
        time.sleep(0.3)  # noqa: ASYNC251 # the fault that is to be seen
        late = await measured(6)
        watching.cancel()

    assert late > before and before < 5
