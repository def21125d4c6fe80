"""Every metric of one replica, each fed in one place.

    request     counts every answer, from what service/observe/record.py knows of the request
    the rest    what a request does not know: batches, self-checks, the machine

Each replica counts for itself and labels every series with its own name; nothing is summed across
replicas here, so that a dead replica takes only its own series with it. Nothing is observed more
often than once per request, stage or batch.

Requests and batches count in plain numbers, which become the library's families at a scrape: its
own counters and histograms cost the event loop five to ten calls per number.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from service.observe import families
from service.observe.record import STAGES, Record
from service.refusals import CALLER_CODES

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST

Labels = tuple[str, ...]  # the values of a series' labels


class CounterFamily(dict[Labels, float]):
    """A family of counters, by their labels; the event loop adds directly what it alone counts.

    Args:
        labels: their names.
    """

    def __init__(self, name: str, sentence: str, labels: Labels) -> None:
        super().__init__({} if labels else {(): 0.0})
        self._help, self._labels, self._lock = (name, sentence), labels, Lock()

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count, from any thread; a label outside its closed set is a bug."""
        with self._lock:
            self[labels] += by

    def to_metric(self, replica: str) -> Metric:
        """Return what a scrape is told."""
        name, sentence = self._help
        family = CounterMetricFamily(
            f"headlight_{name}", sentence, labels=(*self._labels, "replica")
        )
        for labels, value in self.items():
            family.add_metric((*labels, replica), value)
        return family


