"""One service for all tests here, started as a user starts it."""

from collections.abc import Iterator

import pytest

from tests.ray.service import Service, free_port, started


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A service with two replicas behind HAProxy."""
    with started("--port", str(free_port()), "--replicas", "2") as running:
        yield running
