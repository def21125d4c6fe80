"""How Ray and HAProxy are told to carry requests."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from service.cluster import haproxy, ingress, network
from service.tables.settings import Settings
from service.tables.sources import PREFIX

CORES = 4


def test_a_server_is_given_longer_than_the_deadline() -> None:
    """Our own 504 comes before HAProxy's, though a replica reads a body for up to 10 s."""
    promised = ingress.common_variables(Settings(deadline_seconds=12.5))

    assert promised["RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"] == "28"
    assert int(promised["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > 28


def test_an_idle_connection_is_kept_through_a_reload() -> None:
    """A balancer keeps it for 620 s, and HAProxy that is replaced meanwhile does too."""
    promised = ingress.common_variables(Settings(keep_alive_seconds=630))

    assert promised[haproxy.KEEP_ALIVE_VARIABLE] == "630"
    assert int(promised["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) >= 630
    assert ingress.common_variables(Settings())[haproxy.KEEP_ALIVE_VARIABLE] == haproxy.KEEP_ALIVE


def test_haproxy_holds_more_connections_than_all_queues() -> None:
    """Full, it accepts nothing: our queues must be full before it is."""
    settings = Settings(replicas=3, max_waiting_requests=100)

    promised = ingress.common_variables(settings)

    assert int(promised["RAY_SERVE_HAPROXY_MAXCONN"]) > 3 * ingress.max_ongoing_requests(settings)
    assert ingress.max_ongoing_requests(settings) > settings.max_waiting_requests


def test_haproxy_has_room_for_the_most_replicas_from_the_start() -> None:
    """Its bound stays as it was started; a replica more would find it too low."""
    few, most, fixed = (
        ingress.common_variables(Settings(**numbers))["RAY_SERVE_HAPROXY_MAXCONN"]
        for numbers in ({}, {"max_replicas": 5}, {"replicas": 5})
    )

    assert most == fixed and int(most) > int(few)


def test_a_service_of_its_own_shares_no_port_or_path(tmp_path: Path) -> None:
    """Everything placed lies in the block or below the private directory."""
    placed = ingress.own_ray_variables(Settings(), 24_000, tmp_path, CORES)

    ports = [int(value) for name, value in placed.items() if name.endswith("_PORT")]
    assert all(24_000 <= port <= 25_000 for port in ports)
    assert len(set(ports)) == len(ports)
    paths = [value for name, value in placed.items() if name.endswith(("_LOC", "_PATH"))]
    assert all(value.startswith(str(tmp_path)) for value in paths if "headlight" not in value)


def test_no_setting_of_a_node_reaches_its_haproxy() -> None:
    """HAProxy inherits them, and HEADLIGHT_HOST would bind a cluster's past http_options.

    Nor the other way: `serve deploy` refuses a variable that begins like a setting and is none.
    """
    assert not haproxy.HOST_VARIABLE.startswith(PREFIX) and not haproxy.TLS_VARIABLE.startswith(
        PREFIX
    )


def test_two_services_have_two_tokens(tmp_path: Path) -> None:
    """One service's token opens nothing of another's."""
    first, second = (
        ingress.own_ray_variables(Settings(), 24_000, tmp_path, CORES) for _ in range(2)
    )

    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_the_wrapper_can_be_run(tmp_path: Path) -> None:
    """Ray asks for an executable file; what it is given passes its arguments on to haproxy."""
    script = ingress.haproxy_wrapper(tmp_path)

    said = subprocess.run([script, "-v"], capture_output=True, text=True, check=True)

    assert os.access(script, os.X_OK)
    assert said.stdout.startswith("HAProxy version")


def test_a_block_is_held_by_one_service() -> None:
    """A second one takes another, while the first is held."""
    with (
        network.reserve_ports(without=8000) as first,
        network.reserve_ports(without=8000) as second,
    ):
        assert first != second
        assert {first, second} <= set(network.BLOCKS)


def test_a_block_never_holds_the_services_own_port() -> None:
    """Whichever it is."""
    for block in network.BLOCKS:
        with network.reserve_ports(without=block + 7) as first:
            assert first != block


def test_a_port_someone_listens_on_is_not_free() -> None:
    """Even with SO_REUSEPORT on their side."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            network.check_free("127.0.0.1", other.getsockname()[1])
