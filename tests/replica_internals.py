"""Where tests reach into what a replica keeps to itself, once for each kind of state.

Everything else is tested through what users of a class see (tests/test_architecture.py counts).
"""

import asyncio
import copy
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from model.pooling import Pooling, PoolingMode
from service.engine.batcher import Batcher
from service.engine.fair.queue import JobQueue
from service.engine.speed import LaneSpeed
from service.pipeline.admission import Admission
from service.pipeline.find.resolver import linear_pooling
from service.pipeline.reader import Reader
from service.pipeline.replica import Replica
from service.pipeline.worker import Worker
from service.tables.keyring import KeyRing


def altered(replica: Replica, **parts: Any) -> Replica:
    """Return a replica with some of its parts replaced; it shares the others."""
    other = copy.copy(replica)
    vars(other).update(parts)
    return other


def under(replica: Replica, reader: Reader | None = None, **settings: object) -> Replica:
    """Return a replica that answers requests under other settings, or reads them by another reader.

    It shares the model, the queue and all that is measured.
    """
    settled, reader = replica.settings.model_copy(update=settings), reader or replica.reader
    admission = Admission(replica.batcher, replica.metrics, settled, replica.dtype)
    other = altered(
        replica,
        settings=settled,
        reader=reader,
        admission=admission,
        ring=KeyRing(settled.api_keys, settled.api_keys_file),
    )
    other.gateway = other._make_gateway()
    return other


@contextmanager
def pooled_by(replica: Replica, mode: PoolingMode) -> Iterator[None]:
    """Let a replica's model be pooled otherwise, for all that explains scores."""
    resolver = replica.gateway.resolver
    before = resolver.linear, resolver.linear_inputs
    pooling = Pooling((mode,), normalize=True)
    resolver.linear = linear_pooling(pooling)
    resolver.linear_inputs = linear_pooling(pooling, single=True)
    try:
        yield
    finally:
        resolver.linear, resolver.linear_inputs = before


@contextmanager
def stalled(batcher: Batcher[Any, Any]) -> Iterator[None]:
    """Start no batch meanwhile: what is admitted waits."""
    idle, batcher._idle = batcher._idle, []
    try:
        yield
    finally:
        batcher._idle = idle
        batcher._fill_lanes()


def bound(
    monkeypatch: pytest.MonkeyPatch,
    batcher: Batcher[Any, Any],
    requests: int = 1000,
    tokens: int = 10**9,
) -> None:
    """Let an empty batcher keep so much waiting."""
    assert not batcher.waiting_requests
    monkeypatch.setattr(batcher, "_queue", JobQueue[Any, Any](requests, tokens))


def believe(monkeypatch: pytest.MonkeyPatch, batcher: Batcher[Any, Any], speed: float) -> None:
    """Let a batcher go by a speed, tokens per second, that it has measured and never surpassed."""
    monkeypatch.setattr(batcher, "_speed", LaneSpeed(speed))


def slow_down(monkeypatch: pytest.MonkeyPatch, batcher: Batcher[Any, Any]) -> None:
    """Let a batcher have measured next to no speed of late: a neighbour took the processor."""
    believe(monkeypatch, batcher, batcher.speed)
    while batcher.speed > 1e-3:
        batcher._speed.record(1, math.inf)


@asynccontextmanager
async def occupied(worker: Worker) -> AsyncIterator[threading.Event]:
    """Hold the thread of a worker until the event is set, or the block ends."""
    gate = threading.Event()
    held = asyncio.create_task(worker._thread.run(gate.wait))
    try:
        yield gate
    finally:
        gate.set()
        await held
