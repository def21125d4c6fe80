"""What the chart lets in from outside: which paths, how much, for how long."""

from typing import Any

import pytest

from service.api import ROUTES
from service.tables.settings import Settings
from tests.deploy.values import NGINX

API = {row.path for row in ROUTES}
METRICS = {"/metrics", "/metrics/targets"}
SERVICE = "headlight-serve-svc"  # it stays when the cluster behind it is replaced


def opened(documents: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each path that an Ingress or a route leads to the service, and how it is compared."""
    found = []
    for one in documents:
        for rule in one["spec"]["rules"] if one["kind"] == "Ingress" else ():
            for path in rule["http"]["paths"]:
                backend = {"name": SERVICE, "port": {"number": 8000}}
                assert path["backend"]["service"] == backend
                found.append((path["pathType"], path["path"]))
        for rule in one["spec"]["rules"] if one["kind"] == "HTTPRoute" else ():
            assert rule["backendRefs"] == [{"name": SERVICE, "port": 8000}]
            paths = (match["path"] for match in rule["matches"])
            found += [(path["type"].removeprefix("Path"), path["value"]) for path in paths]
    return found


def leads(documents: list[dict[str, Any]], path: str) -> bool:
    """Whether a request comes through, by Kubernetes' rules for Exact and Prefix."""
    return any(
        path == value or (how == "Prefix" and path.startswith(f"{value}/"))
        for how, value in opened(documents)
    )


@pytest.mark.parametrize(
    ("case", "prefixes"),
    [
        ("ingress", [""]),
        ("route", [""]),
        ("models", ["", "/base", "/again"]),
        ("models by load", ["", "/base"]),
        ("deployment of more", [""]),
        ("deployment of models", ["", "/my-reranker", "/again"]),
    ],
)
def test_clients_from_outside_reach_the_api_and_no_metrics(
    documents: list[dict[str, Any]], prefixes: list[str]
) -> None:
    """Of each model, below its path; by the service's name."""
    for prefix in prefixes:
        assert {path for path in API if not leads(documents, prefix + path)} == METRICS
    assert not leads(documents, "/else/v1/encode")
    assert not leads(documents, "/-/routes")  # Ray's own list


def annotations(documents: list[dict[str, Any]]) -> dict[str, str]:
    """What ingress-nginx is told, by names without their prefix."""
    (ingress,) = (one for one in documents if one["kind"] == "Ingress")
    told = ingress["metadata"]["annotations"].items()
    return {name.removeprefix(NGINX): value for name, value in told}


@pytest.mark.parametrize(
    ("case", "body", "seconds"),
    [
        ("ingress", Settings().max_binary_body_bytes, "55"),
        ("models", 33554432, "55"),
        ("deployment of more", 4 * 4194304, "38"),
    ],
)
def test_ingress_nginx_ends_nothing_before_the_service_does(
    documents: list[dict[str, Any]], body: int, seconds: str
) -> None:
    """Its own bounds are 1 MiB and 60 s; ours answer with what is wrong."""
    told = annotations(documents)

    assert told["body-size"] == str(body)
    assert told["read-timeout"] == seconds


@pytest.mark.parametrize("case", ["models"])
def test_an_annotation_of_the_values_wins(documents: list[dict[str, Any]]) -> None:
    """Over the chart's own."""
    assert annotations(documents)["send-timeout"] == "99"


@pytest.mark.parametrize("case", ["route"])
def test_a_route_waits_longer_than_the_service(documents: list[dict[str, Any]]) -> None:
    """So that the service's own answer comes first."""
    (route,) = (one for one in documents if one["kind"] == "HTTPRoute")

    assert [rule["timeouts"] for rule in route["spec"]["rules"]] == [{"request": "55s"}]
