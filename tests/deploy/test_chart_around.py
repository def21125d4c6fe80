"""What the chart puts around the cluster: who reaches it, what it reaches, who watches it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.values import every_case

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


@pytest.mark.parametrize("case", ["keys"])
def test_prometheus_has_a_key_of_its_own(documents: list[dict[str, Any]]) -> None:
    """For the service; Ray's own metrics ask for none."""
    scrape, *others = (one["spec"] for one in documents if one["kind"] == "ScrapeConfig")

    assert scrape["authorization"] == {"credentials": {"name": "prometheus-key", "key": "key"}}
    assert others and not any("authorization" in one for one in others)


@pytest.mark.parametrize("case", ["redis"])
def test_a_head_with_redis_may_be_moved(
    service: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    """And of three workers two stay."""
    options = service["rayClusterConfig"]["gcsFaultToleranceOptions"]
    budgets = [one for one in documents if one["kind"] == "PodDisruptionBudget"]

    assert options["redisAddress"] == "rediss://redis.db:6380"
    reference = {"secretKeyRef": {"name": "redis", "key": "password"}}
    assert options["redisPassword"]["valueFrom"] == reference
    assert [one["metadata"]["name"] for one in budgets] == ["headlight-workers"]
    assert budgets[0]["spec"]["minAvailable"] == 2


def outward(documents: list[dict[str, Any]]) -> Iterator[int]:
    """The ports to which any pod may connect beyond its own cluster, names aside."""
    for one in documents:
        if one["kind"] == "NetworkPolicy":
            for rule in one["spec"].get("egress", ()):
                yield from (port["port"] for port in rule.get("ports", ()) if port["port"] != 53)


@pytest.mark.parametrize(
    ("case", "ports"),
    [
        ("defaults", {443, 6443}),
        ("redis", {443, 6443, 6380}),
        ("settings", {443, 6443, 4318}),
        ("nothing", set()),
    ],
)
def test_nothing_goes_out_but_to_what_is_used(
    documents: list[dict[str, Any]], ports: set[int]
) -> None:
    """Kubernetes' API from the head, Redis if there is one, what was allowed besides."""
    assert set(outward(documents)) == ports


@pytest.mark.parametrize("case", ["defaults", "hub"])
def test_workers_reach_the_hub_only_where_the_model_is_from_there(
    case: str, documents: list[dict[str, Any]]
) -> None:
    """And in no case the address at which clouds hand out credentials."""
    (policy,) = (
        one["spec"]
        for one in documents
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "headlight-ray"
    )
    out = [
        rule
        for rule in policy["egress"]
        if {"protocol": "TCP", "port": 443} in rule.get("ports", ())
    ]

    assert len(out) == (case == "hub")
    assert all("169.254.0.0/16" in rule["to"][0]["ipBlock"]["except"] for rule in out)


@every_case
def test_the_objects_around_it_mean_its_pods(
    service: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    """Budgets, policies and scrapes choose by labels that the pods have."""
    cluster = service["rayClusterConfig"]
    head = cluster["headGroupSpec"]["template"]["metadata"]["labels"]
    (group,) = cluster["workerGroupSpecs"]
    worker = group["template"]["metadata"]["labels"]
    given = [  # KubeRay adds the second label
        {**head, "ray.io/node-type": "head"},
        {**worker, "ray.io/node-type": "worker"},
    ]
    chosen = {
        one["metadata"]["name"]: next(
            one["spec"][place]["matchLabels"]
            for place in ("podSelector", "selector")
            if place in one["spec"]
        )
        for one in documents
        if one["kind"] in ("NetworkPolicy", "PodDisruptionBudget")
    }

    for name, labels in chosen.items():
        meant = [labels.items() <= each.items() for each in given]
        expected = {"head": [True, False], "workers": [False, True]}
        assert meant == expected.get(name.removeprefix("headlight-"), [True, True])
    for spread in group["template"]["spec"].get("topologySpreadConstraints", ()):
        assert spread["labelSelector"]["matchLabels"] == worker


@pytest.mark.parametrize(("case", "kind"), [("ingress", "Ingress"), ("route", "HTTPRoute")])
def test_clients_from_outside_come_to_the_service(
    kind: str, documents: list[dict[str, Any]]
) -> None:
    """By its name, which stays when the cluster behind it is replaced."""
    (spec,) = (one["spec"] for one in documents if one["kind"] == kind)
    (rule,) = spec["rules"]

    if kind == "HTTPRoute":
        assert rule["backendRefs"] == [{"name": "headlight-serve-svc", "port": 8000}]
        assert rule["timeouts"] == {"request": "45s"}
    else:
        (path,) = rule["http"]["paths"]
        to = {"name": "headlight-serve-svc", "port": {"number": 8000}}
        assert path["backend"]["service"] == to


@pytest.mark.parametrize("case", ["nothing"])
def test_all_but_the_service_can_be_left_out(documents: list[dict[str, Any]]) -> None:
    """On a cluster without Prometheus' operator, for one."""
    assert [one["kind"] for one in documents] == ["RayService"]


def test_the_notes_give_a_command_that_asks_it(answers: dict[str, dict[str, Any]]) -> None:
    """With a key where one is asked for."""
    notes = {case: answers[case]["files"]["NOTES.txt"] for case in ("defaults", "keys")}

    assert "curl http://127.0.0.1:8000/v1/encode" in notes["defaults"]
    assert "Bearer" not in notes["defaults"]
    assert 'Authorization: Bearer $KEY"' in notes["keys"]
