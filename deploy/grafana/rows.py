"""What the dashboard shows: rows of panels, each with its title, unit, description and queries."""

from dataclasses import dataclass

# The error budgets of deploy/prometheus/rules; a test compares.
UNAVAILABLE, SLOW = 0.001, 0.01

# A service of several releases: the chart puts one in the place of these two
RELEASE = 'namespace=~"$namespace", release=~"$release"'
SERVICE = f'{RELEASE}, job=~"$job", instance=~"$instance"'
REPLICA = f'{SERVICE}, replica=~"$replica"'


@dataclass(frozen=True)
class Panel:
    """One panel; `kind` is Grafana's name for how it is drawn."""

    title: str
    unit: str
    description: str
    queries: dict[str, str]  # legend -> PromQL
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    bounds: tuple[float, float] | None = None


def rate(name: str, *by: str, only: str = "") -> str:
    """Increase per second of one of our counters, over the chosen replicas."""
    chosen = f"{REPLICA}, {only}" if only else REPLICA
    return f"sum by ({', '.join(by)}) (rate(headlight_{name}{{{chosen}}}[$__rate_interval]))"


def quantile(share: float, name: str, *by: str) -> str:
    """A quantile of one of our histograms, over the chosen replicas."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', 'le', *by)})"


def gauge(name: str, *by: str) -> str:
    """Sum of one of our gauges, over the chosen replicas."""
    return f"sum by ({', '.join(by)}) (headlight_{name}{{{REPLICA}}})"


def ratio(name: str, window: str) -> str:
    """A ratio that the recording rules keep."""
    return f"instance:headlight_requests_{name}:ratio_rate{window}{{{SERVICE}}}"


def ray(name: str) -> str:
    """One of Ray's own series, from its agents."""
    return f"ray_{name}{{{SERVICE}}}"


def proxy(name: str) -> str:
    """What the recording rules keep of each pod's HAProxy."""
    return f"pod:headlight_proxy_{name}:rate5m{{{SERVICE}}}"


def budget(title: str, name: str, share: float) -> tuple[Panel, Panel]:
    """What is left of an objective's budget, and how fast it burns."""
    left = f"1 - {ratio(name, '30d')} / {share}"
    burns = {
        f"{window} {{{{instance}}}}": f"{ratio(name, window)} / {share}"
        for window in ("5m", "1h", "6h")
    }
    return (
        Panel(
            f"{title}: budget left",
            "percentunit",
            "Share of 30 days' error budget that is not spent, as far as is known. Below 0 the"
            " objective is missed.",
            {"{{instance}}": left},
            "stat",
            4,
        ),
        Panel(
            f"{title}: burn rate",
            "none",
            "1 spends the budget in exactly 30 days. 14.4 for an hour or 6 for six hours page.",
            burns,
        ),
    )