class Histogram:
    """One series of a histogram: how many values fell between its bounds, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0
        self.exemplars = dict[int, Exemplar]()

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative_counts(self) -> list[Any]:
        """Return the counts below each bound, with exemplars, as the library writes them."""
        ends = (*(str(float(bound)) for bound in self.bounds), "+Inf")
        below = enumerate(zip(ends, accumulate(self.counts), strict=True))
        return [(*each, self.exemplars.get(place)) for place, each in below]


class HistogramFamily(dict[Labels, Histogram]):
    """A family of histograms, by their labels.

    Args:
        labels: their names.
    """

    def __init__(self, name: str, sentence: str, labels: Labels, bounds: Sequence[float]) -> None:
        super().__init__({} if labels else {(): Histogram(bounds)})
        self._help, self._labels, self._bounds = (name, sentence), labels, bounds

    def __missing__(self, labels: Labels) -> Histogram:
        made = self[labels] = Histogram(self._bounds)
        return made

    def to_metric(self, replica: str) -> Metric:
        """Return what a scrape is told."""
        name, sentence = self._help
        family = HistogramMetricFamily(
            f"headlight_{name}", sentence, labels=(*self._labels, "replica")
        )
        for labels, spread in self.items():
            family.add_metric((*labels, replica), spread.cumulative_counts(), spread.sum)
        return family


class MetricFamilies(Collector):
    """The families of one registry, in the order of a page."""

    def __init__(self, replica: str) -> None:
        self._replica, self._made = replica, list[CounterFamily | HistogramFamily]()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add_counter(
        self, name: str, sentence: str, *labels: str, values: Iterable[str] = ()
    ) -> CounterFamily:
        """Return a new family of counters, at 0 for each of these values of its label."""
        made = CounterFamily(name, sentence, labels)
        made.update(((value,), 0.0) for value in values)
        self._made.append(made)
        return made

    def add_histogram(
        self, name: str, sentence: str, bounds: Sequence[float], *labels: str
    ) -> HistogramFamily:
        """Return a new family of histograms."""
        made = HistogramFamily(name, sentence, labels, bounds)
        self._made.append(made)
        return made

    def collect(self) -> Iterator[Metric]:
        """Yield what a scrape is told."""
        for made in self._made:
            yield made.to_metric(self._replica)


class Metrics:
    """The metrics of one replica.

    Args:
        keys: names of the API keys: where there are any, what they use is counted by key.
    """

    def __init__(self, replica: str, keys: Collection[str] = ()) -> None:
        self._replica, self._gauges = replica, dict[str, Gauge]()
        self._of_requests = of = MetricFamilies(replica)  # fed by `count_request` alone
        self._of_replica = own = MetricFamilies(replica)  # fed by the rest
        self._pages: dict[bool, bytes] = {}  # the first, rendered, until a request changes it
        # by key, and of what needs none; or not by key at all
        self._keys: dict[str, Labels] = {"": ()}
        if keys:
            self._keys = {key: (key,) for key in ("", *keys)}
        by_key = ("key",) if keys else ()
        self._expected = set[tuple[str, str, str]]()  # of which routes, inputs and keys

        self._requests = of.add_counter(
            "requests",
            "Requests answered; code 499: the client disconnected first.",
            "route",
            "input",
            "code",
            *by_key,
        )
        self._seconds = of.add_histogram(
            "request_duration_seconds",
            "Seconds from a request's arrival to the end of its answer.",
            families.BUCKETS,
            "route",
        )
        interactive = of.add_histogram(
            "interactive_duration_seconds",
            "Seconds to the end of a 200 of few tokens, without its wait for others of its key.",
            families.BUCKETS,
        )
        self._interactive = interactive[()]
        self._shed = of.add_counter(
            "shed", "Requests refused for lack of room or time.", "reason", *by_key
        )
        self._reasons = (*families.SHED_REASONS, *(families.KEY_SHED_REASONS if keys else ()))
        self._invalid = of.add_counter(
            "invalid_inputs", "Requests refused because of what they contain.", "code"
        )
        self._nonfinite = of.add_counter(
            "nonfinite_outputs", "Requests refused because the model's answer held NaN or infinity."
        )
        stages = of.add_histogram(
            "stage_duration_seconds",
            "Seconds that a request spends in a stage.",
            families.STAGE_BUCKETS,
            "stage",
        )
        self._stages = {stage: stages[stage,] for stage in STAGES}

        self._loop = own.add_counter(
            "event_loop_seconds", "Seconds that the event loop's thread has computed."
        )
        self._tokens = own.add_counter("tokens", "Tokens of answered requests.", *by_key)
        for key in self._keys:
            self._publish_key(key)
        self._batch_tokens = own.add_histogram(
            "batch_tokens", "Tokens in a batch, self-checks included.", families.TOKEN_BUCKETS
        )[()]
        self._lane_seconds = own.add_counter(
            "lane_seconds", "Seconds that lanes have spent on batches, each lane counted by itself."
        )
        self._cancelled = own.add_counter(
            "cancelled",
            "Requests whose client disconnected before the answer.",
            "stage",
            values=families.CANCELLED_STAGES,
        )
        self._canaries = own.add_counter("canary_runs", "Self-checks that were run.")
        self._canary_failures = own.add_counter(
            "canary_failures", "Self-checks that gave a wrong answer or failed."
        )
        self._cut_off = own.add_counter(
            "readers_cut_off", "Connections closed because the client read the answer too slowly."
        )
        self._errors = own.add_counter(
            "accelerator_errors",
            "Batches lost to a device error.",
            "kind",
            values=families.ACCELERATOR_ERRORS,
        )
        self.line_lost = own.add_counter(
            "log_lines_lost",
            "Log lines that could not be written, for example because the disk is full.",
        ).add
        self._make_gauge(
            "start_time_seconds", "Unix time at which the replica started, in seconds."
        ).set_to_current_time()
        self.set_replaces_failed(failed=False)

    def render(self, *, exemplars: bool = False) -> bytes:
        """Return all series as Prometheus text, or as OpenMetrics, which knows exemplars.

        Four in five are about requests: a replica that has had none since does not rebuild them.
        """
        page = openmetrics.generate_latest if exemplars else generate_latest
        if exemplars not in self._pages:
            self._pages[exemplars] = page(self._of_requests.registry).removesuffix(b"# EOF\n")
        return self._pages[exemplars] + page(self._of_replica.registry)

    def publish_routes(self, routes: Mapping[str, Iterable[str]]) -> None:
        """Publish each route by its possible inputs before it is asked, except pages.

        Its seconds come with its first request: 18 series a route, of which a p99 misses that one.
        """
        self._pages.clear()
        for route in routes.keys() - families.PAGE_PATHS:
            for kind in routes[route]:
                self._publish_route(route, kind, "")

    def set_keys(self, keys: Collection[str]) -> None:
        """Count by these keys from now on; the series of those that are gone end.

        Where there were no keys at the start, nothing is counted by key.
        """
        if len(self._keys) == 1:
            return
        gone = self._keys.keys() - {"", *keys}
        for counts in (self._requests, self._shed, self._tokens):
            for labels in [labels for labels in counts if labels[-1] in gone]:
                del counts[labels]
        self._expected = {each for each in self._expected if each[-1] not in gone}
        for name in gone:
            del self._keys[name]
        for name in keys:
            if name not in self._keys:
                self._keys[name] = (name,)
                self._publish_key(name)
        self._pages.clear()

    def count_request(self, record: Record) -> None:
        """Count one request, however it ended; the only place that does.

        Its values are counted as `Spread.observe` does, without a call for each of them.
        """
        self._pages.clear()
        key = record.key if record.key in self._keys else ""
        if key and (record.route, record.input, key) not in self._expected:
            # all of all keys would be too many
            self._publish_route(record.route, record.input, key)
        labels = record.route, record.input, str(record.code), *self._keys[key]
        self._requests[labels] = self._requests.get(labels, 0.0) + 1
        seconds = self._seconds[record.route,]
        seconds.counts[bisect_left(families.BUCKETS, record.seconds)] += 1
        seconds.sum += record.seconds
        if record.trace and record.trace.sampled:  # of one that is kept nowhere nothing is found
            place = bisect_left(families.BUCKETS, record.seconds)
            trace = {"trace_id": record.trace.trace_id}
            seconds.exemplars[place] = Exemplar(trace, record.seconds, time.time())
        if record.code == 200 and 0 < record.tokens <= families.INTERACTIVE_TOKENS:
            spread, taken = self._interactive, record.seconds - record.turn_seconds
            spread.counts[bisect_left(families.BUCKETS, taken)] += 1
            spread.sum += taken
        for name, start, end in record.stages:
            spread, taken = self._stages[name], end - start
            spread.counts[bisect_left(families.STAGE_BUCKETS, taken)] += 1
            spread.sum += taken
        if record.refused:
            self._count_refused(record, key)

    def set_loop_seconds(self, seconds: float) -> None:
        """Set the seconds that the event loop has computed so far."""
        self._loop[()] = seconds

    def count_tokens(self, tokens: int, key: str = "") -> None:
        """Count the tokens of an answered request."""
        self._tokens[self._keys.get(key, self._keys[""])] += tokens

    def count_batch(self, tokens: int, lane_seconds: float) -> None:
        """Count one batch, the service's own among them."""
        self._lane_seconds[()] += lane_seconds
        self._batch_tokens.observe(tokens)

    def count_cancelled(self, stage: Literal["queue", "forward"]) -> None:
        """Count a client that left, by where its request was."""
        self._cancelled.add(stage)

    def count_accelerator_error(self, kind: Literal["oom", "other"]) -> None:
        """Count a batch that failed on the accelerator, out of memory or otherwise."""
        self._errors.add(kind)

    def set_cut_off(self, readers: int) -> None:
        """Set the number of readers that were cut off so far."""
        self._cut_off[()] = readers

    def count_canary(self, right: bool) -> None:
        """Count a self-check."""
        self._canaries.add()
        self._canary_failures.add(by=not right)

    def set_replaces_failed(self, *, failed: bool) -> None:
        """Say whether the replica was started in place of one that died or failed its check."""
        self._make_gauge(
            "replaces_failed", "1 if Ray started the replica in place of one that died or failed."
        ).set(failed)

    def add_counter(self, name: str, sentence: str, *labels: str) -> CounterFamily:
        """Publish a counter, which its caller adds to; of labels each value as it comes."""
        return self._of_replica.add_counter(name, sentence, *labels)

    def publish_info(self, name: str, sentence: str, **facts: str) -> None:
        """Publish constant facts, as the labels of a 1."""
        self._make_gauge(name, sentence, **facts).set(1)

    def add_gauge(self, name: str, sentence: str, read: Callable[[], float], **labels: str) -> None:
        """Publish a gauge that is read at every scrape."""
        self._make_gauge(name, sentence, **labels).set_function(read)

    def _publish_route(self, route: str, kind: str, key: str) -> None:
        """Publish what an alert may ask about a route, an input and a key before it happens."""
        self._expected.add((route, kind, key))
        for code in families.PREINITIALIZED_STATUSES:
            self._requests.setdefault((route, kind, str(code), *self._keys[key]), 0.0)

    def _publish_key(self, key: str) -> None:
        """Publish a key's usage, and the reasons it may be refused for, at 0."""
        labels = self._keys[key]
        for reason in self._reasons:
            self._shed.setdefault((reason, *labels), 0.0)
        self._tokens.setdefault(labels, 0.0)

    def _count_refused(self, record: Record, key: str) -> None:
        """Count why a request was not answered as asked."""
        code = record.refused
        if code in CALLER_CODES:
            self._invalid[code,] = self._invalid.get((code,), 0.0) + 1
        elif code == "nonfinite_output":
            self._nonfinite.add()
        elif code == families.OVERLOADED or code in families.SHED_BY_CODE:
            self._count_shed(record, key)

    def _count_shed(self, record: Record, key: str) -> None:
        """Count a request for which there was no room or no time; a page is not work."""
        if record.route in families.PAGE_PATHS:
            return
        reason = record.shed or families.SHED_BY_CODE.get(
            record.refused or "", families.SHED_REASONS[0]
        )
        if reason == "deadline" and record.given_seconds < families.OBJECTIVE_SECONDS:
            reason = families.CLIENT_DEADLINE
        labels = (reason, *self._keys[key])
        self._shed[labels] = self._shed.get(labels, 0.0) + 1

    def _make_gauge(self, name: str, sentence: str, **labels: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(
                *(f"headlight_{name}", sentence, (*labels, "replica")),
                registry=self._of_replica.registry,
            )
        return self._gauges[name].labels(**labels, replica=self._replica)
