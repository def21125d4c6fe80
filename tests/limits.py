"""Every limit, budget and time-out, as data: what tests/test_limits.py writes docs/limits.md of."""

from typing import NamedTuple


class Row(NamedTuple):
    """One limit.

    Args:
        name: a setting, a constant by its module below service/, a variable that Ray reads, or
            a time-out of HAProxy's.
        then: the codes of the refusals, or what happens instead.
        bounds: what is bounded; a setting says it itself.
    """

    name: str
    then: str
    bounds: str = ""


class Enforced(NamedTuple):
    """One thing that is bounded on a request's way, and the one who does it.

    Args:
        by: HAProxy, or a module below service/.
        limits: names of ROWS; empty: what is enforced has no number of ours.
        others: why no one else does.
    """

    what: str
    by: str
    limits: tuple[str, ...]
    others: str


ENFORCED = (
    Enforced(
        "connections, of all clients and of one",
        "HAProxy",
        ("RAY_SERVE_HAPROXY_MAXCONN", "cluster.haproxy.PROBE_RESERVE"),
        "a replica takes each that reaches it, and counts requests",
    ),
    Enforced("how many headers there are", "HAProxy", (), "the door counts their bytes"),
    Enforced(
        "a client's head on its way, and a body that fits the buffer",
        "HAProxy",
        ("haproxy timeout http-request", "RAY_SERVE_HAPROXY_TUNE_BUFSIZE"),
        "a replica gets them whole",
    ),
    Enforced(
        "a head on its way to a replica's own port",
        "edge.transport",
        ("edge.transport.HEAD_BYTES", "edge.transport.HEAD_SECONDS"),
        "HAProxy is not there; uvicorn waits for ever",
    ),
    Enforced(
        "a request for another protocol",
        "edge.transport",
        (),
        "HAProxy takes the header out; the door does not look",
    ),
    Enforced("digits of a length, and two lengths", "uvicorn", (), "the door reads it as a number"),
    Enforced(
        "a head that is whole",
        "edge.rules",
        ("edge.rules.MOST_HEADER_BYTES", "edge.request.MOST_ADDRESS"),
        "HAProxy passes on what fits its buffer",
    ),
    Enforced(
        "the rest of a body on its way",
        "edge.body",
        ("edge.body.BODY_SECONDS",),
        "HAProxy passes on what does not fit its buffer as it comes",
    ),
    Enforced("bytes of a body", "edge.body", ("max_body_bytes",), "parsers read what it lets in"),
    Enforced(
        "values of a body, and keys that an object has twice",
        "edge.body",
        ("edge.body.MOST_KEYS",),
        "no parser counts, and of two keys it keeps the last",
    ),
    Enforced(
        "requests under way",
        "edge.door",
        ("cluster.ingress.SPARE_REQUESTS",),
        "Ray's `max_ongoing_requests` counts none of them: they bypass it",
    ),
    Enforced(
        "what waits for the model",
        "engine.batcher",
        ("max_waiting_requests", "max_waiting_tokens"),
        "HAProxy has no queue of its own",
    ),
    Enforced(
        "a request's time",
        "encode.admission",
        ("deadline_seconds",),
        "the door ends what hangs 5 s later, HAProxy leaves a replica that is silent for 15 s "
        "more, since a body may take 10 s to arrive; "
        "Ray's `request_timeout_s` is not set",
    ),
    Enforced(
        "a reader of an answer",
        "edge.transport",
        ("edge.transport.READER_BYTES", "edge.transport.PATIENCE_SECONDS"),
        "HAProxy ends a connection on which nothing moves at all",
    ),
    Enforced(
        "a client's silence",
        "HAProxy",
        ("RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S",),
        "HAProxy alone keeps a replica's connections",
    ),
)

