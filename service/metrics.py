"""Every metric, and the one context manager that feeds them.

Each replica counts for itself and labels every series with its own name; nothing is summed
across replicas here, so that a dead replica takes only its own series with it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

Family = TypeVar("Family", Counter, Gauge)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 10)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED = 499  # the client went away before its answer


@dataclass(slots=True)
class Seen:
    """What is known about a request by the time it is counted."""

    route: str
    input: str = "none"
    code: int = CLIENT_CLOSED


class Metrics:
    """The metrics of one replica."""

    def __init__(self, replica: str) -> None:
        # no second series for each one, which no query here needs
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._replica, self._registry = replica, CollectorRegistry()
        self._requests = self._family(
            Counter, "requests", "Answers given.", "route", "input", "code"
        )
        self._seconds = Histogram(
            "headlight_request_duration_seconds",
            "Time to the answer.",
            ["route", "replica"],
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._lag = Histogram(
            "headlight_event_loop_lag_seconds",
            "How much later than asked the event loop wakes a sleeper.",
            ["replica"],
            registry=self._registry,
            buckets=LAGS,
        ).labels(replica)
        self._tokens = self._family(Counter, "tokens", "Tokens encoded for an answer.")
        self._canaries = self._family(Counter, "canary_failures", "Self-checks that went wrong.")
        self._info = self._family(
            Gauge, "model_info", "The model; 1.", "model", "weights", "dtype", "device", "numerics"
        )
        self._tokens.labels(replica)
        self._canaries.labels(replica)

    def render(self) -> bytes:
        """All series as Prometheus text."""
        return generate_latest(self._registry)

    @contextmanager
    def request(self, route: str) -> Iterator[Seen]:
        """Count and time one request, whichever way it ends; the only place that does."""
        start, seen = time.perf_counter(), Seen(route)
        try:
            yield seen
        finally:
            labels = {"input": seen.input, "code": str(seen.code)}
            self._requests.labels(route=seen.route, **labels, replica=self._replica).inc()
            elapsed = time.perf_counter() - start
            self._seconds.labels(route=seen.route, replica=self._replica).observe(elapsed)

    def lagged(self, seconds: float) -> None:
        """Record one lag of the event loop."""
        self._lag.observe(seconds)

    def encoded(self, tokens: int) -> None:
        """Count the tokens of an answered request."""
        self._tokens.labels(self._replica).inc(tokens)

    def canary_failed(self) -> None:
        self._canaries.labels(self._replica).inc()

    def describe(self, *, model: str, weights: str, dtype: str, device: str, numerics: str) -> None:
        """Publish what this replica serves."""
        self._info.labels(model, weights, dtype, device, numerics, self._replica).set(1)

    def watch(self, name: str, sentence: str, read: Callable[[], float]) -> None:
        """Publish a gauge that is read at every scrape."""
        self._family(Gauge, name, sentence).labels(self._replica).set_function(read)

    def _family(self, kind: type[Family], name: str, sentence: str, *labels: str) -> Family:
        return kind(f"headlight_{name}", sentence, [*labels, "replica"], registry=self._registry)


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each sample of a page of metrics: its full name, its labels, its value.

    Raises:
        ValueError: it is no such page.
    """
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
