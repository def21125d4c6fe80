"""Buckets of histograms, closed sets of label values, and the objective, for metrics.

Source of the names: Prometheus, "Metric and label naming".
"""

from typing import NamedTuple

from service.shapes.record import NO_INPUT
from service.tables.refusals import OVERLOADED, REFUSALS

# Seconds of a request, each at most twice the one before, so that a p99 between two is wrong by at
# most a factor of 2; 0.25 is the objective, 30 the deadline. A stage's are the same and finer ones.
BUCKETS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 30)
STAGE_BUCKETS = (0.000125, 0.00025, 0.0005, 0.001, *BUCKETS)
TOKEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # of a batch


class Objective(NamedTuple):
    """The objective for short requests: answered within `seconds` if of at most `tokens`."""

    seconds: float
    tokens: int


OBJECTIVE = Objective(0.25, 512)  # unless the settings say another

# Values of the label `input` on different routes: the kinds of input that a request may have; none
# if it has none, or cannot be read; mixed if it has several
OF_TEXT, OF_TOKENS = (*NO_INPUT, "text"), (*NO_INPUT, "text", "tokens")
OF_ONE_KIND = (*OF_TOKENS, "embeddings")
INPUTS = (*OF_ONE_KIND, "mixed")
CANCELLED_STAGES = ("queue", "forward")  # where a request was when its client disconnected
ACCELERATOR_ERRORS = ("oom", "other")  # how a batch failed: out of memory, or otherwise
# Why requests are refused for lack of room or time; where there are API keys, KEY_SHED_REASONS too
LATE = "late"  # the event loop was, for a request that no admission bounds
SHED_REASONS = (
    *("queue_full", "token_budget", "memory", "deadline", "client_deadline", "not_ready", LATE),
)
KEY_SHARE = "share"  # most of the queue is the key's own
KEY_SHED_REASONS = ("key_requests", "key_tokens", KEY_SHARE)  # by limits of a key
# The reason by a refusal's code, where its record has none
SHED_BY_CODE = {"deadline_exceeded": "deadline", "not_ready": "not_ready"}
CLIENT_DEADLINE = "client_deadline"  # the client's deadline, shorter than the objective, passed
# Statuses counted as 0 before they first occur, since alerts take their rate
PREINITIALIZED_STATUSES = (
    200,
    *sorted({REFUSALS[code].status for code in (OVERLOADED, "internal", "deadline_exceeded")}),
)
METRICS_PATH, READY_PATH = "/metrics", "/ready"  # routes
PROBE_PATHS = frozenset(("/live", READY_PATH))  # routes that health probes ask all the time
# Routes that no alert is about: reading them is no work
PAGE_PATHS = frozenset(("/live", READY_PATH, "/info", METRICS_PATH, "/docs", "/openapi.json"))
