"""What the chart puts around the cluster: who reaches it, what it reaches, who watches it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.door.entrance import PROBE
from service.door.rules import PROBED_PATHS
from tests.deploy.values import every_case, every_cluster

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
REPLICAS = range(30_000, 31_001)  # where Ray has them listen, behind HAProxy


@pytest.mark.parametrize("case", ["keys"])
def test_prometheus_has_a_key_of_its_own(documents: list[dict[str, Any]]) -> None:
    """For the service; Ray's own metrics ask for none."""
    scrape, *others = (one["spec"] for one in documents if one["kind"] == "ScrapeConfig")

    assert scrape["authorization"] == {"credentials": {"name": "prometheus-key", "key": "key"}}
    assert others and not any("authorization" in one for one in others)


@every_case
def test_a_kubelet_asks_only_what_is_answered_under_any_name(answers: Any, case: str) -> None:
    """It asks by a pod's address, which `settings.allowed_hosts` need not have."""
    text = "".join(answers[case]["files"].values())
    asked = set(re.findall(r"httpGet: \{path: (\S+), port: 8000\}", text))

    assert asked and asked <= {*PROBED_PATHS, PROBE}


def scrapes(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each scrape that finds its targets among pods, as any of the kinds has it."""
    for one in documents:
        spec = one["spec"] if one["kind"].endswith(("ScrapeConfig", "Monitor")) else {}
        found = spec.get("endpoints", spec.get("podMetricsEndpoints", [spec]))
        yield from (each for each in found if spec and "staticConfigs" not in each)


@pytest.mark.parametrize(
    ("case", "count"),
    [("keys", 2), ("monitors", 3), ("deployment", 1), ("deployment by load", 1)],
)
def test_a_pod_that_does_not_run_is_no_target_that_is_down(
    documents: list[dict[str, Any]], count: int
) -> None:
    """It has an address while its image is pulled; HeadlightTargetDown would page for it."""
    found = list(scrapes(documents))

    assert len(found) == count
    for each in found:
        (rule,) = (one for one in each["relabelings"] if one.get("action") == "drop")
        assert rule["sourceLabels"] == ["__meta_kubernetes_pod_phase"]
        assert set(rule["regex"].split("|")) == {"Pending", "Succeeded", "Failed"}


def budgets(documents: list[dict[str, Any]]) -> dict[str, int | None]:
    """How many pods a drain leaves, by the names of the budgets."""
    return {
        one["metadata"]["name"]: one["spec"].get("minAvailable")
        for one in documents
        if one["kind"] == "PodDisruptionBudget"
    }


@pytest.mark.parametrize(
    ("case", "stay"),
    [("redis", 2), ("models", 4), ("models by load", 4), ("autoscaling", 1)],
)
def test_a_drain_leaves_all_workers_but_one_of_the_minimum(
    documents: list[dict[str, Any]], stay: int
) -> None:
    """Nor does it wait for the head, which with one pod it would do for ever."""
    assert budgets(documents) == {"headlight-workers": stay}


@pytest.mark.parametrize("case", ["cluster", "gpu"])
def test_no_drain_waits_for_a_worker_that_is_alone(documents: list[dict[str, Any]]) -> None:
    """A budget that it must stay would hold its node for ever."""
    assert budgets(documents) == {}


@pytest.mark.parametrize("case", ["head stays"])
def test_a_head_stays_where_that_is_asked_for(documents: list[dict[str, Any]]) -> None:
    """Each drain of its node then waits until someone deletes the pod."""
    assert budgets(documents) == {"headlight-head": 1}


@pytest.mark.parametrize("case", ["cluster", "pods"])
def test_no_autoscaler_of_nodes_takes_the_head(service: dict[str, Any]) -> None:
    """A scaled-down node would take the whole cluster with it; workers may go."""
    cluster = service["rayClusterConfig"]
    head, worker = cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]
    evicted = "cluster-autoscaler.kubernetes.io/safe-to-evict"

    assert head["template"]["metadata"]["annotations"][evicted] == "false"
    assert evicted not in worker["template"]["metadata"].get("annotations", {})


@pytest.mark.parametrize("case", ["another cluster's", "models"])
def test_of_more_than_ten_replicas_each_is_scraped_by_itself(
    documents: list[dict[str, Any]],
) -> None:
    """As deploy/prometheus/replicas.yml has it; of several models all by one list."""
    scrapes = (one["spec"] for one in documents if one["kind"] == "ScrapeConfig")
    (scrape,) = (one for one in scrapes if one["jobName"] == "headlight")
    ours = yaml.safe_load((DEPLOY / "prometheus" / "replicas.yml").read_text())
    job, expected = ours["scrape_configs"]
    (asked,) = scrape["httpSDConfigs"]
    (all_of_them,) = (
        one["spec"]
        for one in documents
        if one["kind"] == "ScrapeConfig" and one["spec"]["jobName"] == expected["job_name"]
    )
    (kept,) = all_of_them["metricRelabelings"]
    labels = [each["targetLabel"] for each in scrape["relabelings"]]

    assert "staticConfigs" not in scrape and "metricsPath" not in scrape
    assert asked["url"] == "http://headlight-serve-svc.headlight.svc:8000/metrics/targets"
    assert asked["refreshInterval"] == job["http_sd_configs"][0]["refresh_interval"]
    assert {each["target_label"] for each in job["relabel_configs"]} <= set(labels)
    assert {each["target_label"] for each in expected["relabel_configs"]} <= {
        each["targetLabel"] for each in all_of_them["relabelings"]
    }
    assert kept["regex"] == expected["metric_relabel_configs"][0]["regex"]


@pytest.mark.parametrize("case", ["redis"])
def test_a_head_keeps_its_state_in_redis(service: dict[str, Any]) -> None:
    """With the password of a Secret."""
    options = service["rayClusterConfig"]["gcsFaultToleranceOptions"]

    assert options["redisAddress"] == "rediss://redis.db:6380"
    reference = {"secretKeyRef": {"name": "redis", "key": "password"}}
    assert options["redisPassword"]["valueFrom"] == reference


@pytest.mark.parametrize("case", ["cluster"])
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


NAMES = {53, 5353}  # of DNS; OpenShift's pods listen on the second


def outward(documents: list[dict[str, Any]]) -> Iterator[int]:
    """The ports to which any pod may connect beyond its own cluster, names aside."""
    for one in documents:
        if one["kind"] == "NetworkPolicy":
            for rule in one["spec"].get("egress", ()):
                reached = {port["port"] for port in rule.get("ports", ())}
                yield from reached if reached != NAMES else ()


@pytest.mark.parametrize(
    ("case", "ports"),
    [
        ("cluster", {443, 6443}),
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


@pytest.mark.parametrize("case", ["cluster", "hub"])
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
    notes = {case: answers[case]["files"]["NOTES.txt"] for case in ("cluster", "keys")}

    assert "curl http://127.0.0.1:8000/v1/encode" in notes["cluster"]
    assert "Bearer" not in notes["cluster"]
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
