"""The cluster that the chart asks for: what its pods start with, may do and serve."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cluster import ingress, room
from service.settings import Settings
from tests.deploy.values import CASES, DIGEST, every_case

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def config(service: dict[str, Any]) -> dict[str, Any]:
    """What Ray Serve is given."""
    loaded: dict[str, Any] = yaml.safe_load(service["serveConfigV2"])
    return loaded


def settings(service: dict[str, Any], **others: Any) -> Settings:
    """The settings of its replicas."""
    (application,) = config(service)["applications"]
    known = {
        name: value for name, value in application["args"].items() if name in Settings.model_fields
    }
    return Settings.model_validate(known | others)


def pods(service: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of the cluster: head and workers."""
    cluster = service["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """What its container starts with."""
    return {each["name"]: each.get("value", each) for each in pod["containers"][0]["env"]}


@every_case
def test_every_pod_starts_with_the_variables_of_its_settings(
    case: str, service: dict[str, Any]
) -> None:
    """Head and workers alike, as deploy/serve/ray.env; the token's are KubeRay's."""
    most = CASES[case].get("maxReplicas", 4)
    expected = ingress.clustered(settings(service, replicas=most))
    del expected["RAY_AUTH_MODE"]
    expected[ingress.PROGRAM] = f"/opt/headlight/bin/{ingress.WRAPPER}"
    expected["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = str(
        int(-(-ingress.shutdown_seconds(settings(service)) // 1)) + 30
    )

    head, worker = map(environment, pods(service))

    assert head == worker
    assert expected.items() <= head.items()
    assert head.keys() - expected.keys() <= {
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HEADLIGHT_API_KEYS_FILE",
    }


@pytest.mark.parametrize("case", ["defaults"])
def test_a_node_drains_as_long_as_ray_env_says(service: dict[str, Any]) -> None:
    """With default settings the chart's way to reckon gives the same."""
    seconds = environment(pods(service)[0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]

    assert seconds == str(ingress.NODE_DRAIN_SECONDS)


@every_case
def test_no_pod_is_killed_before_it_has_drained(service: dict[str, Any]) -> None:
    """Cluster > pod > node > replica > request, and Ray waits for our own refusal."""
    replica = ingress.shutdown_seconds(settings(service))

    for pod in pods(service):
        grace = pod["terminationGracePeriodSeconds"]
        node = int(environment(pod)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert service["rayClusterDeletionDelaySeconds"] > grace > node > replica
    deadline = settings(service).deadline_seconds
    assert config(service)["http_options"]["request_timeout_s"] == deadline + 5


@every_case
def test_no_pod_has_more_rights_than_it_needs(service: dict[str, Any]) -> None:
    """A user of its own, nothing to write to but its volumes, memory that is its own."""
    for pod in pods(service):
        (container,) = pod["containers"]
        outer, inner = pod["securityContext"], container["securityContext"]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}

        assert outer["runAsNonRoot"] is True and outer["runAsUser"] == 1000
        assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert inner["readOnlyRootFilesystem"] is True
        assert inner["allowPrivilegeEscalation"] is False
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert pod["enableServiceLinks"] is False
        assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
        assert {"tmp", "home", "shm"} <= mounts.keys()
    assert service["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    head, worker = pods(service)
    assert (head["automountServiceAccountToken"], worker["automountServiceAccountToken"]) == (
        True,
        False,
    )


@every_case
def test_kubectl_logs_has_the_replicas_lines(service: dict[str, Any]) -> None:
    """Of the pods that the runbooks name; else they are in files that go with the pod.

    tests/ray/test_deploy.py looks at what Ray then writes.
    """
    runbook = (DEPLOY.parent / "docs" / "runbooks" / "HeadlightNotReady.md").read_text()
    (selector,) = set(re.findall(r"kubectl logs --selector (\S+) --container ray-worker", runbook))

    cluster = service["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], worker):
        assert group["rayStartParams"]["no-redirect-output"] == "true"
    assert [each["name"] for each in worker["template"]["spec"]["containers"]] == ["ray-worker"]
    assert (
        dict(pair.split("=") for pair in selector.split(","))
        == (worker["template"]["metadata"]["labels"])
    )


@every_case
def test_rays_store_fits_into_the_shared_memory(service: dict[str, Any]) -> None:
    """A larger one would go to the disk below /tmp."""
    cluster = service["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        store = int(group["rayStartParams"]["object-store-memory"])
        volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
        shared = volumes["shm"]["emptyDir"]

        assert shared == {"medium": "Memory", "sizeLimit": f"{2 * store >> 20}Mi"}
        assert store >= room.STORE_BYTES["haproxy"]


@every_case
def test_ray_has_room_for_a_replica_in_each_worker(case: str, service: dict[str, Any]) -> None:
    """And pods for as many as there may be."""
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    (deployment,) = config(service)["applications"][0]["deployments"]
    asked = deployment["ray_actor_options"]

    assert asked["num_cpus"] <= float(limits["cpu"]) < 2 * asked["num_cpus"] + 1
    assert asked.get("num_gpus", 0) == limits.get("nvidia.com/gpu", 0)
    assert settings(service).threads is not None
    assert deployment["max_replicas_per_node"] == 1
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert group["maxReplicas"] == CASES[case].get("maxReplicas", 4)


@pytest.mark.parametrize(("case", "file"), [("defaults", "laptop.yaml"), ("gpu", "gpu.yaml")])
def test_kubernetes_serves_what_the_files_of_a_cluster_say(
    file: str, service: dict[str, Any]
) -> None:
    """On processors with as many threads as the pods have cores for."""
    expected = yaml.safe_load((DEPLOY / "serve" / file).read_text())
    if file == "laptop.yaml":
        expected["http_options"]["host"] = "0.0.0.0"
        (application,) = expected["applications"]
        application["args"]["threads"] = 3
        application["deployments"][0]["ray_actor_options"]["num_cpus"] = 3
        application["deployments"][0]["max_replicas_per_node"] = 1

    assert config(service) == expected


@pytest.mark.parametrize("case", ["autoscaling"])
def test_replicas_follow_the_load_between_their_bounds(service: dict[str, Any]) -> None:
    """Of the settings; a fixed number beside them would win."""
    (application,) = config(service)["applications"]
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]

    assert {"min_replicas": 2, "max_replicas": 7}.items() <= application["args"].items()
    assert "num_replicas" not in application["deployments"][0]
    assert (group["replicas"], group["maxReplicas"]) == (2, 7)


@pytest.mark.parametrize("case", ["volume"])
def test_a_model_on_a_volume_is_read_from_there(service: dict[str, Any]) -> None:
    """By the head too, where Ray builds the application."""
    assert settings(service).model == "/models/minilm"
    for pod in pods(service):
        claim = {"claimName": "models", "readOnly": True}
        assert {"name": "models", "persistentVolumeClaim": claim} in pod["volumes"]
        mount = {"name": "models", "mountPath": "/models", "readOnly": True}
        assert mount in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("case", ["hub"])
def test_a_model_of_the_hub_is_fetched_with_its_token(service: dict[str, Any]) -> None:
    """Into a volume with room for it."""
    assert settings(service).model == "org/model@v1"
    for pod in pods(service):
        variables = environment(pod)
        reference = {"secretKeyRef": {"name": "hub-token", "key": "token"}}
        assert variables["HF_TOKEN"]["valueFrom"] == reference
        assert variables["HF_HUB_OFFLINE"] == "0"
        assert {"name": "home", "emptyDir": {"sizeLimit": "20Gi"}} in pod["volumes"]


@pytest.mark.parametrize("case", ["registry"])
def test_an_image_is_named_in_full(service: dict[str, Any]) -> None:
    """Registry, repository and digest; with the Secret that opens the registry."""
    for pod in pods(service):
        (container,) = pod["containers"]
        assert container["image"] == f"registry.example:5000/team/headlight@{DIGEST}"
        assert container["imagePullPolicy"] == "Always"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("case", ["gpu"])
def test_only_workers_run_the_image_with_cuda(service: dict[str, Any]) -> None:
    """The head has no GPU."""
    head, worker = (pod["containers"][0]["image"] for pod in pods(service))

    assert head == "registry.example/headlight:0.1.0-cpu"
    assert worker == "registry.example/headlight:0.1.0-cuda"


@pytest.mark.parametrize("case", ["keys"])
def test_keys_are_a_file(service: dict[str, Any]) -> None:
    """None of them is in a variable or in Serve's configuration."""
    for pod in pods(service):
        assert environment(pod)["HEADLIGHT_API_KEYS_FILE"] == "/etc/headlight/keys"
        (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == "keys")
        assert volume["secretName"] == "keys"
        assert volume["items"] == [{"key": "keys", "path": "keys"}]
        mount = {"name": "keys", "mountPath": "/etc/headlight", "readOnly": True}
        assert mount in pod["containers"][0]["volumeMounts"]