ROWS = (
    # what a request may hold
    Row("edge.rules.MOST_HEADER_BYTES", "headers_too_large", "all headers of a request"),
    Row("edge.request.LONGEST_ID", "another id is made", "characters of X-Request-Id"),
    Row("edge.request.LONGEST_DEADLINE", "out_of_range", "digits of X-Headlight-Deadline-Ms"),
    Row("max_body_bytes", "body_too_large text_too_long"),
    Row("edge.request.MOST_ADDRESS", "headers_too_large", "bytes of path and query"),
    Row("edge.body.MOST_KEYS", "too_many_values", "keys of one object"),
    Row(
        "api.open_inference.call.LONGEST_HEADER",
        "out_of_range",
        "digits of Inference-Header-Content-Length",
    ),
    Row(
        "api.open_inference.tensors.LONGEST_LIST",
        "out_of_range",
        "characters of a list of layers or heads, Open Inference",
    ),
    Row("max_sequences", "batch_too_large"),
    Row(
        "questions.similarity.MOST_RIGHT",
        "batch_too_large",
        "texts on the right of POST /v1/similarity",
    ),
    Row(
        "settings.MOST_ADAPTERS", "the start is refused", "LoRA adapters, each proved at the start"
    ),
    Row(
        "shapes.inputs.MOST_SPANS",
        "out_of_range",
        "spans of a request, whose tokens max_request_tokens bounds",
    ),
    Row(
        "encode.swept.MOST_COPIES",
        "batch_too_large",
        "copies of a sweep or an occlusion, whose work max_request_tokens bounds",
    ),
    Row(
        "questions.highlight.question.MOST_DOCUMENTS",
        "batch_too_large",
        "documents whose evidence is asked for",
    ),
    Row("questions.highlight.MOST_TOP", "out_of_range", "units that are shown of a document"),
    Row(
        "questions.highlight.evidence.MOST_CHARACTERS",
        "batch_too_large",
        "characters of the texts that documents are scored by, of all together",
    ),
    Row(
        "encode.reader.MOST_TEXT_CHARACTERS",
        "text_too_long",
        "characters of a text; cut, where truncate says so",
    ),
    Row(
        "api.inputs.MOST_PROMPT_CHARACTERS",
        "text_too_long",
        "characters of a prompt that a request brings; with many texts max_body_bytes / texts",
    ),
    Row("max_tokens", "sequence_too_long"),
    Row("max_request_tokens", "too_many_tokens"),
    Row("encode.reader.MOST_EMBEDDING", "out_of_range", "numbers of input embeddings, either sign"),
    # what an answer may hold
    Row("max_answer_bytes", "answer_too_large attention_too_large"),
    Row("shapes.price.MOST_ARRAYS", "answer_too_large", "arrays of an answer that is a file"),
    Row("refusals.MOST_SHOWN_FAULTS", "the others are left out", "errors that a refusal lists"),
    Row(
        "refusals.MOST_DETAILS",
        "the others are counted",
        "errors that a refusal puts into words",
    ),
    Row("refusals.MOST_BYTES", "errors are left out", "body of a refusal"),
    Row(
        "wording.words.LONGEST_NAME",
        "no name is suggested",
        "characters of a misspelt name that is compared with ours",
    ),
    # how long
    Row(
        "edge.gate.MOST_INSIDE",
        "deadline_exceeded",
        "requests of a key past the door at a time while another key is active; others wait",
    ),
    Row(
        "edge.rounds.ROUND_BYTES",
        "overloaded deadline_exceeded",
        "begun in one round of the event loop, 1 KiB for each head; a larger request alone",
    ),
    Row(
        "edge.rounds.LATE_SECONDS",
        "overloaded",
        "that the event loop, or its round, may be late for what no admission bounds",
    ),
    Row("edge.absent.MOST_SEGMENTS", "not_found", "segments of an unknown path that are looked up"),
    Row("edge.absent.MOST_COMPARED", "not_found", "characters of one that is compared with ours"),
    Row("edge.body.BODY_SECONDS", "request_timeout", "for a body to come whole"),
    Row(
        "edge.entrance.PLACED_SECONDS",
        "what a file has moved is found where it was",
        "until Ray is asked again where it has put the routes",
    ),
    Row("haproxy timeout http-request", "408 by HAProxy itself", "for head and body to come"),
    Row(
        "deadline_seconds",
        "deadline_exceeded overloaded deadline_unreachable",
    ),
    Row(
        "cluster.choice.ASK_SECONDS",
        "its model is chosen by path alone until HAProxy is reloaded",
        "for a new replica to say what its model is called",
    ),
    Row(
        "fleet.pages.SCRAPE_SECONDS",
        "the replica is left out of the page",
        "for a replica's metrics",
    ),
    Row(
        "engine.batcher.COMPANY_WAIT_SECONDS",
        "they start without it",
        "that a few short requests wait for company, on two cores",
    ),
    Row(
        "engine.batcher.HURRY_SECONDS",
        "no request waits for company",
        "left until a waiting request's deadline",
    ),
    Row("observe.observer.REPORT_SECONDS", "it is told then", "from a request's end to its line"),
    # what a replica holds
    Row("max_waiting_requests", "overloaded"),
    Row("max_waiting_tokens", "overloaded"),
    Row(
        "encode.admission.MOST_CHARACTERS",
        "overloaded",
        "characters that wait for the tokenizer",
    ),
    Row("max_held_bytes", "overloaded"),
    Row(
        "edge.transport.HEAD_BYTES",
        "the connection is closed",
        "a request's line and headers before they end, at a replica's own port",
    ),
    Row(
        "edge.transport.HEAD_SECONDS",
        "the connection is closed",
        "until they have ended, there",
    ),
    Row(
        "edge.transport.READER_BYTES",
        "the connection is closed",
        "a reader takes of an answer in a second, at least",
    ),
    Row(
        "edge.transport.PATIENCE_SECONDS",
        "the connection is closed",
        "a reader may be late, in all",
    ),
    Row(
        "encode.worker.MOST_WAITING",
        "overloaded",
        "requests for work outside the model, of a kind",
    ),
    Row("batch_tokens", "the next batch takes the rest"),
    Row(
        "engine.machine.BATCH_SECONDS",
        "the next batch takes the rest",
        "work in a batch, where batch_tokens is not set",
    ),
    Row(
        "engine.machine.MOST_BATCH_TOKENS",
        "the next batch takes the rest",
        "tokens per batch, where batch_tokens is not set",
    ),
    # connections
    Row(
        "cluster.haproxy.PROBE_RESERVE",
        "new connections wait",
        "connections kept for probes, beyond all",
    ),
    Row(
        "cluster.ingress.SPARE_REQUESTS",
        "overloaded",
        "requests under way beyond max_waiting_requests, of which keys share the sum; a replica "
        "refuses work beyond twice as many",
    ),
    Row(
        "RAY_SERVE_HAPROXY_MAXCONN",
        "new connections wait",
        "connections of HAProxy; grows with replicas and max_waiting_requests",
    ),
    Row(
        "RAY_SERVE_HAPROXY_RETRIES",
        "502 or 503 by HAProxy itself",
        "further replicas tried after one that died",
    ),
    Row(
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE",
        "no other replica is tried",
        "a request that can be sent again",
    ),
    Row("RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S", "the connection is closed", "a client's silence"),
    Row("keep_alive_seconds", "the connection is closed", "between two requests of a connection"),
    Row(
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S",
        "504 by HAProxy itself",
        "a replica's silence; deadline_seconds and 15 s",
    ),
    Row(
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S",
        "the answer is cut",
        "answers of an HAProxy that a reload replaces",
    ),
    # keys
    Row("keyring.MOST_FILE_BYTES", "keys stay as they are; a start ends", "a file of API keys"),
    Row(
        "keyring.STALE_SECONDS",
        "keys are stale",
        "until each replica has taken up a change of its file of keys",
    ),
    # a replica's life
    Row(
        "engine.health.CANARY_SECONDS",
        "not_ready",
        "between two self-checks; three that do not come make a replica unready",
    ),
    Row("max_replicas", "no replica is added"),
    Row("downscale_delay_seconds", "a replica leaves"),
    Row(
        "fleet.bounds.UPSCALE_DELAY_SECONDS",
        "a replica is added",
        "how long more replicas must be needed, with max_replicas",
    ),
    Row(
        "fleet.policy.STALE_SECONDS",
        "no replica leaves",
        "since a replica's last report, with max_replicas",
    ),
    Row("app.HEALTH_PERIOD_SECONDS", "Ray looks again", "between two looks of Ray at a replica"),
    Row("app.HEALTH_TIMEOUT_SECONDS", "after three the replica is replaced", "for its answer"),
    Row(
        "engine.health.STUCK_SECONDS",
        "the replica is replaced",
        "a batch, or a third of deadline_seconds",
    ),
    Row(
        "engine.health.STUCK_TIMES",
        "the replica is replaced",
        "a batch, times what it should take",
    ),
    Row(
        "app.LEAVE_SECONDS",
        "the process ends",
        "from a replica's fault to its end; it answers 503 until then",
    ),
    Row(
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL",
        "HAProxy asks the others",
        "failed checks of a replica in a row",
    ),
    Row("haproxy timeout check", "the check failed", "for a replica to answer HAProxy's check"),
    Row(
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S",
        "after three HAProxy is replaced",
        "between two looks of Ray at HAProxy",
    ),
    Row("drain_seconds", "not_ready"),
    Row(
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
        "it leaves",
        "drain_seconds, as Ray is told",
    ),
    Row("cluster.ingress.NODE_DRAIN_SECONDS", "the node's work is cut", "a node told to stop"),
    Row(
        "cluster.haproxy.DRAIN_SECONDS",
        "HAProxy ends when nothing is on its way",
        "the least drain of a node's HAProxy",
    ),
    Row("cluster.haproxy.SHUT_SECONDS", "new ones are refused", "of these, without connections"),
    Row("cluster.ingress.RECONNECT_SECONDS", "the node ends", "a node without its head"),
    Row("models.MOST_SHARING", "the start fails", "threads of several models to a core"),
    # logs
    Row("observe.logs.FILE_BYTES", "the log begins anew", "a replica's log; one more is kept"),
    Row(
        "observe.observer.SUMMARY_SECONDS", "a line sums them up", "probes and 401s not told singly"
    ),
    # start and stop
    Row("ray_session.JOIN_SECONDS", "the start fails", "for a cluster to run an empty task"),
    Row("cluster.network.READY_SECONDS", "the start fails", "from deployed to ready"),
    Row(
        "preflight.cluster.PROBE_SECONDS",
        "the update fails",
        "for a cluster's nodes to answer the probe",
    ),
    Row(
        "preflight.model.PROBED_BYTES", "only sizes are probed", "weights that a probe reads whole"
    ),
    Row("launch.STOP_SECONDS", "Ray is left alone", "for Ray to delete what has left"),
    Row("launch.GIVEN_UP_SECONDS", "Ray is left alone", "the same after a start that failed"),
    Row("cluster.drain.LAST_SECONDS", "HAProxy stops", "for the connections accepted last"),
    Row(
        "cluster.workspace.PATIENCE_SECONDS",
        "they are killed",
        "for processes to end by themselves",
    ),
    Row("cluster.relay.PIPE_BYTES", "lines are lost to stderr", "the replicas' lines for stderr"),
    Row("cluster.relay.JOIN_SECONDS", "it is left alone", "for the last lines for stderr"),
    Row("cluster.workspace.STOP_SECONDS", "it is left alone", "for the sweeper"),
)

