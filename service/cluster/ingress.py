"""The environment variables that tell Ray and HAProxy how to carry requests.

    common_variables      what clients may rely on; on a cluster these belong to the cluster
    cluster_variables     these, and what else a cluster's processes should start with
    own_ray_variables     where a service with a Ray of its own keeps things: ports, paths, token

Ray reads most of them when ray.serve is imported, and its workers inherit them: they are set before
the first import of ray. Why each has its value: docs/decisions/0015-haproxy.md.
"""

import json
import math
import os
import secrets
import shlex
import sys
from pathlib import Path

from service.cluster import haproxy, network, tls
from service.tables.settings import MIB, Settings

# Requests a replica may hold beyond those waiting in our queue: running ones, probes and scrapes.
# With room to spare, the refusal of a full queue is always ours, never Ray's.
SPARE_REQUESTS = 256

CLIENT_SECONDS = 65  # how long a client may be silent within a request or an answer
RELOAD_SECONDS = 120  # Ray's own: how long an HAProxy replaced by a reload may finish answers

# Replicas allocate from the jemalloc that Ray ships but withholds from its workers: oneDNN asks for
# some 1,400 aligned blocks in each pass, for which glibc has no fast path before 2.38
# (docs/decisions/0024). A thread of its own gives back what is no longer used: otherwise a replica
# that held large answers keeps their memory while it has nothing to do. Where Ray has none, glibc
# is set to one heap for all threads that keeps what was freed. A thread's own heap gives it back at
# once, and faulting in tens of MiB again for every batch that shows attention takes longer than
# computing it (docs/decisions/0007).
HEAP_ENV = {
    "RAY_LD_PRELOAD_ON_WORKERS": "1",
    "MALLOC_CONF": "background_thread:true",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 * MIB),
    "MALLOC_TRIM_THRESHOLD_": str(256 * MIB),
}

# Matrix kernels that are kept, some 0.6 MiB each and four for every number of rows: oneDNN's, and
# in addition those of each thread, which torch keeps (docs/decisions/0017).
KERNEL_CACHE_ENV = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "192", "LRU_CACHE_CAPACITY": "64"}

# How often Ray checks its replicas and counts its requests: otherwise ten times a second, even on
# an idle laptop.
INTERVAL_ENV = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
}

DEPLOYMENT = "Encoder"  # name of the one deployment of each of our applications

# Variables of Ray's
PROGRAM, WRAPPER = "RAY_SERVE_HAPROXY_BINARY_PATH", "headlight-haproxy"  # which runs haproxy
HAPROXY_ENABLED = "RAY_SERVE_ENABLE_HA_PROXY"  # whether HAProxy is in front of the replicas
HAPROXY_MAXCONN = "RAY_SERVE_HAPROXY_MAXCONN"  # of each node's HAProxy, for all that it serves
SERVER_TIMEOUT = "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"  # how long a replica may answer nothing
HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"  # how long a replaced HAProxy runs
REPLICA_DRAIN = "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"  # a replica's time to leave
NODE_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"  # a node's time to leave

# The label of nodes that were started with our variables, which each replica demands
NODE_LABEL = {"headlight": "serves"}
LABEL_DEMAND = {"label_selector": NODE_LABEL}  # in ray_actor_options
LABEL_ENV = {"RAY_OVERRIDE_LABELS": json.dumps(NODE_LABEL)}  # which Ray reads when a node starts

TOKEN_AUTH_ENV = {"RAY_AUTH_MODE": "token"}  # without it, anyone who reaches Ray can run code

NODE_ENV = {
    **TOKEN_AUTH_ENV,
    **LABEL_ENV,
    **HEAP_ENV,
    **KERNEL_CACHE_ENV,
    "RAY_worker_niceness": "0",  # Ray would run replicas at +15
}

# How long a node told to stop hands its work over; a replica's own time to leave is shorter.
NODE_DRAIN_SECONDS = 90
RECONNECT_SECONDS = 600  # nodes serve on without the head node; a reboot exceeds Ray's 60