ROWS: dict[str, tuple[Panel, ...]] = {
    "Objectives": (
        *budget("Availability, 99.9 %", "failed_per_request", UNAVAILABLE),
        *budget("Latency, 99 % of short requests in 250 ms", "slow_per_short", SLOW),
    ),
    "Traffic": (
        Panel(
            "Requests by status",
            "reqps",
            "Answers per second. 499 means that the client left before its answer.",
            {"{{code}}": rate("requests_total", "code")},
            stacked=True,
        ),
        Panel(
            "Requests by route",
            "reqps",
            "Answers per second, probes and scrapes included.",
            {"{{route}}": rate("requests_total", "route")},
        ),
        Panel(
            "Requests by input",
            "reqps",
            "What clients send: text, token ids, embeddings, several kinds at once, or none.",
            {"{{input}}": rate("requests_total", "input")},
            stacked=True,
        ),
        Panel(
            "Requests in flight",
            "none",
            "Requests that have come and are not answered yet.",
            {"{{replica}}": gauge("requests_in_flight", "replica")},
            stacked=True,
        ),
        Panel(
            "Tokens per second",
            "cps",
            "Tokens encoded for answers, beside the speed that each replica measures.",
            {
                "done {{replica}}": rate("tokens_total", "replica"),
                "can do {{replica}}": gauge("speed_tokens_per_second", "replica"),
            },
        ),
        Panel(
            "Cancelled per second",
            "cps",
            "Requests whose client left, by the stage they were in.",
            {"{{stage}}": rate("cancelled_total", "stage")},
        ),
    ),
    "Latency": (
        Panel(
            "Time to the answer",
            "s",
            "Quantiles over all routes, from buckets. Exact at 25, 50, 100, 250 and 500 ms.",
            {
                f"p{share * 100:g}": quantile(share, "request_duration_seconds")
                for share in (0.5, 0.95, 0.99)
            },
        ),
        Panel(
            "Time to the answer, p99 by route",
            "s",
            "Where the slow answers are.",
            {"{{route}}": quantile(0.99, "request_duration_seconds", "route")},
        ),
        Panel(
            "Time to the answer, all requests",
            "s",
            "How many requests took how long. Two bands mean two kinds of requests.",
            {"{{le}}": rate("request_duration_seconds_bucket", "le")},
            "heatmap",
        ),
        Panel(
            "Time by stage",
            "s",
            "Seconds spent in each stage per second, exact. Time goes to the thickest layer.",
            {"{{stage}}": rate("stage_duration_seconds_sum", "stage")},
            width=12,
            stacked=True,
        ),
        Panel(
            "Stages, p99",
            "s",
            "The slow end of each stage.",
            {"{{stage}}": quantile(0.99, "stage_duration_seconds", "stage")},
            width=12,
        ),
    ),
    "Saturation": (
        Panel(
            "Requests waiting",
            "percentunit",
            "Share of the requests that may wait. Over 80 % for 5 minutes is a ticket.",
            {
                "{{replica}}": f"{gauge('waiting_requests', 'replica')}"
                f" / {gauge('waiting_requests_limit', 'replica')}"
            },
            bounds=(0, 1),
        ),
        Panel(
            "Tokens waiting",
            "percentunit",
            "Share of the tokens that may wait.",
            {
                "{{replica}}": f"{gauge('waiting_tokens', 'replica')}"
                f" / {gauge('waiting_tokens_limit', 'replica')}"
            },
            bounds=(0, 1),
        ),
        Panel(
            "Seconds of work waiting",
            "s",
            "Work that waits or runs in each replica, by its measured speed. With max_replicas,"
            " what waits beyond some seconds adds replicas.",
            {"{{replica}}": gauge("waiting_seconds", "replica")},
        ),
        Panel(
            "Busy",
            "percentunit",
            "Shares of their time that a replica's lanes and its event loop compute. With"
            " max_replicas the higher one counts: over 75 % adds a replica, and one leaves where"
            " the others stay below 50 %.",
            {
                "{{replica}} lanes": f"{rate('lane_seconds_total', 'replica')}"
                f" / {gauge('lanes', 'replica')}",
                "{{replica}} event loop": rate("event_loop_seconds_total", "replica"),
            },
            bounds=(0, 1),
        ),
        Panel(
            "Replicas",
            "none",
            "Replicas on the page, those that are ready, and those that Ray runs or starts.",
            {
                "deployed": f"sum(headlight_replicas_expected{{{SERVICE}}})",
                "ready": f"sum(headlight_ready{{{REPLICA}}})",
                "there": f"count(headlight_ready{{{REPLICA}}})",
            },
        ),
        Panel(
            "Turned away per second",
            "cps",
            "Requests refused on purpose. client_deadline, share and key_.. are the client's own"
            " making: no alert counts them.",
            {"{{reason}}": rate("shed_total", "reason")},
            stacked=True,
        ),
        Panel(
            "Sequences per batch",
            "none",
            "How many sequences share a forward pass. If it is always 1, there is little to share.",
            {"p50": quantile(0.5, "batch_sequences"), "p99": quantile(0.99, "batch_sequences")},
        ),
        Panel(
            "Tokens per batch",
            "none",
            "How much work is in a forward pass, to compare with the budget that /info shows.",
            {"p50": quantile(0.5, "batch_tokens"), "p99": quantile(0.99, "batch_tokens")},
        ),
        Panel(
            "Event loop lag, p99",
            "s",
            "How late each replica's event loop runs what is due. Over 100 ms, all requests wait.",
            {"{{replica}}": quantile(0.99, "event_loop_lag_seconds", "replica")},
        ),
    ),
    "Model": (
        Panel(
            "Ready",
            "bool_yes_no",
            "Whether each replica may serve.",
            {"{{replica}}": gauge("ready", "replica")},
            "stat",
            4,
        ),
        Panel(
            "Missing from the page",
            "bool_yes_no",
            "Yes means that a replica did not answer the scrape. Every sum here lacks its share.",
            {"{{instance}}": f"headlight_scrape_incomplete{{{SERVICE}}}"},
            "stat",
            4,
        ),
        Panel(
            "Self-checks per second",
            "cps",
            "Runs of the canary, and those that gave other bits than at the start.",
            {
                "run": rate("canary_runs_total"),
                "wrong": rate("canary_failures_total"),
                "NaN or infinity in an answer": rate("nonfinite_outputs_total"),
            },
        ),
        Panel(
            "Since the last success",
            "s",
            "Time since the forward path last proved itself, by an answer or by the canary.",
            {"{{replica}}": f"time() - {gauge('last_success_timestamp_seconds', 'replica')}"},
        ),
        Panel(
            "What runs",
            "none",
            "Replicas that differ here give different bits.",
            {"": f"headlight_model_info{{{REPLICA}}}"},
            "table",
            12,
        ),
        Panel(
            "Built from",
            "none",
            "Versions of the service and of the software below it.",
            {"": f"headlight_build_info{{{REPLICA}}}"},
            "table",
            12,
        ),
        Panel(
            "Up for",
            "s",
            "Time since each replica started. A sawtooth is a replica that keeps dying.",
            {"{{replica}}": f"time() - {gauge('start_time_seconds', 'replica')}"},
            width=12,
        ),
        Panel(
            "Time to load the model",
            "s",
            "From the start of a replica until its model is loaded and checked.",
            {"{{replica}}": gauge("model_load_duration_seconds", "replica")},
            width=12,
        ),
    ),
    "Attention": (
        Panel(
            "Maps per second",
            "cps",
            "Attention maps in answers, by their form.",
            {"{{form}}": rate("attention_maps_total", "form")},
        ),
        Panel(
            "Attention bytes per second",
            "Bps",
            "Bytes of attention in answers, by form, before JSON or base64 adds to them.",
            {"{{form}}": rate("attention_bytes_total", "form")},
            stacked=True,
        ),
        Panel(
            "Answer bytes per second",
            "Bps",
            "Bytes of all answers' bodies.",
            {"{{replica}}": rate("response_bytes_total", "replica")},
            stacked=True,
        ),
    ),
    "Resources": (
        Panel(
            "Resident memory",
            "bytes",
            "Memory of each replica's process. A step is new traffic; a slope is a leak.",
            {"{{replica}}": gauge("resident_memory_bytes", "replica")},
        ),
        Panel(
            "GPU memory",
            "bytes",
            "GPU memory of each replica, by state. Empty without a GPU.",
            {"{{state}} {{replica}}": gauge("gpu_memory_bytes", "state", "replica")},
        ),
        Panel(
            "Accelerator errors per second",
            "cps",
            "Batches that the accelerator failed. oom means out of memory.",
            {"{{kind}}": rate("accelerator_errors_total", "kind")},
        ),
    ),
    "Security": (
        Panel(
            "Wrong keys per second",
            "cps",
            "Requests answered 401. Over 1 a second for 5 minutes is a ticket.",
            {"{{replica}}": rate("auth_failures_total", "replica")},
        ),
        Panel(
            "Refused inputs per second",
            "cps",
            "By the code that the client got. Many of one code mean a broken client.",
            {"{{code}}": rate("invalid_inputs_total", "code")},
        ),
        Panel(
            "Requests outside every route",
            "reqps",
            "Requests to paths that the service does not have. Many mean that somebody is probing.",
            {"{{code}}": rate("requests_total", "code", only='route="other"')},
        ),
    ),
}

