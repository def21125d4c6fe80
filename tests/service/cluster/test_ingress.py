"""How Ray and HAProxy are told to carry requests."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from service.cluster import ingress, ports
from service.cluster.progress import StartFailed
from service.settings import Settings

CORES = 4


def test_a_server_is_given_longer_than_the_deadline() -> None:
    """Our own 504 comes before HAProxy's."""
    promised = ingress.promised(Settings(deadline_seconds=12.5))

    assert promised["RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"] == "18"
    assert int(promised["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > 18


def test_haproxy_holds_more_connections_than_all_queues() -> None:
    """Full, it accepts nothing: our queues must be full before it is."""
    settings = Settings(replicas=3, max_waiting_requests=100)

    promised = ingress.promised(settings)

    assert int(promised["RAY_SERVE_HAPROXY_MAXCONN"]) > 3 * ingress.ongoing(settings)
    assert ingress.ongoing(settings) > settings.max_waiting_requests


def test_haproxy_has_room_for_the_most_replicas_from_the_start() -> None:
    """Its bound stays as it was started; a replica more would find it too low."""
    few, most, fixed = (
        ingress.promised(Settings(**numbers))["RAY_SERVE_HAPROXY_MAXCONN"]
        for numbers in ({}, {"max_replicas": 5}, {"replicas": 5})
    )

    assert most == fixed and int(most) > int(few)


def test_only_what_was_not_answered_is_retried() -> None:
    """A connection that failed or gave nothing, and 503; a 429 sent again would be two requests."""
    retried = ingress.promised(Settings())["RAY_SERVE_HAPROXY_RETRY_ON"].split()

    assert set(retried) == {"conn-failure", "empty-response", "503"}


def test_a_service_of_its_own_shares_no_port_or_path(tmp_path: Path) -> None:
    """Everything placed lies in the block or below the private directory."""
    placed = ingress.placed(Settings(), 24_000, tmp_path, CORES)

    ports = [int(value) for name, value in placed.items() if name.endswith("_PORT")]
    assert all(24_000 <= port <= 25_000 for port in ports)
    assert len(set(ports)) == len(ports)
    paths = [value for name, value in placed.items() if name.endswith(("_LOC", "_PATH"))]
    assert all(value.startswith(str(tmp_path)) for value in paths if "headlight" not in value)


def test_two_services_have_two_tokens(tmp_path: Path) -> None:
    """One service's token opens nothing of another's."""
    first, second = (ingress.placed(Settings(), 24_000, tmp_path, CORES) for _ in range(2))

    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_the_wrapper_can_be_run(tmp_path: Path) -> None:
    """Ray asks for an executable file; what it is given passes its arguments on to haproxy."""
    script = ingress.wrapper(tmp_path)

    said = subprocess.run([script, "-v"], capture_output=True, text=True, check=True)

    assert os.access(script, os.X_OK)
    assert said.stdout.startswith("HAProxy version")


def test_a_cluster_with_every_promised_variable_can_serve() -> None:
    """Where the wrapper lies there is the image's business."""
    actual = ingress.promised(Settings()) | {
        "RAY_AUTH_MODE": "token",
        "RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/local/bin/headlight-haproxy",
        "RAY_SERVE_HAPROXY_MAXCONN": "5000",  # this service's and others'
        "PATH": "/bin",
    }

    ingress.check(Settings(), actual)


def test_each_difference_of_a_cluster_is_named() -> None:
    """With what it is and what it must be."""
    promised = ingress.promised(Settings())
    actual = promised | {
        "RAY_SERVE_HAPROXY_RETRIES": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/sbin/haproxy",
        "RAY_SERVE_HAPROXY_MAXCONN": "1023",
    }
    del actual["RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT"]

    assert set(ingress.differences(promised, actual)) == {
        "RAY_SERVE_HAPROXY_RETRIES is '1' there, but must be '3'",
        "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT is not set there, but must be '1'",
        "RAY_SERVE_HAPROXY_BINARY_PATH is '/usr/sbin/haproxy' there, but must be "
        "'headlight-haproxy'",
        "RAY_SERVE_HAPROXY_MAXCONN is '1023' there, but must be at least 1024",
    }
    with pytest.raises(StartFailed, match="^this cluster cannot serve: .*RETRIES"):
        ingress.check(Settings(), actual)


@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_cluster_that_lets_everybody_in_is_refused(mode: str | None) -> None:
    """Whoever reaches it runs code; a setting says that this is known."""
    actual = ingress.clustered(Settings()) | {"RAY_AUTH_MODE": mode or ""}
    if mode is None:
        del actual["RAY_AUTH_MODE"]

    with pytest.raises(StartFailed, match="RAY_AUTH_MODE .* unless you set --insecure-cluster"):
        ingress.check(Settings(), actual)
    ingress.check(Settings(insecure_cluster=True), actual)


def test_the_bound_of_a_clients_connections_is_the_clusters() -> None:
    """One HAProxy holds it for every model; where nobody says it, any is right."""
    bound = Settings(max_source_connections=7)

    ingress.check(bound, ingress.clustered(bound))
    ingress.check(Settings(), ingress.clustered(bound))
    with pytest.raises(StartFailed, match="HEADLIGHT_MAX_SOURCE_CONNECTIONS is not set"):
        ingress.check(bound, ingress.clustered(Settings()))


def test_a_cluster_of_two_models_has_room_for_both() -> None:
    """What suits all suits each; a model with more replicas than it has room for is refused."""
    shared = ingress.clustered(Settings(replicas=3))

    ingress.check(Settings(replicas=1), shared)
    ingress.check(Settings(replicas=2, max_body_bytes=5), shared)
    with pytest.raises(StartFailed, match="MAXCONN"):
        ingress.check(Settings(replicas=4), shared)


def test_a_block_is_held_by_one_service() -> None:
    """A second one takes another, while the first is held."""
    with ports.block(without=8000) as first, ports.block(without=8000) as second:
        assert first != second
        assert {first, second} <= set(ports.BLOCKS)


def test_a_block_never_holds_the_services_own_port() -> None:
    """Whichever it is."""
    for block in ports.BLOCKS:
        with ports.block(without=block + 7) as first:
            assert first != block


def test_a_port_someone_listens_on_is_not_free() -> None:
    """Even with SO_REUSEPORT on their side."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            ports.free("127.0.0.1", other.getsockname()[1])
