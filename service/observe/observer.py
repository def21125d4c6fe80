"""Reports each finished request once, to the metrics, the traces and the log.

It also has a clock of how much the event loop that answers them computes.

A report takes several times as long if its code and data have just left the processor's caches,
as they do between answers. So requests are reported several at a time
(docs/decisions/0009-telling-in-bursts.md).
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from service.observe.families import METRICS_PATH, PROBE_PATHS
from service.observe.metrics import Metrics
from service.shapes.record import TRACEPARENT, Record
from service.tables.refusals import UNAUTHORIZED_STATUS

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing

logger = logging.getLogger(__name__)

TRACEPARENT_HEADER = TRACEPARENT.encode()
REPORT_SECONDS = 0.1  # longest time between a request's end and its report

SUMMARY_SECONDS = 60.0  # between two lines of the numbers of probes and 401s


class Observer:
    """Reports the requests of one replica, in its event loop.

    Args:
        weights: digest of the model's weights, for the log.
        tracing: None where it is off.
        lines: whether to log a line for each request.
    """

    def __init__(
        self, metrics: Metrics, weights: str, tracing: "Tracing | None", *, lines: bool
    ) -> None:
        self._weights, self._tracing = weights, tracing
        traced, logged = [tracing.end] if tracing else [], [self._log_request] if lines else []
        self._listeners = [metrics.count_request, *traced, *logged]
        self._in_flight, self._ended = set[Record](), list[Record]()
        # numbers of requests without a line of their own, by route and status since a time
        self._unlogged, self._summary_time = Counter[tuple[str, int]](), time.monotonic()
        sentence = "Requests not yet answered, scrapes aside."
        metrics.add_gauge("requests_in_flight", sentence, self._count_in_flight)

    def begin(self, record: Record, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Count a request as in flight, and begin its trace, until `end` is called for it.

        Args:
            headers: of the request, as received.
        """
        if self._tracing:
            found = (value for name, value in headers if name == TRACEPARENT_HEADER)
            record.trace = self._tracing.begin(record, [value.decode("latin-1") for value in found])
        self._in_flight.add(record)

    def end(self, record: Record) -> None:
        """Queue a request that has ended, answered or not, to be reported once and soon."""
        if record not in self._in_flight:
            return
        self._in_flight.discard(record)
        record.end_request()
        if not self._ended:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)
        self._ended.append(record)

    def drop(self, record: Record) -> None:
        """Forget a request that another replica has answered, and counted."""
        self._in_flight.discard(record)

    def _count_in_flight(self) -> int:
        """Return the number of requests in flight without scrapes: these would count themselves."""
        return sum(record.route != METRICS_PATH for record in self._in_flight)

    def report(self) -> None:
        """Report the requests that have ended since the last call; call it before a scrape."""
        ended, self._ended = self._ended, []
        for listener in self._listeners:
            for record in ended:
                try:
                    listener(record)
                except Exception:  # a bug, which must not silence the others
                    logger.exception("request not recorded", extra=record.log_ids())
        if time.monotonic() - self._summary_time > SUMMARY_SECONDS:
            self.log_summaries()

    def log_summaries(self) -> None:
        """Log the number of requests that got no line of their own, by route and status."""
        counts, self._unlogged = self._unlogged, Counter()
        self._summary_time = time.monotonic()
        for (route, code), count in sorted(counts.items()):
            logger.info("requests", extra={"route": route, "code": code, "count": count})

    def _log_request(self, record: Record) -> None:
        """Log a request's line with the time of its end, or count it for a summary."""
        if record.route in PROBE_PATHS or record.code == UNAUTHORIZED_STATUS:
            self._unlogged[(record.route, record.code)] += 1
            return
        if not logger.isEnabledFor(logging.INFO):
            return
        facts = {
            **record.log_ids(),
            "key": record.key or None,
            "code": record.code,
            "duration_ms": round(record.seconds * 1000, 3),
            "sequences": record.sequences,
            "tokens": record.tokens,
            "weights": self._weights,
        }
        line = logger.makeRecord(
            logger.name, logging.INFO, __file__, 0, "request", (), None, extra=facts
        )
        line.created = record.ended
        logger.handle(line)


def make_loop_clock() -> Callable[[], float]:
    """Return a function that any thread may call for the CPU seconds of this event loop's thread.

    Seconds spent waiting for a core or for Python's own lock do not count.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
