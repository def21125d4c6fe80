"""A free port, and a start that ends where Ray would be started."""

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from service.preflight import isolated
from service.start import ray_session
from tests import quiet_ray  # noqa: F401


@pytest.fixture
def free() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def nothing_of_rays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A start that gets as far as Ray fails here at once; one process makes all checks."""
    monkeypatch.setattr(ray_session, "start_ray_processes", None)
    monkeypatch.setattr(
        isolated, "checking", lambda models, say: nullcontext(partial(isolated.check_here, models))
    )
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)
