"""Each request, told once at its end: to the metrics, the trace and the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from service.guard import REQUEST_ID
from service.metrics import Metrics
from service.seen import Seen

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.telemetry import Tracing

logger = logging.getLogger(__name__)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
TRACEPARENT = "traceparent"


class Observer:
    """Watches the requests of one replica.

    Args:
        weights: digest of what answers.
        tracing: None where it is off.
        lines: whether each request is a line of the log.
    """

    def __init__(
        self, metrics: Metrics, weights: str, tracing: "Tracing | None", *, lines: bool
    ) -> None:
        self._metrics, self._weights = metrics, weights
        self._tracing, self._lines = tracing, lines

    @contextmanager
    def request(self, route: str, scope: Scope) -> Iterator[Seen]:
        """Watch one request, whichever way it ends.

        Args:
            route: one of ours, or other: the path itself is the client's to choose.
        """
        headers = Headers(scope=scope)
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        seen = Seen(route, method, headers.get(REQUEST_ID, ""))
        if self._tracing:
            seen.trace = self._tracing.begin(seen, headers.getlist(TRACEPARENT))
        try:
            with self._metrics.request(seen):
                yield seen
        finally:
            if self._tracing:
                self._tracing.end(seen)
            if self._lines:
                logger.info("request", extra=self._line(seen))

    def _line(self, seen: Seen) -> dict[str, object]:
        return {
            **seen.names(),
            "code": seen.code,
            "duration_ms": round(seen.seconds * 1000, 3),
            "sequences": seen.sequences,
            "tokens": seen.tokens,
            "weights": self._weights,
        }
