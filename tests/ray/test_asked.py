"""What the chart's objects have Kubernetes and Prometheus ask, asked of whole services.

tests/deploy/test_chart_asked.py asks the same of every set of values, in process.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tests.deploy.asked import SERVE, Ask, asks
from tests.manifests import rendered
from tests.ray import drill
from tests.ray.rotation import KEY, OTHER, Keys
from tests.ray.test_deploy import VARIABLES, cluster, ready, run

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

HOST = "a.example"
# keys, host names, two models: all that decides who is answered
VALUES: dict[str, Any] = {
    "apiKeys": {"secretName": "keys"},
    "monitoring": {"secretName": "prometheus-key"},
    "settings": {"allowed_hosts": [HOST]},
    "models": [{"path": "again", "name": "all-MiniLM-L6-v2"}],
    "workers": {"cpu": {"threads": 1, "resources": {"limits": {"memory": "3Gi"}}}},
    "ingress": {"enabled": True, "host": HOST},
}


def objects(**values: Any) -> list[dict[str, Any]]:
    """What the chart renders."""
    texts = (text for name, text in rendered(**values).items() if name.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def refused(asked: Iterable[Ask], where: Callable[[Ask], str]) -> list[tuple[Ask, int, str]]:
    """Ask all; what was not answered as it must be.

    Args:
        where: scheme, address and port of what a question is for.
    """
    found = []
    with httpx.Client(timeout=30, headers={"Content-Type": "application/json"}) as client:
        for ask in asked:
            headers = ask.headers | {"Host": ask.host}
            if ask.keyed:
                key = OTHER if ask.by == "client" else KEY
                headers["Authorization"] = f"Bearer {key}"
            body = b"{}" if ask.method == "POST" else None
            answer = client.request(
                ask.method, where(ask) + ask.path, headers=headers, content=body
            )
            wrong = {401, 403, 404, 421} if ask.by == "client" else set(range(201, 600))
            if answer.status_code in wrong or answer.status_code >= 500:
                found.append((ask, answer.status_code, answer.text[:200]))
    return found


@pytest.fixture
def mounted(tmp_path: Path) -> Keys:
    """A Secret as it is mounted: one key is Prometheus' own."""
    made = Keys(tmp_path / "keys")
    made.folder.mkdir()
    made.write({KEY: "prometheus:{} metrics", OTHER: "me:{}"})
    return made


def test_a_kubelet_is_answered_by_a_pods_address(running: "Service", keyed: "Service") -> None:
    """Past HAProxy and with TLS, though one service answers to this machine's own names alone."""
    (main,) = (one for one in objects() if one["kind"] == "Deployment")
    probes = {each for each in main["spec"]["template"]["spec"]["containers"][0] if "Probe" in each}
    asked = [ask for ask in asks([main]) if ask.by == "kubelet"]
    scrape = {"Host": asked[0].host}

    assert probes == {"startupProbe", "readinessProbe", "livenessProbe"} and asked
    assert refused(asked, lambda ask: running.url) + refused(asked, lambda ask: keyed.url) == []
    assert httpx.get(f"{running.url}/metrics", headers=scrape).status_code == 421


@pytest.mark.prove
def test_all_that_a_deployment_has_others_ask_is_answered(
    start: "Start", mounted: Keys, tmp_path: Path
) -> None:
    """By the command, variables and files of its pod."""
    made = objects(kind="Deployment", **VALUES)
    (main,) = (one for one in made if one["kind"] == "Deployment")
    (models,) = (one["data"]["models.yaml"] for one in made if one["kind"] == "ConfigMap")
    (pod,) = main["spec"]["template"]["spec"]["containers"]
    file = tmp_path / "models.yaml"
    file.write_text(models)
    variables = {each["name"]: each["value"] for each in pod["env"]}
    variables["HEADLIGHT_API_KEYS_FILE"] = str(mounted.file)
    arguments = [str(file) if each.endswith("models.yaml") else each for each in pod["args"][1:]]

    asked = list(asks(made))
    assert {ask.by for ask in asked} == {"kubelet", "prometheus", "client"}
    assert {ask.port for ask in asked} == {SERVE}
    with start(*arguments, variables=variables) as service:
        assert refused(asked, lambda ask: service.url) == []


@pytest.mark.prove
@pytest.mark.parametrize("most", [2, 8])
def test_all_that_a_rayservice_has_others_ask_is_answered(mounted: Keys, most: int) -> None:
    """By its Serve configuration, on a cluster that asks for Ray's token; its own pages too.

    With eight replicas of each model at most Prometheus asks each replica by itself.
    """
    made = objects(kind="RayService", maxReplicas=most, **VALUES)
    (main,) = (one["spec"] for one in made if one["kind"] == "RayService")
    configuration = yaml.safe_load(main["serveConfigV2"])
    flags = "--node-ip-address=127.0.0.1"
    with cluster(f"{VARIABLES}; export HEADLIGHT_API_KEYS_FILE={mounted.file}", flags) as here:
        configuration["http_options"]["port"] = here.port
        here.ask("/api/serve/applications/", "PUT", json=configuration)
        here.wait(lambda found: len(found) == 2 and run(found, 1))
        for path in ("", "/again"):
            drill.wait(lambda path=path: ready(f"{here.url}{path}/ready"), "HAProxy")
        ports = {
            SERVE: here.port,
            52365: here.agent,
            8080: here.export,
            9101: int(here.environment["RAY_SERVE_HAPROXY_METRICS_PORT"]),
        }
        asked = list(asks(made))
        if most == 8:
            bearer = {"Host": HOST, "Authorization": f"Bearer {KEY}"}
            targets = partial(httpx.get, f"{here.url}/metrics/targets", headers=bearer)
            drill.wait(lambda: targets().is_success, "Ray's controller")  # 503 while it is busy
            lists = targets().json()
            (ports[30000], *_) = (
                int(each.rpartition(":")[2]) for one in lists for each in one["targets"]
            )
        assert {ask.port for ask in asked} == ports.keys()
        assert refused(asked, lambda ask: f"http://127.0.0.1:{ports[ask.port]}") == []
