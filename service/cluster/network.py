"""A service's ports, limit of open files and exposure, and what answers at an address."""

import http.client
import ipaddress
import os
import random
import resource
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from service.tables.settings import Settings

# Ports of one service: a block of its own, below the range from which the kernel takes the
# ports of outgoing connections. The first port of a block stands for the whole.
BLOCKS, BLOCK = range(20_000, 32_000, 1_000), 1_000
METRICS, REPLICAS = 1, 10  # offsets in a block

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # names of this machine for itself
REPLICA_HOST = "127.0.0.1"  # where HAProxy finds the replicas of its own machine
# First words of a client of HTTP/2, as Ray speaks it, and what a server answers first (RFC 9113)
FRAME_BYTES, SETTINGS = 9, b"\x04"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0" * 5
READY_SECONDS = 60  # from deployed to ready: canary and HAProxy's own checks


@contextmanager
def reserve_ports(without: int) -> Iterator[int]:
    """Yield the first port of a block that no other service on this machine has or gets.

    A shared range would not do: while HAProxy still lists a replica that died, another
    service's replica could take its port, and its health check would pass.

    Args:
        without: a port the block may not contain, the service's own.

    Raises:
        OSError: every block is taken.
    """
    for first in random.sample(BLOCKS, len(BLOCKS)):
        if first <= without < first + BLOCK:
            continue
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", first))
                for port in range(first + 1, first + REPLICAS):
                    check_free("127.0.0.1", port)
            except OSError:
                continue
            yield first
            return
    raise OSError(f"no free block of ports in {BLOCKS.start}..{BLOCKS.stop - 1}")


def check_free(host: str, port: int) -> None:
    """Check that nothing listens on a port, without SO_REUSEPORT, with which Ray would share it.

    Raises:
        OSError: something does, or the host is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # Connections that are closing (TIME_WAIT) do not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


@contextmanager
def claim_port(host: str, port: int) -> Iterator[None]:
    """Claim a port against other services that start now, until HAProxy listens on it and after.

    Bound by us it would be closed to HAProxy as well. So a name stands for it that the kernel
    gives to one process of a network, and takes back when that ends.

    Raises:
        OSError: something listens there or starts to, or the host is not this machine's.
    """
    check_free(host, port)
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(f"\0headlight-port-{port}")
        yield


def raise_open_files_limit() -> None:
    """Raise this process's limit of open files to its maximum: the usual 1,024 are too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_ray_answers(address: str) -> None:
    """Check once that Ray answers at a cluster's host:port, where Ray would try for minutes.

    Raises:
        OSError: nothing answers there, or something other than Ray.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        return
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return
        connection.sendall(HTTP2_PREFACE)
        try:
            first = connection.recv(FRAME_BYTES)
        except TimeoutError:
            first = b""
    if first[3:4] != SETTINGS:
        raise OSError("something listens there, but it is not Ray")


def wait_until_ready(host: str, port: int, *, tls: bool = False) -> None:
    """Ask /ready until it answers 200.

    Args:
        tls: whether it speaks HTTPS; whose certificate it has does not matter here.

    Raises:
        TimeoutError: it did not in time; says what it answered last.
    """
    deadline = time.monotonic() + READY_SECONDS
    reason = "no answer"
    while time.monotonic() < deadline:
        connection = _prepare_connection(client_host(host).strip("[]"), port, tls)
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
    raise TimeoutError(f"the service is not ready after {READY_SECONDS} s: /ready says {reason}")


def _prepare_connection(host: str, port: int, tls: bool) -> http.client.HTTPConnection:
    """Return a connection that is not open yet, with `tls` one that checks no certificate."""
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=5)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # our own port
    return http.client.HTTPSConnection(host, port, timeout=5, context=context)


def client_host(host: str) -> str:
    """Return the host of a URL by which a client here reaches an address we listen on."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address we listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def restrict_hosts(settings: Settings) -> Settings:
    """Return settings that allow only this machine's own names where only it can reach the service.

    A web page can have any other name point here, and read the answers. On a cluster the address
    is that of each node, by any name. Where hosts are restricted, we ask by our own names.
    """
    if not settings.allowed_hosts and (settings.address or not is_loopback(settings.host)):
        return settings
    hosts = dict.fromkeys((*LOOPBACK, client_host(settings.host), *settings.allowed_hosts))
    return settings.model_copy(update={"allowed_hosts": tuple(hosts)})


def warn_of_exposure(settings: Settings) -> Iterator[str]:
    """Yield warnings: of no key, of keys in clear text, of a file of keys that others can read."""
    host = settings.host
    if not is_loopback(host) and not settings.needs_key:
        yield f"no API key is set, so anyone who reaches {host} can use the service"
    elif not is_loopback(host) and not settings.tls_cert:
        yield (
            f"API keys come to {host} in clear text, and can be read on the way: set tls_cert and "
            "tls_key, or see docs/tls.md"
        )
    file = settings.api_keys_file
    with suppress(OSError):  # the start says what is wrong with it
        if file and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            yield f"other users of this machine can read {file}: chmod 600 {file}"
