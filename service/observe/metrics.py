"""The metrics of one replica, each of them counted in one place.

    count_request   counts every answer, from its record (service/shapes/record.py)
    the others      count what no record knows: batches, self-checks, the machine

Each replica counts for itself and labels every series with its own name and its model's; nothing is
summed across replicas here, so that a dead replica takes only its own series with it. Nothing is
observed more often than once per request, stage or batch.

Requests and batches are counted in plain numbers, which become the library's families at a scrape:
the library's own counters and histograms cost the event loop five to ten calls per number.
"""

import copy
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from service.observe import families
from service.shapes.record import STAGES, Record
from service.tables.refusals import CALLER_CODES, OVERLOADED

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # media type of Prometheus text
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST  # media type of OpenMetrics

Labels = tuple[str, ...]  # values of a series' labels, or their names


class Histogram:
    """One series of a histogram.

    Args:
        bounds: upper bounds of its buckets, ascending.

    Attributes:
        counts: how many values fell into each bucket, the last one unbounded.
        exemplars: by number of the bucket.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0
        self.exemplars = dict[int, Exemplar]()

    def observe(self, value: float, trace_id: str = "") -> None:
        """Count one value; that of a trace stands as an example in its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if trace_id:
            self.exemplars[bucket] = Exemplar({"trace_id": trace_id}, value, time.time())

    def __copy__(self) -> "Histogram":
        frozen = Histogram(self.bounds)
        frozen.counts[:], frozen.sum = self.counts, self.sum
        frozen.exemplars.update(self.exemplars)
        return frozen

    def numbers(self) -> tuple[list[Any], float]:
        """Return (bound, number of values up to it, exemplar) per bucket, and the values' sum."""
        bounds = (*(str(float(bound)) for bound in self.bounds), "+Inf")
        buckets = enumerate(zip(bounds, accumulate(self.counts), strict=True))
        return [(*bucket, self.exemplars.get(number)) for number, bucket in buckets], self.sum


Series = TypeVar("Series")  # of a family: a counter, which is a float, or a Histogram


class LabelledSeries(dict[Labels, Series]):
    """A family of series, each a counter or a histogram, by the values of their labels.

    Args:
        name: of the metric, without `headlight_`.
        sentence: help text of the metric.
        labels: names of the labels; without any there is one series from the start.
        new: returns an empty series, for label values that are new.
    """

    def __init__(self, name: str, sentence: str, labels: Labels, new: Callable[[], Series]) -> None:
        super().__init__({} if labels else {(): new()})
        self._help, self._labels, self._new, self._lock = (name, sentence), labels, new, Lock()

    def __missing__(self, labels: Labels) -> Series:
        """Add and return an empty series for label values that are new."""
        self[labels] = series = self._new()
        return series

    def add(self: "LabelledSeries[float]", *labels: str, by: float = 1.0) -> None:
        """Add to the counter with these label values, which must exist; safe in any thread."""
        if labels not in self:
            raise KeyError(labels)
        with self._lock:
            self[labels] += by

    def freeze(self) -> "LabelledSeries[Series]":
        """Return a copy, which another thread may read while this one is counted on."""
        frozen = LabelledSeries(*self._help, self._labels, self._new)
        frozen.update((labels, copy.copy(series)) for labels, series in self.items())
        return frozen

    def to_metric(self, own: Mapping[str, str]) -> Metric:
        """Return the family as the library's, with the replica's own labels."""
        (name, sentence), labels = self._help, (*self._labels, *own)
        kind = CounterMetricFamily if self._new is float else HistogramMetricFamily
        family = kind(f"headlight_{name}", sentence, labels=labels)
        for values, series in self.items():
            numbers: Any = series.numbers() if isinstance(series, Histogram) else (series,)
            family.add_metric((*values, *own.values()), *numbers)
        return family


class MetricFamilies(Collector):
    """Collects the families of one registry, in the order of a page.

    Args:
        own: labels of every series.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own, self._families = own, list[LabelledSeries[float] | LabelledSeries[Histogram]]()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add_counter(
        self, name: str, sentence: str, *labels: str, values: Iterable[str] = ()
    ) -> LabelledSeries[float]:
        """Add and return a family of counters, with a 0 for each of `values` of its one label."""
        family = LabelledSeries(name, sentence, labels, float)
        family.update(((value,), 0.0) for value in values)
        self._families.append(family)
        return family

    def add_histogram(
        self, name: str, sentence: str, bounds: Sequence[float], *labels: str
    ) -> LabelledSeries[Histogram]:
        """Add and return a family of histograms."""
        family = LabelledSeries(name, sentence, labels, partial(Histogram, bounds))
        self._families.append(family)
        return family

    def freeze(self) -> "MetricFamilies":
        """Return a copy, which another thread may read while this one is counted on."""
        frozen = MetricFamilies(self._own)
        frozen._families += [family.freeze() for family in self._families]
        return frozen

    def collect(self) -> Iterator[Metric]:
        """Yield each family as the library's, for a scrape."""
        for family in self._families:
            yield family.to_metric(self._own)