def max_ongoing_requests(settings: Settings) -> int:
    """Return how many requests Ray may hand to one replica at a time."""
    return settings.max_waiting_requests + SPARE_REQUESTS


def request_seconds(settings: Settings) -> float:
    """Return the seconds that work may take from when its request has arrived whole.

    Our own refusal comes sooner.
    """
    return settings.deadline_seconds + 5


def shutdown_seconds(settings: Settings) -> float:
    """Return the seconds a replica may take to stop: Ray's 20 s would cut admitted work short."""
    return settings.drain_seconds + settings.deadline_seconds + 5


def common_variables(settings: Settings) -> dict[str, str]:
    """Return the variables of any Ray the service runs on, its own or a cluster's."""
    deadline = math.ceil(settings.deadline_seconds)
    return {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.door.entrance:outermost",
        "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "service.cluster.controller:prepare",
        "RAY_USAGE_STATS_ENABLED": "0",  # no call home
        HAPROXY_ENABLED: "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # with HAProxy only: see docs/decisions/0015
        # HAProxy accepts nothing when full, not even /live: it must not fill before our queues.
        HAPROXY_MAXCONN: str(
            max_ongoing_requests(settings) * settings.machine_replicas + SPARE_REQUESTS
        ),
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(CLIENT_SECONDS),
        # HAProxy counts from when it has passed on a body, which a busy replica may be reading for
        # 10 s more (door/body.py).
        SERVER_TIMEOUT: str(deadline + 15),
        haproxy.KEEP_ALIVE_VARIABLE: str(settings.keep_alive_seconds),
        # It closes an idle connection with its next answer, or when its time is up.
        HARD_STOP: str(max(RELOAD_SECONDS, deadline + 20, settings.keep_alive_seconds)),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # HAProxy or its manager dead: three failed checks and it is replaced. Ray's 10 s is 30 s
        # without a port.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        REPLICA_DRAIN: f"{settings.drain_seconds:g}",
        PROGRAM: WRAPPER,
    }


def cluster_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with which each node of a cluster is started.

    Args:
        settings: of all that the cluster will serve: `replicas` counts the replicas of all models,
            the most of those that scale.
    """
    return common_variables(settings) | {
        **NODE_ENV,
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_SECONDS),
        NODE_DRAIN: str(NODE_DRAIN_SECONDS),
    }


def own_ray_variables(settings: Settings, block: int, run: Path, cores: int) -> dict[str, str]:
    """Return the variables of a service with a Ray of its own.

    Args:
        settings: the service's.
        block: first port of the service's block of ports.
        run: the service's private directory, mode 0700.
        cores: of the machine.
    """
    directory = run / "haproxy"
    return {
        **NODE_ENV,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this service alone; no file in the home
        "RAY_memory_monitor_refresh_ms": "0",  # others fill a laptop's memory: no kill for that
        # Ray's switch for systems without clusters: its ports listen on the loopback only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # ray_session.AGENT ends by it
        # A raylet asks for its store before it is there, and would ask again after 1 s.
        "RAY_raylet_client_connect_timeout_milliseconds": "20",
        "RAY_raylet_client_num_connect_attempts": "500",
        **INTERVAL_ENV,
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(2, cores)),  # the cores belong to the model
        PROGRAM: str(haproxy_wrapper(run)),
        haproxy.HOST_VARIABLE: settings.host,
        **({haproxy.TLS_VARIABLE: str(run / tls.PEM_NAME)} if settings.tls_cert else {}),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "admin"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(block + network.METRICS),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(block + network.REPLICAS),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(block + network.BLOCK),
    }


def haproxy_wrapper(run: Path) -> Path:
    """Return the path of the script Ray runs as haproxy: pip's, or one written to `run`."""
    installed = Path(sys.executable).with_name(WRAPPER)
    if os.access(installed, os.X_OK):
        return installed
    script = run / WRAPPER
    command = shlex.join([sys.executable, "-P", haproxy.__file__])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    return script
