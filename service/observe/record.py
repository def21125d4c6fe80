"""The record of one request, filled in on its way and reported after its end."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from service.memory import UNBOUNDED, Hold, Memory, NoRoom
from service.refusals import Refused

REQUEST_ID, TRACEPARENT = "x-request-id", "traceparent"  # headers that name a request

StageName = Literal["parse", "tokenize", "queue", "forward", "serialize"]
STAGES: tuple[StageName, ...] = get_args(StageName)  # in a request's order
CLIENT_CLOSED = 499  # the client went away before its answer


# One stage of a request, with its start and end on time.monotonic's clock; plain, since a request
# has five
Stage = tuple[StageName, float, float]


@dataclass(slots=True)
class TraceContext:
    """The trace that a request belongs to; made by service/observe/tracing.py.

    Args:
        trace_id: 32 hexadecimal digits.
        sampled: whether its spans are kept.
        traceparent: how the request's span is named to others.
        span: the request's; None unless it is sampled.
        batches: span contexts of the batches it was in.
    """

    trace_id: str
    sampled: bool
    traceparent: str
    span: Any
    batches: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Record:
    """The facts known about a request by the time it is reported.

    Args:
        route: one of ours, or other; `own` is the service's own work.
        key: the name of the API key that it came with.
        input: the kind of its inputs.
        refused: the code of its refusal.
        shed: the bound met by an overload or a late request, where that is known.
        sequences, tokens: what it asks the model to run.
        bytes: of its answer's body.
        given_seconds: that the client gives it from then on, at most the service's deadline.
        turn_seconds: that it waited at the door, behind others of its key.
        start: when it had arrived whole, less what it waited before, on time.monotonic's clock.
        ended: in calendar time, seconds.
        seconds: from `start` to its end.
        admitted: whether its texts were let into the tokenizer's queue.
        batch_start: when its first batch was started, on time.monotonic's clock; 0 before.
        hold: the memory that it holds.
        weights: digest of the weights that answer it, where an adapter's are added.
    """

    route: str
    method: str = "_OTHER"
    request_id: str = ""
    key: str = ""
    input: str = "none"
    code: int = CLIENT_CLOSED
    refused: str | None = None
    shed: str | None = None
    sequences: int = 0
    tokens: int = 0
    bytes: int = 0
    given_seconds: float = math.inf
    turn_seconds: float = 0.0
    start: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    ended: float = 0.0
    admitted: bool = False
    batch_start: float = 0.0
    stages: list[Stage] = field(default_factory=list)
    trace: TraceContext | None = None
    hold: Hold = field(default_factory=lambda: Hold(Memory(), UNBOUNDED))
    weights: str = ""

    def reserve(self, **sizes: int) -> None:
        """Hold this many bytes of these kinds, in place of those before, until the request ends.

        Raises:
            Refused: there is no room for them.
        """
        try:
            self.hold.take(**sizes)
        except NoRoom:
            self.shed = "memory"
            raise Refused("overloaded", retry_after=1) from None

    def add_wait(self, seconds: float) -> None:
        """Add the time it waited before anything was known of it."""
        self.stages.append(("queue", self.start - seconds, self.start))
        self.start -= seconds
        self.turn_seconds += seconds

    def end_stage(self, name: StageName, start: float) -> None:
        """Take the time of a stage that ends now; called however it ends."""
        self.stages.append((name, start, time.monotonic()))

    def end_batch_stages(self, start: float) -> None:
        """Time the stages that the batcher decides on: queue until the first batch, then forward.

        A request that never runs has only waited.

        Args:
            start: when it was given to the batcher; `batch_start` was 0 then.
        """
        end = time.monotonic()
        self.stages.append(("queue", start, self.batch_start or end))
        if self.batch_start:
            self.stages.append(("forward", self.batch_start, end))

    def end_request(self) -> None:
        """Take the end time."""
        self.seconds, self.ended = time.monotonic() - self.start, time.time()

    def log_ids(self) -> dict[str, Any]:
        """Return the names by which a log line is found."""
        trace_id = self.trace.trace_id if self.trace else None
        return {"request_id": self.request_id, "trace_id": trace_id, "route": self.route}