class Metrics:
    """The metrics of one replica.

    Args:
        replica, model: their names, as labels of every series.
        keys: names of the API keys; if there are any, requests and tokens are counted by key.
        objective: which requests are short, and when a client gives less time than is promised.

    Attributes:
        loop_seconds, readers_cut_off, cancelled, device_errors: counters for others to set.
    """

    def __init__(
        self,
        replica: str,
        model: str,
        keys: Collection[str] = (),
        objective: families.Objective = families.OBJECTIVE,
    ) -> None:
        self._objective = objective
        self._own, self._gauges = {"model": model, "replica": replica}, dict[str, Gauge]()
        self._of_requests = requests = MetricFamilies(self._own)  # fed by `count_request` alone
        self._of_replica = other = MetricFamilies(self._own)  # fed by the others
        # the rendered page of `_of_requests`, by whether it has exemplars; a new dict once it
        # changes, since a thread may be about to write into the old one
        self._pages = dict[bool, bytes]()
        # label values by name of a key, "" for requests without; empty if nothing counts by key
        self._keys: dict[str, Labels] = {"": ()}
        if keys:
            self._keys = {key: (key,) for key in ("", *keys)}
        by_key = ("key",) if keys else ()
        self._expected = set[tuple[str, str, str]]()  # routes, inputs and keys published

        text = "Requests answered; code 499: the client disconnected first."
        self._requests = requests.add_counter("requests", text, "route", "input", "code", *by_key)
        name, buckets = "request_duration_seconds", families.BUCKETS
        text = "Seconds from a request's arrival to the end of its answer."
        self._seconds = requests.add_histogram(name, text, buckets, "route")
        text = "Seconds to the end of a 200 of few tokens, without its wait for others of its key."
        name = "interactive_duration_seconds"
        self._interactive = requests.add_histogram(name, text, buckets)[()]
        text = "Requests refused for lack of room or time."
        self._shed = requests.add_counter("shed", text, "reason", *by_key)
        self._reasons = (*families.SHED_REASONS, *(families.KEY_SHED_REASONS if keys else ()))
        text = "Requests refused because of what they contain."
        self._invalid = requests.add_counter("invalid_inputs", text, "code")
        text = "Requests refused because the model's answer held NaN or infinity."
        self._nonfinite = requests.add_counter("nonfinite_outputs", text)
        name, text = "stage_duration_seconds", "Seconds that a request spends in a stage."
        stages = requests.add_histogram(name, text, families.STAGE_BUCKETS, "stage")
        self._stages = {stage: stages[stage,] for stage in STAGES}
        self._tokens = requests.add_counter("tokens", "Tokens of answered requests.", *by_key)
        self._publish_key("")

        text = "Seconds that the event loop's thread has computed."
        self.loop_seconds = other.add_counter("event_loop_seconds", text)
        text = "Tokens in a batch, self-checks included."
        self._batch_tokens = other.add_histogram("batch_tokens", text, families.TOKEN_BUCKETS)[()]
        text = "Seconds that lanes have spent on batches, each lane counted by itself."
        self._lane_seconds = other.add_counter("lane_seconds", text)
        text = "Requests whose client disconnected before the answer."
        values = families.CANCELLED_STAGES
        self.cancelled = other.add_counter("cancelled", text, "stage", values=values)
        self._canaries = other.add_counter("canary_runs", "Self-checks that were run.")
        text = "Self-checks that gave a wrong answer or failed."
        self._canary_failures = other.add_counter("canary_failures", text)
        text = "Connections closed because the client read the answer too slowly."
        self.readers_cut_off = other.add_counter("readers_cut_off", text)
        text, values = "Batches lost to a device error.", families.ACCELERATOR_ERRORS
        self.device_errors = other.add_counter("accelerator_errors", text, "kind", values=values)
        text = "Log lines that could not be written, for example because the disk is full."
        self.line_lost = other.add_counter("log_lines_lost", text).add
        self._make_gauge(
            "start_time_seconds", "Unix time at which the replica started, in seconds."
        ).set_to_current_time()
        self.set_replaces_failed(failed=False)

    def freeze(self, *, exemplars: bool = False) -> Callable[[], bytes]:
        """Return what writes all series as they are now, in any thread.

        It writes Prometheus text or, with exemplars, OpenMetrics. Four in five series are about
        requests; they are written again only after a request.
        """
        render = openmetrics.generate_latest if exemplars else generate_latest
        others, pages = render(self._of_replica.registry), self._pages
        frozen = None if exemplars in pages else self._of_requests.freeze()

        def write() -> bytes:
            """Return the page, and keep the part about requests."""
            if frozen is not None:
                pages[exemplars] = render(frozen.registry).removesuffix(b"# EOF\n")
            return pages[exemplars] + others

        return write

    def publish_routes(self, routes: Mapping[str, Iterable[str]]) -> None:
        """Publish the counters of each route and input at 0, except those of pages.

        A route's histogram comes with its first request, since it has 18 series.

        Args:
            routes: kinds of input that each route may get.
        """
        self._pages = {}
        for route in routes.keys() - families.PAGE_PATHS:
            for kind in routes[route]:
                self._publish_route(route, kind, "")

    def set_keys(self, keys: Collection[str]) -> None:
        """Count by these API keys from now on, and remove the series of all others.

        If there were no keys at the start, nothing is counted by key.
        """
        if len(self._keys) == 1:
            return
        removed = self._keys.keys() - {"", *keys}
        for counts in (self._requests, self._shed, self._tokens):
            for labels in [labels for labels in counts if labels[-1] in removed]:
                del counts[labels]
        self._expected = {each for each in self._expected if each[-1] not in removed}
        for name in removed:
            del self._keys[name]
        for name in keys:
            if name not in self._keys:
                self._keys[name] = (name,)
        self._pages = {}

    def count_request(self, record: Record) -> None:
        """Count a request that has ended, answered or not."""
        self._pages = {}
        key = record.key if record.key in self._keys else ""
        if key and (record.route, record.input, key) not in self._expected:
            # published only now: of all routes and keys there would be too many
            self._publish_route(record.route, record.input, key)
        labels = record.route, record.input, str(record.code), *self._keys[key]
        self._requests[labels] += 1
        # only sampled traces can be looked up
        trace_id = record.trace.trace_id if record.trace and record.trace.sampled else ""
        self._seconds[record.route,].observe(record.seconds, trace_id)
        if record.code == 200 and 0 < record.tokens <= self._objective.tokens:
            self._interactive.observe(record.seconds - record.turn_seconds)
        for name, start, end in record.stages:
            self._stages[name].observe(end - start)
        if record.refused:
            self._count_refused(record, key)

    def count_tokens(self, tokens: int, key: str = "") -> None:
        """Count the tokens of an answered request."""
        self._pages = {}
        key = key if key in self._keys else ""
        self._publish_key(key)
        self._tokens[self._keys[key]] += tokens

    def count_batch(self, tokens: int, lane_seconds: float) -> None:
        """Count one batch of clients' or the service's own works.

        Args:
            lane_seconds: its duration times the lanes that it occupied.
        """
        self._lane_seconds[()] += lane_seconds
        self._batch_tokens.observe(tokens)

    def count_canary(self, right: bool) -> None:
        """Count a self-check, and whether its answer was right."""
        self._canaries.add()
        self._canary_failures.add(by=not right)

    def set_replaces_failed(self, *, failed: bool) -> None:
        """Set whether the replica was started in place of one that died or failed its check."""
        self._make_gauge(
            "replaces_failed", "1 if Ray started the replica in place of one that died or failed."
        ).set(failed)

    def add_counter(self, name: str, sentence: str, *labels: str) -> LabelledSeries[float]:
        """Return a new counter for the caller to increment; label values come as they occur."""
        return self._of_replica.add_counter(name, sentence, *labels)

    def publish_info(self, name: str, sentence: str, **facts: str) -> None:
        """Publish constant facts as the labels of a gauge that is always 1."""
        self._make_gauge(name, sentence, **facts).set(1)

    def add_gauge(self, name: str, sentence: str, read: Callable[[], float], **labels: str) -> None:
        """Publish a gauge whose value `read` returns at every scrape."""
        self._make_gauge(name, sentence, **labels).set_function(read)

    def _publish_route(self, route: str, kind: str, key: str) -> None:
        """Publish, at 0, the counters of a route, an input and a key that alerts read."""
        self._expected.add((route, kind, key))
        self._publish_key(key)
        for code in families.PREINITIALIZED_STATUSES:
            self._requests.setdefault((route, kind, str(code), *self._keys[key]), 0.0)

    def _publish_key(self, key: str) -> None:
        """Publish, at 0, a key's tokens and each reason for which it may be refused.

        That is when it first asks: of thousands of keys most never do.
        """
        labels = self._keys[key]
        if (self._reasons[0], *labels) in self._shed:
            return
        for reason in self._reasons:
            self._shed.setdefault((reason, *labels), 0.0)
        self._tokens.setdefault(labels, 0.0)

    def _count_refused(self, record: Record, key: str) -> None:
        """Count a refused request by the reason of its refusal; a page's not for lack of room."""
        code = record.refused or ""
        if code in CALLER_CODES:
            self._invalid[code,] += 1
        elif code == "nonfinite_output":
            self._nonfinite.add()
        elif record.route not in families.PAGE_PATHS and (
            code == OVERLOADED or code in families.SHED_BY_CODE
        ):
            reason = record.shed or families.SHED_BY_CODE.get(code, families.SHED_REASONS[0])
            if reason == "deadline" and record.given_seconds < self._objective.seconds:
                reason = families.CLIENT_DEADLINE
            self._shed[reason, *self._keys[key]] += 1

    def _make_gauge(self, name: str, sentence: str, **labels: str) -> Gauge:
        """Return the gauge of this name with these labels, published if it is new."""
        labels |= self._own
        if name not in self._gauges:
            self._gauges[name] = Gauge(
                f"headlight_{name}", sentence, labels, registry=self._of_replica.registry
            )
        return self._gauges[name].labels(**labels)
