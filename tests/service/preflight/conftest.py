"""A free port, and Ray imported once without what its import warns of, which is its own age."""

import socket
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.schema  # noqa: F401


@pytest.fixture
def free() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