# on a cluster alone: the Ray that `headlight serve` starts for itself shows Prometheus nothing
RAY_ROWS: dict[str, tuple[Panel, ...]] = {
    "Serve": (
        Panel(
            "Healthy replicas",
            "none",
            "Replicas that pass Ray's health check, as its controller sees them.",
            {"{{deployment}}": f"sum by (deployment) ({ray('serve_deployment_replica_healthy')})"},
        ),
        Panel(
            "Replica starts",
            "none",
            "Replicas started by each node since its agent started. A step is a start.",
            {"{{instance}}": f"sum by (instance) ({ray('serve_deployment_replica_starts_total')})"},
        ),
        Panel(
            "Replicas that there should be",
            "none",
            "What our policy wants, and what Ray makes of it within its bounds. Only where replicas"
            " scale by load.",
            {
                "wanted {{application}}": ray("serve_autoscaling_desired_replicas"),
                "target {{application}}": ray("serve_autoscaling_target_replicas"),
            },
        ),
        Panel(
            "Application status",
            "none",
            "As Ray calls it: 1 failed, 2 unhealthy, 4 being deleted, 5 deploying, 6 running. Below"
            " 6 for 15 minutes is a ticket.",
            {"{{application}}": ray("serve_application_status")},
        ),
        Panel(
            "Refused by HAProxy itself",
            "reqps",
            "Requests that HAProxy answered 4xx or 5xx without a replica, and connections that it"
            " closed at once. No other panel counts them.",
            {"{{pod}} {{instance}}": proxy("refused")},
        ),
        Panel(
            "Controller's turn",
            "s",
            "How long one turn of Ray Serve's controller takes.",
            {"{{instance}}": ray("serve_controller_control_loop_duration_s")},
        ),
    ),
    "Nodes": (
        Panel(
            "Node processor",
            "percent",
            "Processor use of each node, as its agent sees it.",
            {"{{instance}}": ray("node_cpu_utilization")},
        ),
        Panel(
            "Node memory",
            "bytes",
            "Memory used on each node, by everything that runs there.",
            {"{{instance}}": ray("node_mem_used")},
        ),
    ),
}
