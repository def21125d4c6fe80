"""Exports requests, their stages and batches as OpenTelemetry spans; imported if tracing is on.

    POST /v1/encode             SERVER, in the caller's trace (W3C traceparent) or in a new one
      parse tokenize queue forward serialize
    headlight.batch             a trace of its own, linked to every request in it, and they to it

A span has durations and sizes, never contents: no input, no path, no header of the client except
its trace. A request that is not sampled has the ids of a span, and no span.

Which are sampled, the caller says by the flag of its trace; of requests without one a share is. The
variables OTEL_TRACES_SAMPLER and _ARG choose otherwise, OTEL_SERVICE_NAME and
OTEL_RESOURCE_ATTRIBUTES name the service.

Source: W3C Trace Context; OpenTelemetry semantic conventions for HTTP servers.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import VERSION
from service.shapes.record import TRACEPARENT, Record, TraceContext
from service.tables.refusals import SERVICE_CODES

FILE_SCHEME = "file:"  # of a destination that is a file
PACKAGE = "opentelemetry-exporter-otlp-proto-http"  # of the exporter to a collector
BY_DEFAULT = "parentbased_traceidratio"  # a value of OTEL_TRACES_SAMPLER


class CannotTrace(Exception):
    """The exporter for a destination is not installed, or a variable is wrong."""


class Tracing:
    """Makes and exports the spans of one replica.

    Args:
        to: console (stderr), file:PATH, or the URL of an OTLP collector's traces.
        ratio: share of requests to sample of those that come without a trace.

    Raises:
        CannotTrace: what `to` needs is not installed, or OpenTelemetry's variables are wrong.
        OSError: the file cannot be written.
    """

    def __init__(self, to: str, ratio: float, replica: str) -> None:
        self._open = ExitStack()
        self._processor = BatchSpanProcessor(_make_exporter(to, self._open))
        own = {
            "service.name": "headlight",
            "service.version": VERSION,
            "service.instance.id": replica,
        }
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        # of requests; and of what belongs to those that are sampled
        self._requests = self._make_tracer(choose_sampler(ratio), resource)
        self._parts = self._make_tracer(ALWAYS_ON, resource)
        self._headers = TraceContextTextMapPropagator()

    def _make_tracer(self, sampler: Sampler, resource: Resource) -> trace.Tracer:
        """Return a tracer that exports what a sampler keeps."""
        # not the process's own provider, which belongs to Ray
        provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider.get_tracer("headlight")

    def begin(self, record: Record, traceparents: Sequence[str]) -> TraceContext:
        """Start a request's span in the caller's trace, or in a new one without a valid header.

        Args:
            traceparents: values of the request's traceparent headers.
        """
        context = Context()
        if len(traceparents) == 1:
            # without tracestate, which is the caller's text and only matters to services called
            context = self._headers.extract({TRACEPARENT: traceparents[0]}, context)
        start = _epoch_offset() + _nanoseconds(record.start)
        span = self._requests.start_span(record.method, context, SpanKind.SERVER, start_time=start)
        ids = span.get_span_context()
        trace_id, span_id = trace.format_trace_id(ids.trace_id), trace.format_span_id(ids.span_id)
        sampled = ids.trace_flags.sampled
        traceparent = f"00-{trace_id}-{span_id}-{ids.trace_flags:02x}"
        return TraceContext(trace_id, sampled, traceparent, span if sampled else None)

    def end(self, record: Record) -> None:
        """End a request's span, with a child for each of its stages."""
        if record.trace is None or record.trace.span is None:
            return
        span, offset = record.trace.span, _epoch_offset()
        parent = trace.set_span_in_context(span, Context())
        for name, start, end in record.stages:
            links = [Link(batch) for batch in record.trace.batches if name == "forward"]
            began = offset + _nanoseconds(start)
            child = self._parts.start_span(name, parent, links=links, start_time=began)
            child.end(offset + _nanoseconds(end))
        if record.route != "other":  # the route was not known when the span was started
            span.update_name(f"{record.method} {record.route}")
        span.set_attributes(_span_attributes(record))
        if record.refused in SERVICE_CODES:
            span.set_status(StatusCode.ERROR)
        span.end(offset + _nanoseconds(record.start + record.seconds))

    def export_batch(
        self, members: Sequence[Record], sequences: int, tokens: int, start: float
    ) -> None:
        """Export a span of a batch that ended now, linked with its sampled requests.

        Args:
            members: records of the requests in the batch.
            sequences, tokens: how many the batch had.
            start: when it was started, on time.monotonic's clock.
        """
        traces = [record.trace for record in members if record.trace and record.trace.sampled]
        if not traces:
            return
        links = [Link(context.span.get_span_context()) for context in traces]
        span = self._parts.start_span(
            "headlight.batch",
            Context(),
            links=links,
            attributes={"headlight.sequences": sequences, "headlight.tokens": tokens},
            start_time=_epoch_offset() + _nanoseconds(start),
        )
        span.end()
        for context in traces:
            context.batches.append(span.get_span_context())

    def flush(self) -> None:
        """Export all waiting spans; block until that is done."""
        self._processor.force_flush()

    def close(self) -> None:
        """Export all waiting spans, block until that is done, and stop."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # the SDK's gap
        self._open.close()


def choose_sampler(ratio: float) -> Sampler:
    """Return what decides which requests are sampled: OTEL_TRACES_SAMPLER, or our default.

    Args:
        ratio: share to sample, unless OTEL_TRACES_SAMPLER_ARG says another.

    Raises:
        CannotTrace: a variable has a value that is none of its own.
    """
    name = os.environ.get(OTEL_TRACES_SAMPLER) or BY_DEFAULT
    said = os.environ.get(OTEL_TRACES_SAMPLER) and os.environ.get(OTEL_TRACES_SAMPLER_ARG)
    fixed = {
        "always_on": ALWAYS_ON,
        "always_off": ALWAYS_OFF,
        "parentbased_always_on": DEFAULT_ON,
        "parentbased_always_off": DEFAULT_OFF,
    }
    by_ratio: dict[str, Callable[[float], Sampler]]
    by_ratio = {"traceidratio": TraceIdRatioBased, BY_DEFAULT: ParentBasedTraceIdRatio}
    if name in fixed:
        return fixed[name]
    if name not in by_ratio:
        raise CannotTrace(f"{OTEL_TRACES_SAMPLER}: expected {', '.join((*fixed, *by_ratio))}")
    try:
        return by_ratio[name](float(said or ratio))
    except ValueError:
        raise CannotTrace(f"{OTEL_TRACES_SAMPLER_ARG}: expected a number from 0 to 1") from None


def check_tracing(to: str, ratio: float) -> None:
    """Check that spans can be sampled so, and exported to a destination; see Tracing.

    Raises:
        CannotTrace, OSError: see Tracing.
    """
    choose_sampler(ratio)
    with ExitStack() as stack:
        _make_exporter(to, stack).shutdown()


def _make_exporter(to: str, stack: ExitStack) -> SpanExporter:
    """Return an exporter to a destination; `stack` closes its file."""
    if to == "console":  # descriptor 2: sys.stderr may be an object of Ray's
        return _make_line_exporter(stack.enter_context(open(2, "a", buffering=1, closefd=False)))
    if to.startswith(FILE_SCHEME):
        return _make_line_exporter(
            stack.enter_context(open(to.removeprefix(FILE_SCHEME), "a", buffering=1))
        )
    with suppress(ImportError):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(to)
    raise CannotTrace(f"tracing to {to} needs {PACKAGE} (the package's extra otlp)")


def _make_line_exporter(file: IO[str]) -> SpanExporter:
    """Return an exporter that writes one JSON object per line."""
    return ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(indent=None)}\n")


def _span_attributes(record: Record) -> dict[str, Any]:
    """Return the attributes of a request's span."""
    refused = {"error.type": record.refused} if record.refused else {}
    key = {"headlight.key": record.key} if record.key else {}
    return {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.code,
        "headlight.request_id": record.request_id,
        "headlight.input": record.input,
        "headlight.sequences": record.sequences,
        "headlight.tokens": record.tokens,
        **key,
        **refused,
    }


def _nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds."""
    return int(seconds * 1e9)


def _epoch_offset() -> int:
    """Return the offset from time.monotonic's clock to calendar time, in nanoseconds."""
    return time.time_ns() - time.monotonic_ns()
