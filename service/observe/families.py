"""What metrics are counted by: buckets, closed labels, and the bounds of the objective.

Source of the names: Prometheus, "Metric and label naming".
"""

from service.refusals import REFUSALS

# Seconds of a route, each at most twice the one before, so that a p99 read between two is at most
# twice off; 0.25 is the objective, 30 the deadline. A stage's are the same, plus finer ones.
BUCKETS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 30)
STAGE_BUCKETS = (0.000125, 0.00025, 0.0005, 0.001, *BUCKETS)
TOKEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

# The objective for short requests: the seconds, for a request of at most so many tokens
OBJECTIVE_SECONDS, INTERACTIVE_TOKENS = 0.25, 512

# The inputs of a request: none, or none readable; texts; token ids; embeddings; or all of these
NO_INPUT: tuple[str, ...] = ("none",)
OF_TEXT, OF_TOKENS = (*NO_INPUT, "text"), (*NO_INPUT, "text", "tokens")
OF_ONE_KIND = (*OF_TOKENS, "embeddings")
INPUTS = (*OF_ONE_KIND, "mixed")
CANCELLED_STAGES, ACCELERATOR_ERRORS = ("queue", "forward"), ("oom", "other")
SHED_REASONS = ("queue_full", "token_budget", "memory", "deadline", "client_deadline", "not_ready")
KEY_SHARE = "share"
KEY_SHED_REASONS = ("key_requests", "key_tokens", KEY_SHARE)  # where keys are set
SHED_BY_CODE = {
    "deadline_exceeded": "deadline",
    "not_ready": "not_ready",
}  # codes that name their shed
CLIENT_DEADLINE = "client_deadline"  # late by a deadline shorter than the objective
OVERLOADED = "overloaded"
# What an alert may take the rate of before it first happens: a 200, and these
PREINITIALIZED_STATUSES = (
    200,
    *sorted({REFUSALS[c].status for c in (OVERLOADED, "internal", "deadline_exceeded")}),
)
METRICS_PATH = "/metrics"  # reading the page is not traffic
READY_PATH = "/ready"  # its 503 turns no work away
PAGE_PATHS = frozenset(
    ("/live", READY_PATH, "/info", METRICS_PATH, "/docs", "/openapi.json")
)  # of no alert
