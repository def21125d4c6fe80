"""Every setting of the service, with its default, bounds, unit and description.

sources.py reads them.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from service.tables import keys

KIB, MIB = 1024, 1024 * 1024  # bytes

# What a browser sends: without the port that its scheme has, and without a path
ORIGIN = re.compile(r"(?!https://[^/]*:443$|http://[^/]*:80$)[a-z][a-z0-9.+-]*://[a-z0-9._\[\]:-]+")

ADAPTER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)")  # name=folder
MOST_ADAPTERS = 32  # each is proved at the start

BODY_FACTOR = 2  # memory for a body, in times its bytes: itself, and what is parsed of it
BINARY_FACTOR = 4  # how much larger than a JSON body one of numbers as bytes may be
JSON_FACTOR = 8  # how much larger an answer's arrays may be as bytes than as JSON numbers

# Types of settings
Count = Annotated[int, Field(ge=1)]
Replicas = Annotated[int, Field(ge=1, le=256)]
Ratio = Annotated[float, Field(ge=0, le=1)]


def _split_commas(value: object) -> object:
    """Split the text of a flag or variable at its commas; return other values as they are."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_split_commas)]


def _refuse_bad_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Return origins of web pages; raise ValueError for one that no browser sends."""
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ValueError(
                "must be origins such as https://app.example:8443: https:// or http://, a host in "
                "lower case, a port unless it is the usual one, and nothing after it"
            )
    return origins


def _refuse_bad_adapters(adapters: tuple[str, ...]) -> tuple[str, ...]:
    """Return adapters; raise ValueError where they are not name=folder, or too many."""
    matches = [ADAPTER.fullmatch(adapter) for adapter in adapters]
    if not all(matches) or len({match[1] for match in matches if match}) < len(adapters):
        raise ValueError("must be NAME=FOLDER such as law=/srv/law, with a different NAME for each")
    if len(adapters) > MOST_ADAPTERS:
        raise ValueError(f"must be at most {MOST_ADAPTERS} adapters")
    return adapters


class Settings(BaseModel):
    """The settings of one service, checked and frozen."""

    # what is wrong is shown by sources.py, which shows no key
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), hide_input_in_errors=True
    )

    model: str = Field(
        "all-MiniLM-L6-v2",
        min_length=1,
        description="model to serve: the bundled model, a local folder, "
        "org/name[/folder][@revision] or preset:transformer-base",
    )
    adapter: Annotated[Names, AfterValidator(_refuse_bad_adapters)] = Field(
        (),
        description="LoRA adapters to serve with the model, `name=folder`, separated by commas; a "
        "request names one in its `model`, as model:name; default: none",
    )
    served_model_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$",
        description="model name that clients use; default: the model's own name",
    )
    max_tokens: Count | None = Field(
        None,
        description="maximum sequence length in tokens, up to the model's positions; default: the "
        "checkpoint's limit",
    )
    max_question_tokens: Count | None = Field(
        None,
        description="maximum number of tokens of a question with its options, of a decision model; "
        "default: the checkpoint's limit",
    )
    truncate: Literal["refuse", "right", "left"] | None = Field(
        None,
        description="what to do with over-long inputs unless the request says: refuse them, or "
        "cut them on this side; default: refuse, but cut on the routes of TEI, "
        "Cohere and rerankers, as their APIs do",
    )
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    replicas: Replicas = Field(1, description="number of model replicas, one process each")
    min_replicas: Replicas | None = Field(
        None, description="minimum number of replicas with max_replicas; default: 1"
    )
    max_replicas: Replicas | None = Field(
        None,
        description="scale between min_replicas and this number by load; excludes replicas; "
        "default: a fixed number, `replicas`",
    )
    downscale_delay_seconds: float = Field(
        120.0,
        ge=1,
        le=3600,
        description="how long load must stay low before scaling down, in seconds",
    )
    threads: Count | None = Field(
        None,
        description="CPU cores per replica; default: the machine's cores divided by the maximum "
        "number of replicas; always 1 on cuda",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device to run the model on")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="number format of the model; auto: float32 on cpu, bfloat16 on cuda"
    )
    require_same_bits: bool = Field(
        False,
        description="refuse to start where batching changes the bits of an answer; by default "
        "`numerics` reports it",
    )
    address: str | None = Field(
        None,
        description="Ray cluster to join (auto: the one on this machine); default: start a new one",
    )
    deadline_seconds: float = Field(
        30.0, gt=0, le=600, description="maximum duration of a request, in seconds"
    )
    keep_alive_seconds: int = Field(
        65,
        ge=1,
        le=86_400,
        description="how long a client's idle connection is kept, in seconds; longer than a load "
        "balancer keeps its own, such as 620 for Google's and 3660 for Envoy",
    )
    drain_seconds: float = Field(
        0.0, ge=0, le=600, description="how long a stopping replica stays reachable, in seconds"
    )
    api_keys_file: Path | None = Field(
        None,
        description="file of API keys, one `name:key` per line, with optional limits and "
        "models; replicas reload it when it changes; default: no key required",
    )
    api_keys: tuple[keys.Key, ...] = Field(
        (),
        repr=False,
        exclude=True,
        description="API keys, only as the variable HEADLIGHT_API_KEYS; kept as SHA-256",
    )
    tls_cert: Path | None = Field(
        None,
        description="PEM file of a certificate and those that lead to its root: clients then speak "
        "HTTPS; followed as it is renewed; not on a cluster; default: none",
    )
    tls_key: Path | None = Field(
        None, description="PEM file of the certificate's key, not encrypted; goes with tls_cert"
    )
    public_metrics: bool = Field(
        False, description="serve GET /metrics to everyone, and not to marked keys alone"
    )
    cors_origins: Annotated[Names, AfterValidator(_refuse_bad_origins)] = Field(
        (),
        description="comma-separated origins of web pages that may send requests; *: all; "
        "default: none",
    )
    allowed_hosts: Names = Field(
        (),
        description="comma-separated host names that requests may use, for headlight serve next "
        "to localhost, 127.0.0.1 and [::1]; default: any, or these alone when listening on this "
        "machine only",
    )
    max_body_bytes: Count = Field(
        2 * MIB,
        description="maximum size of a JSON body, in bytes; one with binary tensors may have 4 "
        "times as many",
    )
    max_sequences: Count = Field(2048, description="maximum number of sequences per request")
    max_request_tokens: Count = Field(300_000, description="maximum number of tokens per request")
    max_answer_bytes: Count = Field(
        64 * MIB,
        description="maximum size of the arrays in a safetensors, binary or base64 answer, in "
        "bytes; in a JSON answer an eighth of it",
    )
    max_held_bytes: int = Field(
        512 * MIB,
        ge=MIB,
        description="memory that the requests of a replica may hold in bodies, arrays and "
        "answers, in bytes",
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="log format: json, one object per line, or text, for people"
    )
    log_to_stderr: bool = Field(
        False,
        description="show all log lines of the replicas on stderr, not only warnings and errors",
    )
    access_log: bool = Field(True, description="log one line per request")
    tracing: str | None = Field(
        None,
        pattern=r"^(console|file:.+|https?://.+)$",
        description="where to export traces: console, file:PATH or an OTLP URL; default: nowhere",
    )
    tracing_ratio: Ratio = Field(
        0.01, description="fraction of requests to trace, 0 to 1, where the caller has not said"
    )
    objective_seconds: float = Field(
        0.25,
        gt=0,
        le=30,
        description="what short requests are promised, in seconds: a client that gives less and "
        "is refused for that does not count as failed",
    )
    objective_tokens: Count = Field(
        512, description="maximum number of tokens of a request that counts as short"
    )
    other_replicas: int = Field(
        0,
        ge=0,
        exclude=True,
        description="replicas of the other models that share the machine; the service counts them",
    )
    batch_tokens: int | None = Field(
        None,
        ge=16,
        le=1 << 20,
        description="tokens per batch; default: 100 ms of work, as measured at startup",
    )
    max_waiting_requests: Count = Field(
        512, description="maximum number of requests queued per replica"
    )
    max_waiting_tokens: Count = Field(
        600_000, description="maximum number of tokens queued per replica"
    )

    @property
    def max_binary_body_bytes(self) -> int:
        """Return the maximum size in bytes of a body that holds numbers as bytes."""
        return BINARY_FACTOR * self.max_body_bytes

    @property
    def max_answer_json_bytes(self) -> int:
        """Return the maximum size in bytes of an answer's arrays where they are JSON numbers."""
        return self.max_answer_bytes // JSON_FACTOR

    @property
    def needs_key(self) -> bool:
        """Tell whether a request needs an API key."""
        return bool(self.api_keys or self.api_keys_file)

    @property
    def fewest_replicas(self) -> int:
        """Return the smallest number of replicas that there may be."""
        return self.replicas if self.max_replicas is None else self.min_replicas or 1

    @property
    def most_replicas(self) -> int:
        """Return the largest number of replicas that there may be, for which room must suffice."""
        return self.max_replicas or self.replicas

    @property
    def machine_replicas(self) -> int:
        """Return the most replicas of all models that share the machine."""
        return self.most_replicas + self.other_replicas
