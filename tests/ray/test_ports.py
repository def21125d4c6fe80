"""Who can reach what: the ports of a service, however it is started."""

import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
import yaml

from tests.manifests import rendered
from tests.ray.conftest import Way

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parent.parent.parent
PORTS = ROOT / "docs" / "ports.md"
HALF_HELLO = bytes.fromhex("1603010200010001fc0303")  # of TLS, without the 507 bytes that follow


def pod() -> Way:
    """As the chart starts it without KubeRay."""
    deployment, *_others = yaml.safe_load_all(rendered(kind="Deployment")["deployment.yaml"])
    (own,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in own["env"]}
    return Way(own["args"][1:], variables | {"HEADLIGHT_THREADS": "1"})  # on any machine


def every_address() -> Way:
    """At all of both kinds."""
    return Way(["--host", "::"], {})


def test_what_listens_is_what_the_docs_say(running: "Service") -> None:
    """docs/ports.md lists every listener of a service, and none that is not there."""
    assert places(running) == listed(host="loopback")


@pytest.mark.prove
@pytest.mark.parametrize("way", [pod, every_address])
def test_only_haproxy_moves_with_the_host(start: "Start", way: Callable[[], Way]) -> None:
    """Past it nothing answers others but the port that asks for the token."""
    arguments, variables = way()

    with start(*arguments, variables=variables) as service:
        assert ready(service) == 200
        assert_it_alone_moved(service)


def test_of_a_container_haproxy_alone_is_reached_from_outside(keyed: "Service") -> None:
    """Nothing answers past its TLS."""
    assert ready(keyed) == 200
    assert_it_alone_moved(keyed)


def ready(service: "Service") -> int:
    """The status of /ready, on a connection of its own, soon."""
    return httpx.get(f"{service.url}/ready", timeout=5).status_code


def test_five_hundred_handshakes_that_stop_delay_no_one_else(keyed: "Service") -> None:
    """HAProxy has no time-out of its own for them: each has its place until the client's."""
    place = ("127.0.0.1", keyed.port)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(place, 5)) for _ in range(500)]
        for connection in silent[::2]:
            connection.sendall(HALF_HELLO)

        assert [ready(keyed) for _ in range(20)] == [200] * 20
        for connection in silent:  # none was closed meanwhile
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def assert_it_alone_moved(service: "Service") -> None:
    """HAProxy listens to all, with one port of Ray Serve's and no other."""
    open_to_all = {port for _, wide, port in listening(service) if wide == "all"}

    assert places(service) == listed(host="all")
    assert service.port in open_to_all and len(open_to_all) == 2


def test_the_port_open_to_all_answers_nobody_without_the_token(running: "Service") -> None:
    """Ray Serve binds it to all interfaces and reads pickles from it, after this check."""
    ports = {port for _, place, port in listening(running) if place == "all"}
    assert len(ports) == 2, "one per replica"
    for port in ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=5, metadata=[("authorization", "Bearer " + "0" * 64)])
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def listed(host: str) -> set[tuple[str, str]]:
    """The processes of docs/ports.md, each with where it listens."""
    rows = re.findall(r"^\| (\w+) \| .* \| (all|loopback|`--host`) \|", PORTS.read_text(), re.M)
    return {(name, place.replace("`--host`", host)) for name, place in rows}


def places(service: "Service") -> set[tuple[str, str]]:
    """Each process of a service that listens, with where."""
    return {(name, place) for name, place, _ in listening(service)}


def listening(service: "Service") -> set[tuple[str, str, int]]:
    """Each port of a service: whose, reached by all or from the loopback, and its number."""
    family = service.family()
    return {
        (family[pid], "all" if wide else "loopback", port)
        for pid in family
        for wide, port in listeners(pid)
    }


def listeners(pid: int) -> set[tuple[bool, int]]:
    """Where a process that has not ended listens: whether on all interfaces, and the port."""
    sockets = set[str]()
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(os.readlink(link).removeprefix("socket:[").rstrip("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[at] for at in (1, 3, 9))
            if state == "0A" and inode in sockets:  # 0A: listening
                address, _, port = local.partition(":")
                found.add((int(address, 16) == 0, int(port, 16)))
    return found
