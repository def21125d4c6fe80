"""Whether somebody answers at an address: a cluster, or the service itself; and who reaches it."""

import http.client
import ipaddress
import socket
import time

from service.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # what this machine calls itself
READY_SECONDS = 60  # from deployed to ready: canary and HAProxy's own checks


def connect(address: str) -> None:
    """Connect once to a cluster's host:port, where Ray would try for minutes.

    Raises:
        OSError: nothing answers there.
    """
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()


def wait_until_ready(host: str, port: int) -> None:
    """Ask /ready until it answers 200.

    Raises:
        TimeoutError: it did not in time; says what it answered last.
    """
    deadline = time.monotonic() + READY_SECONDS
    reason = "no answer"
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(reachable(host).strip("[]"), port, timeout=5)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            if answer.status == 200:
                return
            reason = f"{answer.status} {answer.read(200).decode(errors='replace')}"
        except OSError as error:
            reason = str(error)
        finally:
            connection.close()
        time.sleep(0.1)
    raise TimeoutError(f"not ready after {READY_SECONDS} s: /ready says {reason}")


def reachable(host: str) -> str:
    """Turn the address we listen on into one a client here can use."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address we listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guarded(settings: Settings) -> Settings:
    """Let only this machine's own names be asked for where nobody else is to ask.

    A web page can have any other name point here, and read what is answered. On a cluster the
    address is that of each node, by whatever name.
    """
    if settings.allowed_hosts or settings.address or not loopback(settings.host):
        return settings
    hosts = dict.fromkeys((*LOOPBACK, reachable(settings.host)))
    return settings.model_copy(update={"allowed_hosts": tuple(hosts)})


def exposed(settings: Settings) -> str | None:
    """The warning that anybody may ask, where it is so."""
    if settings.api_keys or loopback(settings.host):
        return None
    return f"warning: whoever reaches {settings.host} may ask, since no API key is set"
