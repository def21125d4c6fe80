"""The cluster that the chart asks for: what its pods start with, may do and serve."""

import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from service.preflight import serve_file

from service.cluster import ingress
from service.preflight import machine
from service.tables.settings import Settings
from tests.deploy.values import CASES, DIGEST, every_cluster

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def config(service: dict[str, Any]) -> dict[str, Any]:
    """What Ray Serve is given."""
    loaded: dict[str, Any] = yaml.safe_load(service["serveConfigV2"])
    return loaded


def settings(service: dict[str, Any], index: int = 0, **others: Any) -> Settings:
    """The settings of a model's replicas."""
    args = config(service)["applications"][index]["args"]
    return Settings.model_validate(args | others)


def most(case: str) -> list[int]:
    """How many replicas of each model there may be."""
    first = CASES[case].get("maxReplicas", 4)
    return [first, *(each.get("maxReplicas", first) for each in CASES[case].get("models", ()))]


def pods(service: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of the cluster: head and workers."""
    cluster = service["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """What its container starts with."""
    return {each["name"]: each.get("value", each) for each in pod["containers"][0]["env"]}


@every_cluster
def test_every_pod_starts_with_the_variables_of_its_settings(
    case: str, service: dict[str, Any]
) -> None:
    """Head and workers alike, as deploy/serve/ray.env; the token's are KubeRay's."""
    expected = ingress.cluster_variables(settings(service))
    del expected["RAY_AUTH_MODE"]
    connections = (
        ingress.max_ongoing_requests(settings(service, i)) * n for i, n in enumerate(most(case))
    )
    expected[ingress.HAPROXY_MAXCONN] = str(sum(connections) + ingress.SPARE_REQUESTS)
    expected[ingress.PROGRAM] = f"/opt/headlight/bin/{ingress.WRAPPER}"
    expected["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = str(
        int(-(-ingress.shutdown_seconds(settings(service)) // 1)) + 30
    )

    head, worker = map(environment, pods(service))

    assert head == worker
    assert expected.items() <= head.items()
    assert head.keys() - expected.keys() <= {
        "HAPROXY_METRICS_HOST",
        "RAY_SERVE_HAPROXY_METRICS_PORT",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HEADLIGHT_API_KEYS_FILE",
        *(each["name"] for each in CASES[case].get("pods", {}).get("extraEnv", ())),
    }


@every_cluster
def test_settings_are_those_of_the_values(case: str, service: dict[str, Any]) -> None:
    """Zero and false too, which Helm's own ways to merge take for nothing."""
    asked = CASES[case].get("settings", {})

    assert config(service)["applications"][0]["args"].items() >= asked.items()


@every_cluster
def test_ray_knows_every_key_of_the_service(
    case: str, answers: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """`headlight doctor --file` reads the RayService as before a deployment."""
    file = tmp_path / "rayservice.yaml"
    file.write_text(answers[case]["files"]["rayservice.yaml"])

    assert list(map(str, serve_file.find_dropped(file))) == []


@pytest.mark.parametrize("case", ["cluster"])
def test_a_node_drains_as_long_as_ray_env_says(service: dict[str, Any]) -> None:
    """With default settings the chart's way to reckon gives the same."""
    seconds = environment(pods(service)[0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]

    assert seconds == str(ingress.NODE_DRAIN_SECONDS)


@every_cluster
def test_no_pod_is_killed_before_it_has_drained(service: dict[str, Any]) -> None:
    """Cluster > pod > node > replica."""
    replica = ingress.shutdown_seconds(settings(service))

    for pod in pods(service):
        grace = pod["terminationGracePeriodSeconds"]
        node = int(environment(pod)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert service["rayClusterDeletionDelaySeconds"] > grace > node > replica


@every_cluster
def test_no_pod_has_more_rights_than_it_needs(service: dict[str, Any]) -> None:
    """A user of its own, nothing to write to but its volumes, memory that is its own."""
    for pod in pods(service):
        container = pod["containers"][0]
        outer, inner = pod["securityContext"], container["securityContext"]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}

        assert outer["runAsNonRoot"] is True and outer.get("runAsUser", 1000) == 1000
        assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert inner["readOnlyRootFilesystem"] is True
        assert inner["allowPrivilegeEscalation"] is False
        assert pod["enableServiceLinks"] is False
        assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
        assert {"tmp", "home", "shm"} <= mounts.keys()
    assert service["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    head, worker = pods(service)
    assert (head["automountServiceAccountToken"], worker["automountServiceAccountToken"]) == (
        True,
        False,
    )


@every_cluster
def test_kubectl_logs_has_the_replicas_lines(service: dict[str, Any]) -> None:
    """Of the pods that the runbooks name; else they are in files that go with the pod.

    tests/ray/test_deploy.py looks at what Ray then writes.
    """
    runbook = (DEPLOY.parent / "docs" / "runbooks" / "HeadlightNotReady.md").read_text()
    (selector,) = set(re.findall(r"logs --selector (\S+) --all-containers", runbook))

    cluster = service["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], worker):
        assert group["rayStartParams"]["no-redirect-output"] == "true"
    assert worker["template"]["spec"]["containers"][0]["name"] == "ray-worker"
    asked = dict(pair.split("=") for pair in selector.split(","))
    assert asked.items() <= worker["template"]["metadata"]["labels"].items()


@every_cluster
def test_rays_store_fits_into_the_shared_memory(service: dict[str, Any]) -> None:
    """A larger one would go to the disk below /tmp."""
    cluster = service["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        store = int(group["rayStartParams"]["object-store-memory"])
        volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
        shared = volumes["shm"]["emptyDir"]

        assert shared == {"medium": "Memory", "sizeLimit": f"{2 * store >> 20}Mi"}
        assert store >= machine.STORE_BYTES


@every_cluster
def test_ray_has_room_for_a_replica_in_each_worker(case: str, service: dict[str, Any]) -> None:
    """And pods for as many as there may be, and for the one in five that an update starts first."""
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    started = group["rayStartParams"]
    asked_for = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    applications = config(service)["applications"]

    for index, application in enumerate(applications):
        (deployment,) = application["deployments"]
        asked = deployment["ray_actor_options"]
        assert asked["num_cpus"] == int(started["num-cpus"]) <= float(asked_for["cpu"])
        assert asked.get("num_gpus", 0) == int(started.get("num-gpus", 0))
        assert settings(service, index).threads is not None
        assert deployment["max_replicas_per_node"] == 1
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert len(applications) == len(most(case))
    assert group["maxReplicas"] == sum(n + math.ceil(n / 5) for n in most(case))


@pytest.mark.parametrize(("case", "file"), [("cluster", "laptop.yaml"), ("gpu", "gpu.yaml")])
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
    """Of the settings; a fixed number next to them would win."""
    (application,) = config(service)["applications"]
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]

    assert {"min_replicas": 2, "max_replicas": 7}.items() <= application["args"].items()
    assert "num_replicas" not in application["deployments"][0]
    assert (group["replicas"], group["maxReplicas"]) == (2, 9)


@pytest.mark.parametrize("case", ["own-model"])
def test_a_model_on_a_volume_is_read_from_there(service: dict[str, Any]) -> None:
    """By the head too, where Ray builds the application."""
    assert settings(service).model == "/models/my-model"
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


@pytest.mark.parametrize("case", ["pods"])
def test_every_pod_has_what_the_values_add(service: dict[str, Any]) -> None:
    """Head and workers; Ray's container stays the first one."""
    values = CASES["pods"]["pods"]
    cluster = service["rayClusterConfig"]

    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        metadata, spec = group["template"]["metadata"], group["template"]["spec"]
        container, *beside = spec["containers"]
        assert container["name"] in ("ray-head", "ray-worker")
        assert values["annotations"].items() <= metadata["annotations"].items()
        assert metadata["labels"].items() >= {**values["labels"], "app": "headlight-ray"}.items()
        assert all(each in container["env"] for each in values["extraEnv"])
        assert container["envFrom"] == values["envFrom"]
        assert all(each in spec["volumes"] for each in values["extraVolumes"])
        assert all(each in container["volumeMounts"] for each in values["extraVolumeMounts"])
        assert (spec["initContainers"], beside) == (values["initContainers"], values["sidecars"])


@pytest.mark.parametrize("case", ["pods"])
def test_head_and_workers_are_placed_apart(service: dict[str, Any]) -> None:
    """Each as its own values say."""
    for pod, values in zip(
        pods(service), (CASES["pods"]["head"], CASES["pods"]["workers"]["cpu"]), strict=True
    ):
        assert {name: pod[name] for name in values} == values


@pytest.mark.parametrize("case", ["weights-s3", "weights-oci"])
def test_the_weights_of_an_example_lie_where_the_model_is_read(service: dict[str, Any]) -> None:
    """On a volume of every pod, for Headlight to read only."""
    for pod in pods(service):
        mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
        (mount,) = (each for path, each in mounts.items() if path == "/weights")
        assert settings(service).model.startswith("/weights/")
        assert mount["readOnly"] is True
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("case", "resource"),
    [("part of a gpu", "nvidia.com/mig-1g.10gb"), ("another cluster's", "amd.com/gpu")],
)
def test_a_part_of_a_gpu_counts_as_one(service: dict[str, Any], resource: str) -> None:
    """KubeRay counts only resources whose names end in gpu."""
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]

    assert limits.keys() - {"memory"} == {resource}
    assert group["rayStartParams"]["num-gpus"] == "1"


@pytest.mark.parametrize("case", ["another cluster's"])
def test_a_cluster_may_choose_the_user_and_the_runtime(service: dict[str, Any]) -> None:
    """OpenShift gives each namespace users of its own, and refuses a pod that names one."""
    for pod in pods(service):
        assert pod["runtimeClassName"] == "amd"
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


@pytest.mark.parametrize("case", ["models"])
def test_several_models_stand_below_paths_of_their_own(service: dict[str, Any]) -> None:
    """With what they say of themselves, and what all have, but for a name."""
    first, base, again = config(service)["applications"]
    names = [(each["name"], each["route_prefix"]) for each in (first, base, again)]
    counts = [each["deployments"][0]["num_replicas"] for each in (first, base, again)]

    assert names == [("headlight", "/"), ("base", "/base"), ("again", "/again")]
    assert counts == [2, 1, 2]
    assert [settings(service, i).access_log for i in range(3)] == [True, False, True]
    assert [settings(service, i).max_sequences for i in range(3)] == [64, 64, 64]
    assert first["args"]["served_model_name"] == "small"
    assert "served_model_name" not in base["args"] | again["args"]


@pytest.mark.parametrize("case", ["models by load"])
def test_each_of_several_models_follows_its_own_load(service: dict[str, Any]) -> None:
    """Between bounds of its own."""
    bounds = [
        (each["args"]["min_replicas"], each["args"]["max_replicas"])
        for each in config(service)["applications"]
    ]

    assert bounds == [(2, 4), (3, 6)]


@pytest.mark.parametrize("case", ["steps"])
def test_kuberay_brings_in_a_cluster_by_steps(service: dict[str, Any]) -> None:
    """Which it does only together with Ray's autoscaler."""
    options = {"gatewayClassName": "istio", "maxSurgePercent": 20, "stepSizePercent": 10}
    options["intervalSeconds"] = 60

    assert service["upgradeStrategy"] == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": options,
    }
    assert service["rayClusterConfig"]["enableInTreeAutoscaling"] is True
