"""What the chart puts around the cluster: who reaches it, what it reaches, who watches it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.values import every_cluster

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
REPLICAS = range(30_000, 31_001)  # where Ray has them listen, behind HAProxy


@pytest.mark.parametrize("case", ["keys"])
def test_prometheus_has_a_key_of_its_own(documents: list[dict[str, Any]]) -> None:
    """For the service; Ray's own metrics ask for none."""
    scrape, *others = (one["spec"] for one in documents if one["kind"] == "ScrapeConfig")

    assert scrape["authorization"] == {"credentials": {"name": "prometheus-key", "key": "key"}}
    assert others and not any("authorization" in one for one in others)


def budgets(documents: list[dict[str, Any]]) -> dict[str, int]:
    """How many pods a drain leaves, by the names of the budgets."""
    return {
        one["metadata"]["name"]: one["spec"]["minAvailable"]
        for one in documents
        if one["kind"] == "PodDisruptionBudget"
    }


@pytest.mark.parametrize(
    ("case", "stay"), [("defaults", 1), ("redis", 2), ("models", 5), ("models by load", 4)]
)
def test_a_drain_takes_one_worker_at_a_time_and_never_a_models_last(
    documents: list[dict[str, Any]], stay: int
) -> None:
    """Nor does it wait for the head, which with one pod it would do for ever."""
    assert budgets(documents) == {"headlight-workers": stay}


@pytest.mark.parametrize("case", ["head stays"])
def test_a_head_stays_where_that_is_asked_for(documents: list[dict[str, Any]]) -> None:
    """Each drain of its node then waits until someone deletes the pod."""
    assert budgets(documents) == {"headlight-workers": 1, "headlight-head": 1}


@pytest.mark.parametrize("case", ["redis"])
def test_a_head_keeps_its_state_in_redis(service: dict[str, Any]) -> None:
    """With the password of a Secret."""
    options = service["rayClusterConfig"]["gcsFaultToleranceOptions"]

    assert options["redisAddress"] == "rediss://redis.db:6380"
    reference = {"secretKeyRef": {"name": "redis", "key": "password"}}
    assert options["redisPassword"]["valueFrom"] == reference


@pytest.mark.parametrize("case", ["defaults"])
def test_prometheus_reaches_each_replica(documents: list[dict[str, Any]]) -> None:
    """By the ports on which Ray has them listen."""
    (policy,) = (
        one["spec"]
        for one in documents
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "headlight-ray"
    )
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    (rule,) = (
        rule for rule in policy["ingress"] if rule["from"] == [{"namespaceSelector": namespace}]
    )

    replicas = {
        "protocol": "TCP",
        "port": REPLICAS.start,
        "endPort": REPLICAS[-1],
    }
    assert replicas in rule["ports"]


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


@every_cluster
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
        assert spread["labelSelector"]["matchLabels"].items() <= worker.items()


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


@pytest.mark.parametrize(("case", "name"), [("pods", "headlight"), ("account", "weights")])
def test_pods_run_as_an_account_of_their_own(
    service: dict[str, Any], documents: list[dict[str, Any]], name: str
) -> None:
    """Made here, or there already; KubeRay lets the head's ask for pods."""
    made = [one for one in documents if one["kind"] == "ServiceAccount"]
    cluster = service["rayClusterConfig"]

    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["serviceAccountName"] == name
    assert [one["metadata"]["name"] for one in made] == [name] * (name == "headlight")
    assert all("cloud.example/role" in one["metadata"]["annotations"] for one in made)
