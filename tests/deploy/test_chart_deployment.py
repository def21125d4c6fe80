"""The chart without KubeRay: pods that are each a service of their own."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cluster import ingress, model_settings
from service.preflight import machine
from service.tables import sources
from service.tables.settings import Settings
from tests.deploy.values import DEPLOYMENTS

every_deployment = pytest.mark.parametrize("case", DEPLOYMENTS)


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The specification of the one object of a kind."""
    (spec,) = (one["spec"] for one in documents if one["kind"] == kind)
    return dict(spec)


@pytest.fixture
def pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The template of the Deployment's pods."""
    return dict(of_kind(documents, "Deployment")["template"])


def environment(pod: dict[str, Any]) -> dict[str, str]:
    """The variables of our container that have a value here."""
    env = pod["spec"]["containers"][0]["env"]
    return {each["name"]: each["value"] for each in env if "value" in each}


def read(pod: dict[str, Any]) -> Settings:
    """The settings as `headlight serve` reads them in the pod, its keys aside."""
    variables = environment(pod)
    variables.pop("HEADLIGHT_API_KEYS_FILE", None)
    return sources.load_settings({}, environ=variables)


@every_deployment
def test_a_pod_serves_with_the_settings_of_the_values(case: str, pod: dict[str, Any]) -> None:
    """One replica with a Ray of its own, for all that reach the pod."""
    asked = {"model": {}, "settings": {}} | DEPLOYMENTS[case]
    found = read(pod)
    (container, *_) = pod["spec"]["containers"]

    expected = {"replicas": 1} | asked["settings"]
    threads = asked.get("workers", {}).get("cpu", {}).get("threads", 3)
    expected |= {"device": asked.get("device", "cpu")}
    expected |= {"threads": 1 if "device" in asked else threads}
    folder = "/models/" if asked["model"].get("source") == "pvc" else ""
    expected |= {"model": folder + asked["model"].get("name", "all-MiniLM-L6-v2")}
    assert {name: getattr(found, name) for name in expected} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in expected.items()
    }
    assert container["args"][:3] == ["serve", "--host", "0.0.0.0"]


@pytest.mark.parametrize("case", ["deployment of models"])
def test_a_pod_has_a_replica_of_each_model(
    documents: list[dict[str, Any]],
    pod: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `headlight serve` reads the list, each with what it says of itself, below its path."""
    (listed,) = (one for one in documents if one["kind"] == "ConfigMap")
    (container,) = pod["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (volume,) = (each for each in pod["spec"]["volumes"] if "configMap" in each)
    (name, text) = listed["data"].popitem()
    (tmp_path / name).write_text(text)
    cores = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    monkeypatch.setattr(model_settings, "count_cores", lambda: cores)

    found = model_settings.load_models([], {}, environment(pod), tmp_path / name)

    assert volume["configMap"]["name"] == listed["metadata"]["name"]
    assert container["args"][-2:] == ["--config", f"{mounts[volume['name']]}/{name}"]
    assert [each.model for each in found] == [
        "all-MiniLM-L6-v2",
        "/weights/reranker",
        "all-MiniLM-L6-v2",
    ]
    names = [each.served_model_name for each in found]
    assert names == ["small", "Org/My-Reranker", "again"]
    assert [model_settings.path_name(each) for each in found[1:]] == ["my-reranker", "again"]
    assert [each.max_tokens for each in found] == [128, 256, 128]
    assert [each.dtype for each in found] == ["auto", "auto", "float32"]
    assert {(each.threads, each.replicas, each.max_sequences) for each in found} == {(3, 1, 64)}


def test_another_list_of_models_makes_new_pods(answers: dict[str, dict[str, Any]]) -> None:
    """A file that changed below a running pod would be read at its next restart, by that alone."""
    text = answers["deployment of models"]["files"]["deployment.yaml"]
    listed = next(one for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap")
    digest = hashlib.sha256(listed["data"]["models.yaml"].rstrip("\n").encode()).hexdigest()

    assert listed["metadata"]["name"] == f"headlight-models-{digest[:8]}"


@every_deployment
def test_a_pod_is_a_whole_service(case: str, pod: dict[str, Any]) -> None:
    """Room for Ray's store, time to drain, someone who reaps, no more rights than it needs."""
    spec = pod["spec"]
    (container, *_) = spec["containers"]
    shared = next(each["emptyDir"] for each in spec["volumes"] if each["name"] == "shm")

    assert int(shared["sizeLimit"].removesuffix("Mi")) << 20 >= machine.STORE_BYTES
    assert spec["shareProcessNamespace"] is True
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {each["name"] for each in spec["volumes"]} == {
        each["name"] for each in container["volumeMounts"]
    }


@pytest.mark.parametrize(("case", "seconds"), [("deployment", 600), ("deployment alone", 901)])
def test_a_pod_has_the_time_to_start_that_the_values_give(
    documents: list[dict[str, Any]], pod: dict[str, Any], seconds: int
) -> None:
    """And an update waits for it."""
    probe = pod["spec"]["containers"][0]["startupProbe"]

    assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] <= seconds + 1
    assert of_kind(documents, "Deployment")["progressDeadlineSeconds"] > seconds


