"""Every metric of one replica, each fed in one place.

    families    what there is, with every value that a closed label can have, at 0
    request     counts whatever is answered, from what service/observe/record.py knows of it
    the rest    what a request does not know: batches, self-checks, the machine

Each replica counts for itself and labels every series with its own name; nothing is summed
across replicas here, so that a dead replica takes only its own series with it. Nothing is
observed more often than once a request, a stage or a batch.

Source of the names: Prometheus, "Metric and label naming".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from model.maps.forms import Form
from service.observe.record import STAGES, Record
from service.refusals import CALLERS, REFUSALS, UNAUTHORIZED

Family = TypeVar("Family", Counter, Gauge, Histogram)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 10)
STAGE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1, 10)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)  # of a batch
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST

INPUTS = ("none", "text", "tokens", "embeddings", "mixed")
WAITED, ERRORS, FORMS = ("queue", "forward"), ("oom", "other"), get_args(Form)
SHED = ("queue_full", "token_budget", "deadline", "not_ready")
LATE = {"deadline_exceeded": "deadline", "not_ready": "not_ready"}  # sheds that say it themselves
OVERLOADED = "overloaded"
# What an alert may ask the rate of before it first happens: a 200, and these
AWAITED = (
    200,
    *sorted({REFUSALS[c].status for c in (OVERLOADED, "internal", "deadline_exceeded")}),
)
PROBE = "/ready"  # its 503 turns nobody's work away


class Metrics:
    """The metrics of one replica; what has a closed label is a dict by its values."""

    def __init__(self, replica: str) -> None:
        # no second series for each one, which no query here needs
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._replica, self._gauges = replica, dict[str, Gauge]()
        self._pages: dict[bool, bytes] = {}  # what `request` feeds, rendered, until it changes
        # what is made from here on is fed by `request` alone
        self._registry = self._requested = CollectorRegistry()
        one, each = self._counter, self._counters
        self._requests = self._make(Counter, "requests", "Answers given.", "route", "input", "code")
        self._seconds = self._make(
            Histogram, "request_duration_seconds", "Time to the answer.", "route", buckets=BUCKETS
        )
        self._response_bytes = one("response_bytes", "Bytes of answers' bodies.")
        self._shed = each("shed", "Requests turned away for want of room or time.", "reason", SHED)
        self._invalid = each("invalid_inputs", "Requests refused as they are.", "code", CALLERS)
        self._nonfinite = one("nonfinite_outputs", "Requests whose answer was not finite.")
        self._unauthorized = one("auth_failures", "Requests without a key that is known.")
        self._stage_sums = each("stage_seconds", "Time in a stage.", "stage", STAGES)
        stages = self._make(
            Histogram,
            "stage_duration_seconds",
            "Time of a request in a stage.",
            "stage",
            buckets=STAGE_BUCKETS,
        )
        self._stages = {stage: stages.labels(stage, replica) for stage in STAGES}
        # and this by the rest
        self._registry = CollectorRegistry()
        sentence = "How much later than asked the event loop wakes a sleeper."
        self._lag = self._histogram("event_loop_lag_seconds", sentence, LAGS)
        self._tokens = one("tokens", "Tokens encoded for an answer.")
        self._batch_sequences = self._histogram("batch_sequences", "Of a batch.", SEQUENCES)
        self._batch_tokens = self._histogram("batch_tokens", "Of a batch.", TOKENS)
        self._cancelled = each("cancelled", "Requests whose client left.", "stage", WAITED)
        self._canaries = one("canary_runs", "Self-checks.")
        self._canary_failures = one("canary_failures", "Self-checks that went wrong.")
        self._errors = each("accelerator_errors", "Batches the device failed.", "kind", ERRORS)
        self._maps = each("attention_maps", "Heads shown, of every sequence.", "form", FORMS)
        self._map_bytes = each("attention_bytes", "Bytes of attention shown.", "form", FORMS)
        self._success = self._gauge("last_success_timestamp_seconds", "Last answer of the model.")
        self._gauge("start_time_seconds", "When the replica was made.").set_to_current_time()

    def render(self, *, exemplars: bool = False) -> bytes:
        """All series as Prometheus text, or as OpenMetrics, which knows exemplars.

        Four in five are of requests: a replica that has had none since does not make them anew.
        """
        page = openmetrics.generate_latest if exemplars else generate_latest
        if exemplars not in self._pages:
            self._pages[exemplars] = page(self._requested).removesuffix(b"# EOF\n")
        return self._pages[exemplars] + page(self._registry)

    def expect(self, routes: Mapping[str, str]) -> None:
        """Publish what may be asked of each route, by its method, before it is."""
        self._pages.clear()
        for route, method in routes.items():
            self._seconds.labels(route, self._replica)
            for kind in INPUTS if method == "POST" else INPUTS[:1]:
                for code in AWAITED:
                    self._requests.labels(route, kind, str(code), self._replica)

    def request(self, seen: Record) -> None:
        """Count one request that has ended, whichever way; the only place that does."""
        self._pages.clear()
        self._requests.labels(seen.route, seen.input, str(seen.code), self._replica).inc()
        exemplar = _exemplar(seen)
        self._seconds.labels(seen.route, self._replica).observe(seen.seconds, exemplar)
        self._response_bytes.inc(seen.bytes)
        for stage in seen.stages:
            self._stage_sums[stage.name].inc(stage.seconds)
            self._stages[stage.name].observe(stage.seconds)
        self._refused(seen)

    def lagged(self, seconds: float) -> None:
        """Record one lag of the event loop."""
        self._lag.observe(seconds)

    def encoded(self, tokens: int) -> None:
        """Count the tokens of an answered request."""
        self._tokens.inc(tokens)
        self._success.set_to_current_time()

    def shown(self, form: Form, maps: int, size: int) -> None:
        """Count the heads of an answer that shows attention, and its bytes."""
        self._maps[form].inc(maps)
        self._map_bytes[form].inc(size)

    def batch(self, sequences: int, tokens: int) -> None:
        """Count one batch, the service's own among them."""
        self._batch_sequences.observe(sequences)
        self._batch_tokens.observe(tokens)

    def cancelled(self, stage: Literal["queue", "forward"]) -> None:
        """Count a client that left, by where its request was."""
        self._cancelled[stage].inc()

    def accelerator_error(self, kind: Literal["oom", "other"]) -> None:
        """Count a batch that the accelerator failed, for want of memory or otherwise."""
        self._errors[kind].inc()

    def canary(self, right: bool) -> None:
        """Count a self-check."""
        self._canaries.inc()
        self._canary_failures.inc(not right)

    def describe(self, name: str, sentence: str, **facts: str) -> None:
        """Publish what does not change, as the labels of a 1."""
        self._gauge(name, sentence, **facts).set(1)

    def watch(self, name: str, sentence: str, read: Callable[[], float], **labels: str) -> None:
        """Publish a gauge that is read at every scrape."""
        self._gauge(name, sentence, **labels).set_function(read)

    def _refused(self, seen: Record) -> None:
        """Count why a request was not answered as asked."""
        code = seen.refused
        if code in self._invalid:
            self._invalid[code].inc()
        elif code == "nonfinite_output":
            self._nonfinite.inc()
        elif code == OVERLOADED or (code in LATE and seen.route != PROBE):
            self._shed[LATE.get(code) or seen.shed or SHED[0]].inc()
        if seen.code == UNAUTHORIZED:
            self._unauthorized.inc()

    def _counter(self, name: str, sentence: str) -> Counter:
        return self._make(Counter, name, sentence).labels(self._replica)

    def _counters(
        self, name: str, sentence: str, label: str, values: Iterable[str]
    ) -> dict[str, Counter]:
        family = self._make(Counter, name, sentence, label)
        return {value: family.labels(value, self._replica) for value in values}

    def _histogram(self, name: str, sentence: str, buckets: Sequence[float]) -> Histogram:
        return self._make(Histogram, name, sentence, buckets=buckets).labels(self._replica)

    def _gauge(self, name: str, sentence: str, **labels: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = self._make(Gauge, name, sentence, *labels)
        return self._gauges[name].labels(**labels, replica=self._replica)

    def _make(
        self, kind: type[Family], name: str, sentence: str, *labels: str, **more: Any
    ) -> Family:
        labelled = [*labels, "replica"]
        return kind(f"headlight_{name}", sentence, labelled, registry=self._registry, **more)


def _exemplar(seen: Record) -> dict[str, str] | None:
    """The trace to look into; one that is kept nowhere would lead to nothing."""
    return {"trace_id": seen.trace.trace_id} if seen.trace and seen.trace.sampled else None


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each sample of a page of metrics: its full name, its labels, its value.

    Raises:
        ValueError: it is no such page.
    """
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
