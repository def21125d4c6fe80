"""Who can reach a service, what answers where it looks, and how many descriptors it may open."""

import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext

import pytest

from service.cluster.network import check_ray_answers, claim_port, restrict_hosts, warn_of_exposure
from service.tables.settings import Settings

LOCAL = ("localhost", "127.0.0.1", "[::1]")


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        (Settings(), LOCAL),
        (Settings(host="localhost"), LOCAL),
        (Settings(host="::1"), LOCAL),
        (Settings(host="127.0.0.2"), (*LOCAL, "127.0.0.2")),
        (Settings(host="0.0.0.0"), ()),
        (Settings(host="192.0.2.7"), ()),
        (Settings(host="h.example"), ()),
        (Settings(allowed_hosts=("h.example",)), (*LOCAL, "h.example")),
        (Settings(host="0.0.0.0", allowed_hosts=("h.example",)), (*LOCAL, "h.example")),
        (Settings(address="auto"), ()),
    ],
)
def test_a_service_for_this_machine_alone_goes_by_its_names_alone(
    settings: Settings, hosts: tuple[str, ...]
) -> None:
    """And by those that are named: the start itself asks by its own. A cluster's go by any."""
    assert restrict_hosts(settings).allowed_hosts == hosts


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"\0\0\0\4" + b"\0" * 5, nullcontext()),
        (b"HTTP/1.1 400 Bad Request\r\n", pytest.raises(OSError, match="it is not Ray")),
    ],
    ids=["HTTP/2's settings", "HTTP/1.1"],
)
def test_what_listens_and_is_no_ray_is_told_apart(
    first: bytes, expected: AbstractContextManager[object]
) -> None:
    """By its first words: Ray would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = threading.Thread(target=speak, args=[server, first])
        answer.start()
        with expected:
            check_ray_answers(f"127.0.0.1:{server.getsockname()[1]}")
        answer.join()


def test_of_services_that_start_at_once_one_has_the_port() -> None:
    """Nothing listens yet; both would come as far as HAProxy, and one of these could not bind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])

    with claim_port("127.0.0.1", port):
        with pytest.raises(OSError, match="in use"), claim_port("127.0.0.1", port):
            pass
        with socket.create_server(("127.0.0.1", port)):  # HAProxy's
            pass
    with claim_port("127.0.0.1", port):
        pass


def speak(server: socket.socket, first: bytes) -> None:
    """Answer one client's first words."""
    connection, _ = server.accept()
    with connection:
        connection.recv(64)
        connection.sendall(first)


def test_who_lets_the_network_ask_without_a_key_is_warned() -> None:
    """In one line; not with a key, and not where the network cannot ask."""
    open_to_all = Settings(host="0.0.0.0")

    (warning,) = warn_of_exposure(open_to_all)
    assert warning == "no API key is set, so anyone who reaches 0.0.0.0 can use the service"
    keyed = open_to_all.model_copy(update={"api_keys": ("0" * 64,)})
    assert "no API key" not in "".join(warn_of_exposure(keyed))
    assert not [*warn_of_exposure(Settings())]


SCRIPT = """
import resource
from service.cluster import network
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 997))
network.raise_open_files_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_raises_its_limit_to_what_it_may_have() -> None:
    """In a process of its own, since a limit cannot be put back."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)

    assert ran.stdout == b"997 997\n"
