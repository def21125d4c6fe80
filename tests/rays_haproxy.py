"""HAProxy as Ray starts it: on a configuration by the installed Ray's own template.

Ray itself is not needed, whose import takes seconds.
"""

import importlib.util
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment

from service.cluster import haproxy

PATIENCE_SECONDS = 60
# What Ray is told, or has by itself
TOLD = {
    "error_file_path": "/500.http",
    "metrics_uri": "/metrics",
    "stats_uri": "/stats",
    "log_target": "stderr",
    "maxconn": 1024,
    "nbthread": 2,
    "bufsize": 131_072,
    "enable_hap_optimization": True,
    "hard_stop_after_s": 120,
    "timeout_connect_s": 5,
    "timeout_client_s": 60,
    "timeout_server_s": 60,
    "timeout_http_keep_alive_s": 90,
    "retry_on": "conn-failure",
    "observe_mark_down_enabled": True,
    "observe_error_limit": 3,
    "tcp_nodelay": True,
    "balance_algorithm": "leastconn",
    "health_check_endpoint": "/-/healthz",
    "frontend_host": "127.0.0.1",
    "is_head": True,
}
# None, as Ray has them, where jinja's own undefined would be something
UNSET = ("timeout_http_request_s", "timeout_queue_s", "close_spread_time_s", "retries")
OF_A_BACKEND = ("connect", "server", "client", "http_request", "queue", "http_keep_alive", "tunnel")
CHECKS = {"health_path": "/-/healthz", "default_server_directive": "default-server fall 2 check"}

# For a test that answers in a replica's place
UNCHECKED = {
    "default-server check": "default-server no-check",
    "observe layer4 error-limit 1 on-error sudden-death": "no-check",
}


class Health(NamedTuple):
    """What Ray's health check says of a node."""

    healthy: bool = True
    status: int = 200
    health_message: str = "success"


WELL, DRAINS = Health(), Health(False, 503, haproxy.DRAINING)


def written_by_ray(
    port: int,
    replicas: Mapping[str, Sequence[int]],
    folder: Path = Path("/run"),
    health: Health = WELL,
    **told: Any,
) -> str:
    """The configuration that the installed Ray writes.

    Args:
        port: where clients come.
        replicas: the ports of the replicas of each application, by its prefix; the root's last.
        folder: of HAProxy's files.
        told: what Ray was told otherwise than TOLD.
    """
    ray = importlib.util.find_spec("ray")
    assert ray and ray.origin
    templates = runpy.run_path(str(Path(ray.origin).parent / "serve/_private/haproxy_templates.py"))
    jinja = Environment()
    jinja.filters["haproxy_fmt"] = str  # Ray's own, for names of applications
    files = {"socket_path": folder / "admin", "server_state_file": folder / "state"}
    ports = {"frontend_port": port, "metrics_port": free_port(), "stats_port": free_port()}
    config = dict.fromkeys(UNSET) | TOLD | files | ports | told
    backends = [
        {
            "name": name_of(prefix),
            "path_prefix": prefix,
            "servers": [
                {"name": f"{name_of(prefix)}-{at}", "host": "127.0.0.1", "port": at}
                for at in behind
            ],
        }
        | dict.fromkeys(f"timeout_{each}_s" for each in OF_A_BACKEND)
        for prefix, behind in replicas.items()
    ]
    said = {"config": config, "backends": backends, "health_info": health}
    rules = jinja.from_string(templates["HAPROXY_HEALTHZ_RULES_TEMPLATE"]).render(said)
    checked = [{"backend": backend, "health_config": CHECKS} for backend in backends]
    said |= {"route_info": {"status": 200, "routes_content_type": "application/json"}}
    said |= {"healthz_rules": rules, "backends_with_health_config": checked}
    return jinja.from_string(templates["HAPROXY_CONFIG_TEMPLATE"]).render(said) + "\n"


def name_of(prefix: str) -> str:
    """The backend of the application below a prefix."""
    return f"http-{prefix.strip('/') or 'root'}"


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(
    config: Path, port: int, *options: str, edits: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """HAProxy as Ray runs it on a configuration, once it takes connections.

    Args:
        options: further ones of HAProxy's.
        edits: what the test has otherwise in our configuration, by what stands there.
    """
    program = [sys.executable, haproxy.__file__]
    if edits:
        written = haproxy.render(config.read_text(), config.parent)
        for ours, other in edits.items():
            assert ours in written
            written = written.replace(ours, other)
        config = config.with_name(haproxy.OUR_FILE)
        config.write_text(written)
        config.with_name(haproxy.STOPPING_FILE).touch()
        program = [haproxy.find_haproxy()]
    command = [*program, "-db", "-f", str(config), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not takes_connections(port):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def takes_connections(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