# Numbers that bound nothing, and bounds of one field, which /openapi.json has
NO_LIMITS = {
    "port", "replicas", "other_replicas", "min_replicas", "threads", "fleet.bounds.REPORT_SECONDS",
    "fleet.policy.DRAIN_SECONDS", "fleet.policy.WINDOW_SECONDS",
    "fleet.policy.LONGEST_WAIT_SECONDS", "tracing_ratio",
    "HAPROXY_KEEP_ALIVE_S",  # keep_alive_seconds, as HAProxy is told
    "RAY_USAGE_STATS_ENABLED", "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED",
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT", "RAY_SERVE_HAPROXY_METRICS_ENABLED",
    "edge.body.MOST_CACHED", "api.open_inference.tensors.LENGTH_BYTES",
    "api.open_inference.tensors.MOST_UNSIGNED",
    "shapes.inputs.MOST_SCALE", "encode.interventions.NUMBER_BYTES",
    "shapes.answer.PIECE_BYTES", "questions.similarity.MOST_K",
    "engine.tokenizers.TIMEOUT_SECONDS", "engine.formats.SECONDS", "keyring.POLL_SECONDS",
    "keyring.SETTLED_SECONDS",
    "cluster.tls.POLL_SECONDS",
    "edge.gate.DOUBLE_SECONDS", "edge.door.PAUSE_SECONDS", "edge.rounds.REQUEST_BYTES",
    "edge.body.MOST_HEADS", "edge.body.LARGE_BYTES", "encode.answer.BASE64_BYTES",
    "shapes.price.TEXT_BYTES", "shapes.price.NAMED_BYTES", "shapes.price.ARRAY_BYTES",
    "memory.SMALL_BYTES",
    "encode.admission.REQUEST_BYTES", "encode.admission.INPUT_BYTES", "encode.admission.ID_BYTES",
    "encode.admission.TYPE_BYTES", "encode.admission.TOKEN_BYTES", "encode.admission.COPY_BYTES",
    "questions.carried.WORK_BYTES",
    "questions.similarity.occlusion.TOKEN_BYTES", "questions.similarity.occlusion.COPY_BYTES",
    "questions.highlight.evidence.COPY_BYTES", "questions.highlight.evidence.TOKEN_BYTES",
    "questions.highlight.evidence.CHARACTER_BYTES",
    "questions.highlight.question.DOCUMENT_BYTES", "questions.highlight.question.UNIT_BYTES",
    "encode.admission.FACT_BYTES", "api.tei.tokens.TOKEN_BYTES",
    "api.tei.tokens.WRITTEN_BYTES", "api.tei.tokens.HELD_ID_BYTES",
    "cluster.relay.POLL_SECONDS", "cluster.network.FRAME_BYTES",
    "cluster.progress.PERIOD_SECONDS", "launch.POLL_SECONDS", "preflight.model.REPLICA_BYTES",
    "cluster.drain.POLL_SECONDS", "cluster.drain.COUNT_BYTES", "cluster.drain.NAME_BYTES",
    "cluster.drain.MOST_SOCKETS", "engine.proof.MEASURED_SECONDS",
    "engine.speed.MEMORY_SECONDS",
    "objective_seconds", "objective_tokens",
    "edge.under_way.OVERDUE_SECONDS", "edge.under_way.GARBAGE_SECONDS",
    "edge.under_way.MOST_GARBAGE_SECONDS", "edge.body.SHORT_BYTES",
    "shapes.answer.TOKEN_JSON_BYTES",
    "preflight.machine.STORE_BYTES", "wording.wire.MOST_NAMED", "wording.wire.MOST_LOOKED_AT",
    "cluster.ingress.BUFFER_BYTES", "cluster.ingress.CLIENT_SECONDS",
    "cluster.ingress.RELOAD_SECONDS",  # these three are among the variables
}  # fmt: skip
