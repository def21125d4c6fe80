"""Exports requests, their stages and batches as OpenTelemetry spans; imported if tracing is on.

    POST /v1/encode             SERVER, in the caller's trace (W3C traceparent) or in a new one
      parse tokenize queue forward serialize
    headlight.batch             a trace of its own, linked to every request in it, and they to it

A span has durations and sizes, never contents: no input, no path, no header of the client except
its trace. A request that is not sampled has the ids of a span, and no span.

Source: W3C Trace Context; OpenTelemetry semantic conventions for HTTP servers.
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import VERSION
from service.observe.record import TRACEPARENT, Record, TraceContext
from service.refusals import SERVICE_CODES

FILE_SCHEME = "file:"  # of a destination that is a file
PACKAGE = "opentelemetry-exporter-otlp-proto-http"  # of the exporter to a collector


class CannotTrace(Exception):
    """The exporter for a destination is not installed."""


class Tracing:
    """Makes and exports the spans of one replica.

    Args:
        to: console (stderr), file:PATH, or the URL of an OTLP collector's traces.
        ratio: share of requests to sample.

    Raises:
        CannotTrace: what `to` needs is not installed.
        OSError: the file cannot be written.
    """

    def __init__(self, to: str, ratio: float, replica: str) -> None:
        self._open = ExitStack()
        self._processor = BatchSpanProcessor(_make_exporter(to, self._open))
        resource = Resource.create(
            {
                "service.name": "headlight",
                "service.version": VERSION,
                "service.instance.id": replica,
            }
        )
        # not the process's own provider, which belongs to Ray
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("headlight")
        self._ratio, self._ids = ratio, RandomIdGenerator()
        self._headers = TraceContextTextMapPropagator()

    def begin(self, record: Record, traceparents: Sequence[str]) -> TraceContext:
        """Start a request's span in the caller's trace, or in a new one without a valid header.

        Requests are sampled at random: a client's flag could have all of its requests exported.

        Args:
            traceparents: values of the request's traceparent headers.
        """
        context = Context()
        if len(traceparents) == 1:
            # without tracestate, which is the caller's text and only matters to services called
            context = self._headers.extract({TRACEPARENT: traceparents[0]}, context)
        parent = trace.get_current_span(context).get_span_context()
        if random.random() < self._ratio:
            start = _epoch_offset() + _nanoseconds(record.start)
            span = self._tracer.start_span(
                record.method, context, SpanKind.SERVER, start_time=start
            )
            return _make_context(span.get_span_context(), span)
        trace_id = parent.trace_id or self._ids.generate_trace_id()
        flags = TraceFlags(parent.trace_flags & TraceFlags.RANDOM_TRACE_ID)
        span_id = self._ids.generate_span_id()
        return _make_context(
            SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags), None
        )

    def end(self, record: Record) -> None:
        """End a request's span, with a child for each of its stages."""
        if record.trace is None or record.trace.span is None:
            return
        span, offset = record.trace.span, _epoch_offset()
        parent = trace.set_span_in_context(span, Context())
        for name, start, end in record.stages:
            links = [Link(batch) for batch in record.trace.batches if name == "forward"]
            began = offset + _nanoseconds(start)
            child = self._tracer.start_span(name, parent, links=links, start_time=began)
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
        span = self._tracer.start_span(
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


def _make_context(ids: SpanContext, span: trace.Span | None) -> TraceContext:
    """Return the trace context of a request with these ids; `span` is None if not sampled."""
    trace_id, span_id = trace.format_trace_id(ids.trace_id), trace.format_span_id(ids.span_id)
    traceparent = f"00-{trace_id}-{span_id}-{ids.trace_flags:02x}"
    return TraceContext(trace_id, ids.trace_flags.sampled, traceparent, span)


def check_destination(to: str) -> None:
    """Check that spans can be exported to a destination; see Tracing for its form.

    Raises:
        CannotTrace, OSError: see Tracing.
    """
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
    return ConsoleSpanExporter(out=file, formatter=_span_to_json)


def _span_to_json(span: ReadableSpan) -> str:
    """Return a span as a line of JSON."""
    return f"{span.to_json(indent=None)}\n"


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
