"""Every metric of one replica, each fed in one place.

    families    what there is (families.py); what an alert asks for is there from the start, at 0
    request     counts whatever is answered, from what service/observe/record.py knows of it
    the rest    what a request does not know: batches, self-checks, the machine

Each replica counts for itself and labels every series with its own name; nothing is summed
across replicas here, so that a dead replica takes only its own series with it. Nothing is
observed more often than once a request, a stage or a batch.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

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

from model.maps.choices import Form
from service.observe import families
from service.observe.record import STAGES, Record
from service.refusals import CALLERS, UNAUTHORIZED

Family = TypeVar("Family", Counter, Gauge, Histogram)

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one replica; what has a closed label is a dict by its values.

    Args:
        keys: names of the API keys: where there are any, what they use is counted by key.
    """

    def __init__(self, replica: str, keys: Collection[str] = ()) -> None:
        # no second series for each one, which no query here needs
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._replica, self._gauges = replica, dict[str, Gauge]()
        self._of_requests = requests = _Families(replica)  # fed by `request` alone
        self._of_replica = own = _Families(replica)  # fed by the rest
        self._pages: dict[bool, bytes] = {}  # the first, rendered, until a request changes it
        # by key, and of what needs none; or not by key at all
        self._keys: dict[str, tuple[str, ...]] = {"": ()}
        if keys:
            self._keys = {key: (key,) for key in ("", *keys)}
        by_key = ("key",) if keys else ()

        self._expected = set[tuple[str, str, str]]()  # of which routes, inputs and keys
        self._requests = requests.make(Counter, "requests", "route", "input", "code", *by_key)
        self._seconds = requests.make(
            Histogram, "request_duration_seconds", "route", buckets=families.BUCKETS
        )
        self._interactive = requests.histogram("interactive_duration_seconds", families.AROUND)
        self._response_bytes = requests.counter("response_bytes")
        self._shed = requests.make(Counter, "shed", "reason", *by_key)
        self._reasons = (*families.SHED, *(families.SHED_BY_KEY if keys else ()))
        self._invalid = requests.make(Counter, "invalid_inputs", "code")
        self._nonfinite = requests.counter("nonfinite_outputs")
        self._unauthorized = requests.counter("auth_failures")
        stages = requests.make(
            Histogram, "stage_duration_seconds", "stage", buckets=families.STAGE_BUCKETS
        )
        self._stages = {stage: stages.labels(stage, replica) for stage in STAGES}

        self._lag = own.histogram("event_loop_lag_seconds", families.LAGS)
        self._loop, self._looped = own.counter("event_loop_seconds"), 0.0
        used = families.BY_KEY if keys else families.BY_KEY[:1]  # the other is lane_seconds then
        self._used = {name: own.make(Counter, name, *by_key) for name in used}
        self._of_keys = dict[str, dict[str, Counter]]()  # what each has used
        for key in self._keys:
            self._publish(key)
        self._batch_sequences = own.histogram("batch_sequences", families.SEQUENCES)
        self._batch_tokens = own.histogram("batch_tokens", families.TOKENS)
        self._lane_seconds = own.counter("lane_seconds")
        self._cancelled = own.counters("cancelled", "stage", families.WAITED)
        self._canaries = own.counter("canary_runs")
        self._canary_failures = own.counter("canary_failures")
        self._cut_off, self._readers = own.counter("readers_cut_off"), 0
        self._errors = own.counters("accelerator_errors", "kind", families.ERRORS)
        self._maps = own.counters("attention_maps", "form", families.FORMS)
        self._map_bytes = own.counters("attention_bytes", "form", families.FORMS)
        self.line_lost = own.counter("log_lines_lost").inc
        self._success = self._gauge("last_success_timestamp_seconds")
        self._gauge("start_time_seconds").set_to_current_time()

    def render(self, *, exemplars: bool = False) -> bytes:
        """All series as Prometheus text, or as OpenMetrics, which knows exemplars.

        Four in five are of requests: a replica that has had none since does not make them anew.
        """
        page = openmetrics.generate_latest if exemplars else generate_latest
        if exemplars not in self._pages:
            self._pages[exemplars] = page(self._of_requests.registry).removesuffix(b"# EOF\n")
        return self._pages[exemplars] + page(self._of_replica.registry)

    def expect(self, routes: Mapping[str, Iterable[str]]) -> None:
        """Publish what may be asked of each route, by its inputs, before it is; of pages, none."""
        self._pages.clear()
        for route in routes.keys() - families.PAGES:
            self._seconds.labels(route, self._replica)
            for kind in routes[route]:
                self._expect(route, kind, "")

    def follow(self, keys: Collection[str]) -> None:
        """Count by these keys too; what a key has used stays when it is gone.

        Where there were no keys at the start, nothing is counted by key.
        """
        for name in keys if len(self._keys) > 1 else ():
            if name not in self._keys:
                self._keys[name] = (name,)
                self._publish(name)
        self._pages.clear()

    def request(self, record: Record) -> None:
        """Count one request that has ended, whichever way; the only place that does."""
        self._pages.clear()
        key = self._known(record.key)
        if key and (record.route, record.input, key) not in self._expected:
            self._expect(record.route, record.input, key)  # all of all keys would be too many
        labels = record.route, record.input, str(record.code), *self._keys[key]
        self._requests.labels(*labels, self._replica).inc()
        exemplar = _exemplar(record)
        self._seconds.labels(record.route, self._replica).observe(record.seconds, exemplar)
        if record.code == 200 and 0 < record.tokens <= families.INTERACTIVE_TOKENS:
            self._interactive.observe(record.seconds - record.turn_seconds)
        self._response_bytes.inc(record.bytes)
        for stage in record.stages:
            self._stages[stage.name].observe(stage.seconds)
        self._refused(record)

    def lagged(self, seconds: float) -> None:
        """Record one lag of the event loop."""
        self._lag.observe(seconds)

    def looped(self, seconds: float) -> None:
        """Count what the event loop has computed, so many seconds so far."""
        self._loop.inc(seconds - self._looped)
        self._looped = seconds

    def encoded(self, tokens: int, key: str = "") -> None:
        """Count the tokens of an answered request."""
        self._of_keys[self._known(key)]["tokens"].inc(tokens)
        self._success.set_to_current_time()

    def computed(self, lane_seconds: float, key: str) -> None:
        """Count what a key's requests had of a batch; of no key, what nobody asked for too."""
        used = self._of_keys[self._known(key)]
        if "compute_seconds" in used:
            used["compute_seconds"].inc(lane_seconds)

    def shown(self, form: Form, maps: int, size: int) -> None:
        """Count the heads of an answer that shows attention, and its bytes."""
        self._maps[form].inc(maps)
        self._map_bytes[form].inc(size)

    def batch(self, sequences: int, tokens: int, lane_seconds: float) -> None:
        """Count one batch, the service's own among them."""
        self._lane_seconds.inc(lane_seconds)
        self._batch_sequences.observe(sequences)
        self._batch_tokens.observe(tokens)

    def cancelled(self, stage: Literal["queue", "forward"]) -> None:
        """Count a client that left, by where its request was."""
        self._cancelled[stage].inc()

    def accelerator_error(self, kind: Literal["oom", "other"]) -> None:
        """Count a batch that the accelerator failed, for want of memory or otherwise."""
        self._errors[kind].inc()

    def cut_off(self, readers: int) -> None:
        """Count the readers that were cut off, so many so far."""
        self._cut_off.inc(readers - self._readers)
        self._readers = readers

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

    def _expect(self, route: str, kind: str, key: str) -> None:
        """Publish what an alert may ask for of a route, an input and a key, before it happens."""
        self._expected.add((route, kind, key))
        for code in families.AWAITED:
            self._requests.labels(route, kind, str(code), *self._keys[key], self._replica)

    def _publish(self, key: str) -> None:
        """Publish what a key has used, and what it may be refused for, at 0."""
        labels = (*self._keys[key], self._replica)
        for reason in self._reasons:
            self._shed.labels(reason, *labels)
        self._of_keys[key] = {name: used.labels(*labels) for name, used in self._used.items()}

    def _known(self, key: str) -> str:
        """A key's name as it is counted."""
        return key if key in self._keys else ""

    def _refused(self, record: Record) -> None:
        """Count why a request was not answered as asked."""
        code = record.refused
        if code in CALLERS:
            self._invalid.labels(code, self._replica).inc()
        elif code == "nonfinite_output":
            self._nonfinite.inc()
        elif code == families.OVERLOADED or code in families.LATE:
            self._turned_away(record)
        if record.code == UNAUTHORIZED:
            self._unauthorized.inc()

    def _turned_away(self, record: Record) -> None:
        """Count a request for which there was no room or no time; a page is no work."""
        if record.route in families.PAGES:
            return
        reason = record.shed or families.LATE.get(record.refused or "", families.SHED[0])
        if reason == "deadline" and record.given_seconds < families.OBJECTIVE_SECONDS:
            reason = families.CLIENT_DEADLINE
        self._shed.labels(reason, *self._keys[self._known(record.key)], self._replica).inc()

    def _gauge(self, name: str, sentence: str | None = None, **labels: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = self._of_replica.make(Gauge, name, *labels, sentence=sentence)
        return self._gauges[name].labels(**labels, replica=self._replica)


class _Families:
    """The families of one registry; every series carries the replica's name."""

    def __init__(self, replica: str) -> None:
        self.registry, self._replica = CollectorRegistry(), replica

    def counter(self, name: str) -> Counter:
        return self.make(Counter, name).labels(self._replica)

    def counters(self, name: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
        family = self.make(Counter, name, label)
        return {value: family.labels(value, self._replica) for value in values}

    def histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        return self.make(Histogram, name, buckets=buckets).labels(self._replica)

    def make(
        self,
        kind: type[Family],
        name: str,
        *labels: str,
        sentence: str | None = None,
        **more: Any,
    ) -> Family:
        text, labelled = sentence or families.SENTENCES[name], [*labels, "replica"]
        return kind(f"headlight_{name}", text, labelled, registry=self.registry, **more)


def _exemplar(record: Record) -> dict[str, str] | None:
    """The trace to look into; one that is kept nowhere would lead to nothing."""
    return {"trace_id": record.trace.trace_id} if record.trace and record.trace.sampled else None


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each sample of a page of metrics: its full name, its labels, its value.

    Raises:
        ValueError: it is no such page.
    """
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
