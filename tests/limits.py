"""Every limit, budget and time-out, as data: what tests/test_limits.py writes docs/limits.md of."""

from typing import NamedTuple


class Row(NamedTuple):
    """One limit.

    Args:
        name: a setting, a constant of service/, a variable that Ray reads, or a time-out of
            HAProxy's.
        then: the codes of the refusals, or what happens instead.
        bounds: what is bounded; a setting says it itself.
        value: which of them, where several constants have the name.
    """

    name: str
    then: str
    bounds: str = ""
    value: float | None = None


ROWS = (
    # what a request may hold
    Row("MOST_HEADER_BYTES", "headers_too_large", "all headers of a request"),
    Row("MOST_ADDRESS", "headers_too_large", "bytes of path and query"),
    Row("LONGEST_ID", "another id is made", "characters of X-Request-Id"),
    Row("LONGEST_DEADLINE", "out_of_range", "digits of X-Headlight-Deadline-Ms"),
    Row("max_body_bytes", "body_too_large text_too_long"),
    Row("MOST_KEYS", "too_many_values", "keys of one object"),
    Row("max_sequences", "batch_too_large"),
    Row("MOST_RIGHT", "batch_too_large", "texts on the right of POST /v1/similarity"),
    Row("MOST_SPANS", "out_of_range", "spans of a request"),
    Row("MOST_COPIES", "batch_too_large", "copies of a sweep or an occlusion"),
    Row("MOST_DOCUMENTS", "batch_too_large", "documents of POST /v1/highlight"),
    Row("MOST_TOP", "out_of_range", "units shown of a document"),
    Row("MOST_QUESTIONS", "batch_too_large", "questions of a decision"),
    Row("MOST_OPTIONS", "batch_too_large", "options of a question to decide"),
    Row("MOST_ORDERS", "out_of_range", "other orders of a question's options"),
    Row(
        "MOST_CHARACTERS",
        "batch_too_large",
        "characters of the texts by which documents are scored",
        1_048_576,
    ),
    Row("MOST_TEXT_CHARACTERS", "text_too_long", "characters of a text, unless truncate cuts it"),
    Row(
        "MOST_PROMPT_CHARACTERS",
        "text_too_long",
        "characters of a request's prompt; of many texts max_body_bytes / texts",
    ),
    Row("max_tokens", "sequence_too_long"),
    Row("max_question_tokens", "sequence_too_long"),
    Row("max_request_tokens", "too_many_tokens"),
    Row("MOST_EMBEDDING", "out_of_range", "numbers of input embeddings, either sign"),
    # what an answer may hold
    Row("max_answer_bytes", "answer_too_large attention_too_large"),
    Row("MOST_ARRAYS", "answer_too_large", "arrays of an answer that is a file"),
    # how long
    Row("BODY_SECONDS", "request_timeout", "for a body to come whole"),
    Row("haproxy timeout http-request", "408 by HAProxy", "for head and body to reach HAProxy"),
    Row("deadline_seconds", "deadline_exceeded overloaded deadline_unreachable"),
    Row("MOST_INSIDE", "deadline_exceeded", "requests of a key inside while another key is active"),
    Row(
        "ROUND_BYTES",
        "overloaded deadline_exceeded",
        "requests of a round of the event loop, 1 KiB for each head; a larger one alone",
    ),
    Row("LATE_SECONDS", "overloaded", "lateness of the loop, for what no admission bounds"),
    # what a replica holds
    Row("max_waiting_requests", "overloaded"),
    Row("max_waiting_tokens", "overloaded"),
    Row("MOST_CHARACTERS", "overloaded", "characters that wait for the tokenizer", 8_388_608),
    Row("MOST_WAITING", "overloaded", "requests for work outside the model, of a kind"),
    Row("max_held_bytes", "overloaded"),
    Row("batch_tokens", "the next batch takes the rest"),
    Row("MOST_BATCH_TOKENS", "the next batch takes the rest", "tokens per batch by default"),
    # connections
    Row("RAY_SERVE_HAPROXY_MAXCONN", "new ones wait", "connections; grows with replicas"),
    Row("SPARE_REQUESTS", "overloaded", "requests under way beyond max_waiting_requests"),
    Row("HEAD_BYTES", "closed", "a request's head at a replica's own port"),
    Row("HEAD_SECONDS", "closed", "for that head to come"),
    Row("READER_BYTES", "closed", "what a reader takes of an answer in a second, at least"),
    Row("PATIENCE_SECONDS", "closed", "lateness of a reader, in all", 10),
    Row("haproxy retries", "502 or 503 by HAProxy", "further replicas tried"),
    Row("BUFFER_BYTES", "none is tried", "a request that can be sent again"),
    Row("RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S", "closed", "a client's silence"),
    Row("keep_alive_seconds", "the connection is closed"),
    Row("RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S", "504 by HAProxy", "a replica's silence"),
    # keys
    Row("MOST_FILE_BYTES", "keys stay as they are; a start ends", "a file of API keys"),
    Row("STALE_SECONDS", "keys are stale", "for replicas to take up a change of keys", 30),
    # replicas
    Row("CANARY_SECONDS", "not_ready", "between self-checks, of which three may be missing"),
    Row("STUCK_SECONDS", "the replica is replaced", "a batch, or a third of deadline_seconds"),
    Row("STUCK_TIMES", "the replica is replaced", "a batch, times what it should take"),
    Row("max_replicas", "no replica is added"),
    Row("downscale_delay_seconds", "a replica leaves"),
    Row("drain_seconds", "not_ready"),
    Row("RECONNECT_SECONDS", "the node ends", "a node without its head"),
    # starts and logs
    Row("READY_SECONDS", "the start fails", "from deployed to ready"),
    Row("PROBE_SECONDS", "the update fails", "for a cluster's nodes to answer the probe"),
    Row("FILE_BYTES", "the log begins anew", "a replica's log; one more is kept"),
)

