"""The chart deploy/helm/headlight, as Helm itself renders it; deploy/helm/render.py writes what follows.

What others' operators accept stands in schemas/, which crds.py writes.
"""

import json
import runpy
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from service.cluster import ingress, room
from service.settings import Settings

ROOT = Path(__file__).parent.parent.parent
DEPLOY, SCHEMAS = ROOT / "deploy", Path(__file__).parent / "schemas"
CHART = DEPLOY / "helm" / "headlight"
RENDER = runpy.run_path(str(DEPLOY / "helm" / "render.py"))
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
KUBERNETES = "1.37"  # of its own kinds' schemas

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "gpu": {"device": "cuda"},
    "volume": {"model": {"source": "pvc", "name": "minilm", "pvc": {"claimName": "models"}}},
    "hub": {
        "model": {"source": "hub", "name": "org/model@v1", "hub": {"secretName": "hub-token"}},
        "networkPolicy": {"dnsNamespace": "openshift-dns"},
    },
    "keys": {"apiKeys": {"secretName": "keys"}, "monitoring": {"secretName": "prometheus-key"}},
    "public metrics": {"apiKeys": {"secretName": "keys"}, "settings": {"public_metrics": True}},
    "redis": {
        "replicas": 3,
        "gcsFaultTolerance": {"redisAddress": "rediss://redis.db:6380", "secretName": "redis"},
    },
    "ingress": {
        "ingress": {"enabled": True, "className": "nginx", "host": "a.example", "tlsSecretName": "c"}
    },
    "route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateway"}],
            "hostnames": ["a.example"],
        }
    },
    "autoscaling": {"autoscaling": {"enabled": True, "minReplicas": 2}, "maxReplicas": 7},
    "registry": {
        "image": {
            "registry": "registry.example:5000/team",
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
            "cpu": {"digest": DIGEST},
        }
    },
    "settings": {
        "settings": {
            "deadline_seconds": 130.5,
            "drain_seconds": 0,
            "max_waiting_requests": 1024,
            "max_body_bytes": 4194304,
            "max_source_connections": 13,
            "cors_origins": ["https://a.example"],
            "tracing": "https://collector.example/v1/traces",
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"protocol": "TCP", "port": 4318}]}]},
    },
    "nothing": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "monitoring": {"scrape": False, "rules": False, "dashboards": False},
        "workers": {"topologySpread": []},
    },
}
# Values by what they are refused with
REFUSED: dict[str, dict[str, Any]] = {
    "additional properties 'replica' not allowed": {"replica": 2},
    "additional properties 'prot' not allowed": {"settings": {"prot": 1}},
    "additional properties 'port' not allowed": {"settings": {"port": 9000}},
    "at '/settings/deadline_seconds': maximum: got 601, want 600": {
        "settings": {"deadline_seconds": 601}
    },
    "at '/image/cpu/digest': 'sha256:12' does not match pattern": {
        "image": {"cpu": {"digest": "sha256:12"}}
    },
    "at '/device': value must be one of 'cpu', 'cuda'": {"device": "gpu"},
    "at '/replicas': minimum: got 0, want 1": {"replicas": 0},
    "at '/workers/gpu/resources': missing property 'nvidia.com/gpu'": {
        "workers": {"gpu": {"resources": {"nvidia.com/gpu": None}}}
    },
    "at '/gcsFaultTolerance/redisAddress': 'redis' does not match pattern": {
        "gcsFaultTolerance": {"redisAddress": "redis"}
    },
    f"image: set a tag or a digest, not both: 1.2.3 and {DIGEST}": {
        "image": {"cuda": {"tag": "1.2.3", "digest": DIGEST}}
    },
    "replicas 5 must not be more than maxReplicas, which is 4": {"replicas": 5},
    "autoscaling.minReplicas 3 must not be more than maxReplicas, which is 2": {
        "autoscaling": {"enabled": True, "minReplicas": 3},
        "maxReplicas": 2,
    },
    "model.pvc.claimName: with model.source pvc, name an existing claim": {
        "model": {"source": "pvc"}
    },
    "model.name ../a: with model.source pvc, a folder of the volume, such as minilm": {
        "model": {"source": "pvc", "name": "../a", "pvc": {"claimName": "models"}}
    },
    "model.name all-MiniLM-L6-v2: with model.source hub, org/name or org/name@revision": {
        "model": {"source": "hub"}
    },
    "model.pvc.claimName models: set model.source to pvc": {
        "model": {"pvc": {"claimName": "models"}}
    },
    "model.hub.secretName token: set model.source to hub": {
        "model": {"hub": {"secretName": "token"}}
    },
    "workers.cpu.resources.cpu 2500m: a replica needs 3": {
        "workers": {"cpu": {"resources": {"cpu": "2500m"}}}
    },
    "workers.gpu.resources.cpu 1: a replica needs 2": {
        "device": "cuda",
        "workers": {"gpu": {"resources": {"cpu": 1}}},
    },
    "monitoring.secretName: with API keys, Prometheus needs a key": {
        "apiKeys": {"secretName": "keys"}
    },
    "networkPolicy.extraEgress: allow the way to settings.tracing": {
        "settings": {"tracing": "http://collector:4318/v1/traces"}
    },
    "httpRoute.parentRefs: name the gateway it belongs to": {"httpRoute": {"enabled": True}},
    "release name 1st: KubeRay wants a letter": {"release": "1st"},
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What Helm makes of all the values above, in one process."""
    rendered: dict[str, dict[str, Any]] = RENDER["rendered"](**CASES, **REFUSED)
    return rendered


@pytest.fixture
def documents(answers: dict[str, dict[str, Any]], case: str) -> list[dict[str, Any]]:
    """Every object of a case."""
    files = answers[case]["files"].items()
    texts = (text for name, text in files if name.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


@pytest.fixture
def service(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The specification of its RayService."""
    (spec,) = (one["spec"] for one in documents if one["kind"] == "RayService")
    return spec


def config(service: dict[str, Any]) -> dict[str, Any]:
    """What Ray Serve is given."""
    loaded: dict[str, Any] = yaml.safe_load(service["serveConfigV2"])
    return loaded


def settings(service: dict[str, Any], **others: Any) -> Settings:
    """The settings of its replicas."""
    (application,) = config(service)["applications"]
    known = {name: value for name, value in application["args"].items() if name in Settings.model_fields}
    return Settings.model_validate(known | others)


def pods(service: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of the cluster: head and workers."""
    cluster = service["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """What its container starts with."""
    return {each["name"]: each.get("value", each) for each in pod["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("name", "made"),
    [("files/ray.yaml", "variables"), ("values.schema.json", "schema"), ("README.md", "page")],
)
def test_what_is_generated_is_the_codes(name: str, made: str) -> None:
    """Byte for byte; `python deploy/helm/render.py` writes it."""
    assert (CHART / name).read_text() == RENDER[made]()


def test_the_plain_manifests_are_what_the_chart_renders_with_its_defaults() -> None:
    """Byte for byte, and no file besides; `python deploy/helm/render.py` writes them."""
    there = {path.name: path.read_text() for path in (DEPLOY / "kuberay").iterdir()}

    assert there == RENDER["manifests"]()


def test_every_value_says_what_it_is() -> None:
    """In values.yaml, and by that in README.md."""
    assert [name for name, _, comment in RENDER["values"]() if not comment] == []


def test_the_chart_is_of_the_version_of_its_images() -> None:
    """That of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("said", REFUSED)
def test_wrong_values_stop_with_one_line_that_says_why(
    said: str, answers: dict[str, dict[str, Any]]
) -> None:
    """A typo, a value out of its bounds, or two values that do not go together."""
    refused = answers[said]["refused"]

    (line,) = (line for line in refused.splitlines() if said in line)
    assert len(line) < 250


@every_case
def test_helms_own_lint_finds_nothing(case: str, answers: dict[str, dict[str, Any]]) -> None:
    """In any set of values."""
    assert answers[case]["lint"] == []


@cache
def schema(kind: str) -> jsonschema.Draft202012Validator:
    """What the operator of a kind accepts."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{kind.lower()}.json").read_text()))


@every_case
def test_kubernetes_and_every_operator_know_each_key(documents: list[dict[str, Any]]) -> None:
    """An API server drops a key that it does not know."""
    for one in documents:
        if (SCHEMAS / f"{one['kind'].lower()}.json").exists():
            schema(one["kind"]).validate(one)
        else:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_a_key_that_nobody_knows_is_seen(answers: dict[str, dict[str, Any]]) -> None:
    """Deep in a pod, where a typo is likeliest."""
    one = yaml.safe_load(answers["defaults"]["files"]["rayservice.yaml"])
    pods(one["spec"])[1]["containers"][0]["volumeMounts"][0]["readonly"] = True

    with pytest.raises(jsonschema.ValidationError, match="'readonly' was unexpected"):
        schema("RayService").validate(one)


@every_case
def test_each_object_has_its_own_name_in_the_releases_namespace(
    documents: list[dict[str, Any]],
) -> None:
    """Two of one kind and name would be one."""
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]

    assert len(names) == len(set(names))
    assert {one["metadata"]["namespace"] for one in documents} == {"headlight"}


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
    assert head.keys() - expected.keys() <= {"HF_HUB_OFFLINE", "HF_TOKEN", "HEADLIGHT_API_KEYS_FILE"}


def test_a_node_drains_as_long_as_ray_env_says(answers: dict[str, dict[str, Any]]) -> None:
    """With default settings the chart's way to reckon gives the same."""
    service = yaml.safe_load(answers["defaults"]["files"]["rayservice.yaml"])["spec"]

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
    assert (head["automountServiceAccountToken"], worker["automountServiceAccountToken"]) == (True, False)


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


@pytest.mark.parametrize("case", ["keys"])
def test_keys_are_a_file_and_prometheus_has_its_own(
    service: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    """None of them is in a variable or in Serve's configuration."""
    for pod in pods(service):
        assert environment(pod)["HEADLIGHT_API_KEYS_FILE"] == "/etc/headlight/keys"
        (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == "keys")
        assert volume["secretName"] == "keys"
        assert volume["items"] == [{"key": "keys", "path": "keys"}]
        mount = {"name": "keys", "mountPath": "/etc/headlight", "readOnly": True}
        assert mount in pod["containers"][0]["volumeMounts"]
    scrape, of_ray = (one["spec"] for one in documents if one["kind"] == "ScrapeConfig")
    assert scrape["authorization"] == {"credentials": {"name": "prometheus-key", "key": "key"}}
    assert "authorization" not in of_ray


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


def outward(documents: list[dict[str, Any]]) -> Iterator[int]:
    """The ports to which any pod may connect beyond its own cluster, names aside."""
    for one in documents:
        if one["kind"] == "NetworkPolicy":
            for rule in one["spec"]["egress"]:
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
    out = [rule for rule in policy["egress"] if {"protocol": "TCP", "port": 443} in rule.get("ports", ())]

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
        expected = {"ray": [True, True], "head": [True, False], "workers": [False, True]}
        assert meant == expected[name.removeprefix("headlight-")]
    for spread in group["template"]["spec"].get("topologySpreadConstraints", ()):
        assert spread["labelSelector"]["matchLabels"] == worker


@pytest.mark.parametrize("case", ["defaults"])
def test_what_prometheus_and_grafana_read_is_the_projects_own(
    documents: list[dict[str, Any]],
) -> None:
    """Rules, dashboards, and the jobs' names, by which both of them ask."""
    rules = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "PrometheusRule"}
    boards = [one for one in documents if one["kind"] == "ConfigMap"]
    scrapes = [one["spec"] for one in documents if one["kind"] == "ScrapeConfig"]
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]

    for path in (DEPLOY / "prometheus" / "rules").iterdir():
        assert rules[f"headlight-{path.stem}"] == yaml.safe_load(path.read_text())
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in boards)
    shown = {name: text for one in boards for name, text in one["data"].items()}
    assert shown == {path.name: path.read_text() for path in (DEPLOY / "grafana").glob("*.json")}
    assert [one["jobName"] for one in scrapes] == [job["job_name"] for job in jobs]
    assert scrapes[0]["scrapeInterval"] == jobs[0]["scrape_interval"]


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