@pytest.mark.parametrize(("case", "seconds"), [("deployment", 25), ("deployment alone", 0)])
def test_a_pod_serves_on_until_no_service_leads_to_it(pod: dict[str, Any], seconds: float) -> None:
    """`headlight serve` answers 503 from the moment it is told to stop, so it is told late."""
    container = pod["spec"]["containers"][0]
    stop = {"preStop": {"exec": {"command": ["sleep", f"{seconds:g}"]}}} if seconds else None
    least = seconds + ingress.shutdown_seconds(read(pod))

    assert container.get("lifecycle") == stop
    assert read(pod).drain_seconds == 0
    assert pod["spec"]["terminationGracePeriodSeconds"] > least


@pytest.mark.parametrize("case", ["deployment", "deployment of more"])
def test_what_is_around_a_deployment_means_its_pods(
    documents: list[dict[str, Any]], pod: dict[str, Any]
) -> None:
    """Service, budget and policy choose by labels that the pods have; there is no head."""
    labels = pod["metadata"]["labels"].items()
    kinds = [one["kind"] for one in documents]
    budget, policy = of_kind(documents, "PodDisruptionBudget"), of_kind(documents, "NetworkPolicy")

    assert of_kind(documents, "Service")["selector"].items() <= labels
    assert budget["selector"]["matchLabels"].items() <= labels
    assert budget["maxUnavailable"] == 1 and "minAvailable" not in budget
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert of_kind(documents, "Deployment")["selector"]["matchLabels"].items() <= labels
    assert "RayService" not in kinds
    ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert ports == {8000}


@pytest.mark.parametrize("case", ["deployment"])
def test_prometheus_asks_every_pod(documents: list[dict[str, Any]]) -> None:
    """By the Service it would reach another one each time."""
    scrape = of_kind(documents, "ScrapeConfig")

    assert scrape["jobName"] == "headlight"
    assert "staticConfigs" not in scrape
    (found,) = scrape["kubernetesSDConfigs"]
    assert found["selectors"] == [{"role": "Pod", "label": "app=headlight-ray"}]


@pytest.mark.parametrize(("case", "pods"), [("deployment", 1), ("deployment by load", None)])
def test_a_horizontal_autoscaler_may_say_how_many_pods_there_are(
    documents: list[dict[str, Any]], pods: int | None
) -> None:
    """Each upgrade would set the number back where the chart had one."""
    assert of_kind(documents, "Deployment").get("replicas") == pods


@pytest.mark.parametrize("case", ["deployment of more"])
def test_a_pod_has_what_the_values_add(pod: dict[str, Any]) -> None:
    """As the cluster's pods have it."""
    spec = pod["spec"]

    assert pod["metadata"]["annotations"] == {"example.com/owner": "search"}
    assert pod["metadata"]["labels"]["cost-centre"] == "17"
    assert [each["name"] for each in spec["containers"]] == ["headlight", "logs"]
    assert [each["name"] for each in spec["initContainers"]] == ["wait"]
    assert spec["serviceAccountName"] == "weights"
    assert environment(pod)["HTTPS_PROXY"] == "http://proxy.example:3128"
