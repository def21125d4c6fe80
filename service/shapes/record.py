"""The record of one request, filled in on its way and reported after its end."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from service.tables.memory import UNBOUNDED, Hold, Memory

REQUEST_ID, TRACEPARENT = "x-request-id", "traceparent"  # headers that name a request

NO_INPUT: tuple[str, ...] = ("none",)  # the kinds of inputs of a request that has none
# Stages of a request that are timed
StageName = Literal["parse", "tokenize", "queue", "forward", "serialize"]
STAGES: tuple[StageName, ...] = get_args(StageName)  # in a request's order
CLIENT_CLOSED = 499  # status of a request whose client disconnected before its answer

# A stage of a request with its start and end on time.monotonic's clock; a tuple, for its low cost
Stage = tuple[StageName, float, float]


@dataclass(slots=True)
class TraceContext:
    """The trace that a request belongs to; made by service/observe/tracing.py."""

    trace_id: str  # 32 hexadecimal digits
    sampled: bool  # whether its spans are exported
    traceparent: str  # W3C header that names the request's span
    span: Any  # span of the request; None unless it is sampled
    batches: list[Any] = field(default_factory=list)  # span contexts of its batches


@dataclass(slots=True, eq=False)
class Record:
    """The facts known about a request by the time it is reported."""

    route: str  # path of the route, or `other`; `own` for the service's own works
    method: str = "_OTHER"  # HTTP method; `_OTHER` for one that is not known
    request_id: str = ""  # the client's, or a new one; see door/request.py
    key: str = ""  # name of the API key that it came with
    input: str = "none"  # kind of its inputs, as the metrics' label
    code: int = CLIENT_CLOSED  # HTTP status of its answer
    refused: str | None = None  # code of its refusal; None if it was answered
    shed: str | None = None  # which bound refused it for lack of room or time, if that is known
    inputs: int = 0  # number of its texts or of what stands for them
    sequences: int = 0  # number that the model runs for it, copies of inputs among them
    tokens: int = 0  # of all these sequences
    bytes: int = 0  # of its answer's body
    given_seconds: float = math.inf  # until its deadline, at most the service's own
    turn_seconds: float = 0.0  # time that it waited at the first gate behind others of its key
    start: float = field(default_factory=time.monotonic)  # when it arrived, less its turn_seconds
    seconds: float = 0.0  # from `start` to its end
    ended: float = 0.0  # calendar time of its end, in seconds
    admitted: bool = False  # whether its texts were admitted to the tokenizer's queue
    batch_start: float = 0.0  # start of its first batch, on time.monotonic's clock; 0 before
    stages: list[Stage] = field(default_factory=list)  # those that have ended
    trace: TraceContext | None = None  # None where tracing is off
    hold: Hold = field(default_factory=lambda: Hold(Memory(), UNBOUNDED))  # its memory
    weights: str = ""  # digest of the weights that answer it, if an adapter is applied

    def add_wait(self, seconds: float) -> None:
        """Count seconds that the request waited at the first gate, before it was read."""
        self.stages.append(("queue", self.start - seconds, self.start))
        self.start -= seconds
        self.turn_seconds += seconds

    def end_stage(self, name: StageName, start: float) -> None:
        """Add a stage that ends now, whether it succeeded or not."""
        self.stages.append((name, start, time.monotonic()))

    def end_batch_stages(self, start: float) -> None:
        """Add the stages `queue`, until the first batch, and `forward`, which ends now.

        A request of which no batch was started gets only the first.

        Args:
            start: when it was submitted to the batcher; `batch_start` was 0 then.
        """
        end = time.monotonic()
        self.stages.append(("queue", start, self.batch_start or end))
        if self.batch_start:
            self.stages.append(("forward", self.batch_start, end))

    def end_request(self) -> None:
        """Set the time of its end to now, and its duration."""
        self.seconds, self.ended = time.monotonic() - self.start, time.time()

    def log_ids(self) -> dict[str, Any]:
        """Return the fields that identify the request in the log."""
        trace_id = self.trace.trace_id if self.trace else None
        return {"request_id": self.request_id, "trace_id": trace_id, "route": self.route}
