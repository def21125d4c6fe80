"""What a replica says of itself."""

import os
from importlib.metadata import version

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_runs_and_in_what_room_is_on_the_page(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Software, model, limits, memory, and when it started."""
    page = (await client.get("/metrics")).text
    found = {
        sample.name.removeprefix("headlight_"): sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }

    build, model = found["build_info"].labels, found["model_info"].labels
    assert build["version"] == version("headlight") and build["ray"] == version("ray")
    assert set(build) == {"version", "python", "torch", "ray", "replica"}
    assert set(model) == {"model", "weights", "dtype", "device", "numerics", "replica"}
    limits = replica.settings
    assert found["waiting_requests_limit"].value == limits.max_waiting_requests
    assert found["waiting_tokens_limit"].value == limits.max_waiting_tokens
    assert 50e6 < found["resident_memory_bytes"].value < os.sysconf("SC_PHYS_PAGES") * 4096
    assert 0 < found["model_load_duration_seconds"].value < 600
    assert found["start_time_seconds"].value > 1.7e9
    assert found["ready"].value == 1