# Limits that neither a request nor who runs the service meets, or that stand with their subject
INNER = {
    "ASK_SECONDS", "BATCH_SECONDS", "COMPANY_WAIT_SECONDS", "DRAIN_SECONDS", "GIVEN_UP_SECONDS",
    "HEALTH_PERIOD_SECONDS", "HEALTH_TIMEOUT_SECONDS", "HURRY_SECONDS", "JOIN_SECONDS",
    "LAST_SECONDS", "LEAVE_SECONDS", "LONGEST_HEADER", "LONGEST_LIST", "LONGEST_NAME",
    "MOST_ADAPTERS", "MOST_BYTES", "MOST_COMPARED", "MOST_DETAILS", "MOST_MARKED", "MOST_SEGMENTS",
    "MOST_SHARING",
    "MOST_SHOWN_FAULTS", "NODE_DRAIN_SECONDS", "PIPE_BYTES", "PLACED_SECONDS", "PROBED_BYTES",
    "PROBE_RESERVE", "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S", "SCRAPE_SECONDS", "SHUT_SECONDS", "STOP_SECONDS",
    "SUMMARY_SECONDS", "UPSCALE_DELAY_SECONDS", "haproxy fall", "haproxy timeout check",
}  # fmt: skip

# Numbers that bound nothing, and bounds of one field, which /openapi.json has
NO_LIMITS = {
    "port", "replicas", "other_replicas", "min_replicas", "threads", "tracing_ratio",
    "objective_seconds", "objective_tokens",
    "HAPROXY_KEEP_ALIVE_S",  # keep_alive_seconds, as HAProxy is told
    "RAY_USAGE_STATS_ENABLED", "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED",
    "CLIENT_SECONDS", "RELOAD_SECONDS",  # these two are among the variables
    "ARRAY_BYTES", "BASE64_BYTES", "CHARACTER_BYTES", "COPY_BYTES", "COUNT_BYTES",
    "OPTION_BYTES", "QUESTION_BYTES",
    "DOCUMENT_BYTES", "DOUBLE_SECONDS", "FACT_BYTES", "FRAME_BYTES", "GARBAGE_SECONDS",
    "HELD_ID_BYTES", "ID_BYTES", "MOST_GARBAGE_SECONDS",
    "INPUT_BYTES", "LARGE_BYTES", "LATELY_SECONDS", "LENGTH_BYTES", "LONGEST_WAIT_SECONDS",
    "MEASURED_SECONDS",
    "MEMORY_SECONDS", "MOST_CACHED", "MOST_HEADS", "MOST_K", "MOST_LOOKED_AT", "MOST_NAMED",
    "MOST_SCALE", "MOST_SOCKETS", "MOST_UNSIGNED", "NAMED_BYTES", "NAME_BYTES", "NUMBER_BYTES",
    "OVERDUE_SECONDS", "PAUSE_SECONDS", "PERIOD_SECONDS", "PIECE_BYTES", "POLL_SECONDS",
    "REPLICA_BYTES", "REPORT_SECONDS", "REQUEST_BYTES", "SECONDS", "SETTLED_SECONDS",
    "SHORT_BYTES", "SMALL_BYTES", "STEP_BYTES", "STORE_BYTES", "TEXT_BYTES", "TIMEOUT_SECONDS",
    "TOKEN_BYTES", "TOKEN_JSON_BYTES", "TYPE_BYTES", "UNIT_BYTES", "WINDOW_SECONDS", "WORK_BYTES",
    "WRITTEN_BYTES",
}  # fmt: skip
