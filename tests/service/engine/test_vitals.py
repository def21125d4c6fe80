"""What a replica says of itself."""

import os

import httpx
from prometheus_client.parser import text_string_to_metric_families

from service.pipeline.replica import Replica


async def test_what_runs_and_in_what_room_is_on_the_page(client: httpx.AsyncClient) -> None:
    """Model, memory, and when it started."""
    page = (await client.get("/metrics")).text
    found = {
        sample.name.removeprefix("headlight_"): sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }

    model = found["model_info"].labels
    assert set(model) == {"model", "weights", "dtype", "device", "numerics", "replica"}
    assert 50e6 < found["resident_memory_bytes"].value < os.sysconf("SC_PHYS_PAGES") * 4096
    assert found["start_time_seconds"].value > 1.7e9
    assert found["ready"].value == 1


async def test_the_most_that_may_wait_and_be_held_is_in_info(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Where the gauges of what waits and is held have no limit next to them."""
    limits = (await client.get("/info")).json()["limits"]

    settings = replica.settings
    assert limits["max_waiting_requests"] == settings.max_waiting_requests
    assert limits["max_waiting_tokens"] == settings.max_waiting_tokens
    assert limits["max_held_bytes"] == settings.max_held_bytes
