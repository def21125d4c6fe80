"""The variables of a cluster's nodes: what keeps the promise, and what is said of the rest."""

import pytest

from service.cluster import ingress
from service.cluster.start_report import StartFailed
from service.preflight import variables
from service.tables.settings import Settings


def test_a_cluster_with_every_promised_variable_can_serve() -> None:
    """Where the wrapper lies there is the image's business."""
    actual = ingress.common_variables(Settings()) | {
        "RAY_AUTH_MODE": "token",
        "RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/local/bin/headlight-haproxy",
        "RAY_SERVE_HAPROXY_MAXCONN": "5000",  # this service's and others'
        "PATH": "/bin",
    }

    variables.require_variables(Settings(), actual)


def test_each_difference_of_a_cluster_is_named() -> None:
    """With what it is and what it must be."""
    promised = ingress.common_variables(Settings())
    actual = promised | {
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "3600",
        "RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/sbin/haproxy",
        "RAY_SERVE_HAPROXY_MAXCONN": "1023",
    }
    del actual["RAY_SERVE_HAPROXY_METRICS_ENABLED"]

    assert set(map(str, variables.find_differences(promised, actual))) == {
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S: is '3600'; must be 65",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED: is not set; must be 0",
        "RAY_SERVE_HAPROXY_BINARY_PATH: is '/usr/sbin/haproxy'; must be headlight-haproxy",
        "RAY_SERVE_HAPROXY_MAXCONN: is '1023'; must be at least 1024",
    }
    with pytest.raises(StartFailed, match="^this cluster cannot serve: .*CLIENT_S"):
        variables.require_variables(Settings(), actual)


@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_cluster_that_lets_everybody_in_is_refused(mode: str | None) -> None:
    """Access to it means running code."""
    actual = ingress.cluster_variables(Settings()) | {"RAY_AUTH_MODE": mode or ""}
    if mode is None:
        del actual["RAY_AUTH_MODE"]

    with pytest.raises(StartFailed, match="RAY_AUTH_MODE: .*token"):
        variables.require_variables(Settings(), actual)


def test_a_cluster_of_two_models_has_room_for_both() -> None:
    """What suits all suits each; a model with more replicas than it has room for is refused."""
    shared = ingress.cluster_variables(Settings(replicas=3))

    variables.require_variables(Settings(replicas=1), shared)
    variables.require_variables(Settings(replicas=2, max_body_bytes=5), shared)
    with pytest.raises(StartFailed, match="MAXCONN"):
        variables.require_variables(Settings(replicas=4), shared)
