"""deploy/helm/examples/autoscaling: pods of a Deployment that follow its work."""

import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_chart import KUBERNETES, SCHEMAS
from tests.deploy.test_scrapes import PATIENCE_SECONDS, prometheus, relabelings

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "helm" / "examples" / "autoscaling"
HPA, ADAPTER, KEDA = (
    yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in ("hpa", "adapter", "keda")
)
PODS = ("headlight-a", "headlight-b")
(RULE,) = ADAPTER["rules"]["custom"]
# What KEDA asks, and prometheus-adapter of these pods
OF_ALL = KEDA["spec"]["triggers"][0]["metadata"]["query"]
OF_EACH = RULE["metricsQuery"]
for template, value in {
    "<<.Series>>": "headlight_waiting_seconds",
    "<<.LabelMatchers>>": f'namespace="headlight",pod=~"{"|".join(PODS)}"',
    "<<.GroupBy>>": "pod",
}.items():
    OF_EACH = OF_EACH.replace(template, value)


def test_kubernetes_and_keda_know_each_key() -> None:
    """By their own schemas."""
    for version in KUBERNETES:
        kubernetes_validate.validate(HPA, version, strict=True)
    jsonschema.validate(KEDA, json.loads((SCHEMAS / "scaledobject.json").read_text()))


@pytest.mark.parametrize("case", ["deployment by load"])
def test_they_scale_the_deployment_that_leaves_them_its_number(
    documents: list[dict[str, Any]],
) -> None:
    """By one metric, to the same bounds."""
    (main,) = (one for one in documents if one["kind"] == "Deployment")
    hpa, keda = HPA["spec"], KEDA["spec"]
    (metric,), (trigger,) = hpa["metrics"], keda["triggers"]

    assert (
        main["metadata"]["name"] == hpa["scaleTargetRef"]["name"] == keda["scaleTargetRef"]["name"]
    )
    assert {one["metadata"]["namespace"] for one in (main, HPA, KEDA)} == {"headlight"}
    assert "replicas" not in main["spec"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (
        keda["minReplicaCount"],
        keda["maxReplicaCount"],
    )
    assert metric["pods"]["metric"]["name"] == RULE["seriesQuery"].partition("{")[0]
    assert metric["pods"]["target"]["averageValue"] == trigger["metadata"]["threshold"]


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
def test_the_queries_are_seconds_of_work(tmp_path: Path) -> None:
    """Of one release alone: each pod's, of all its models, and all pods' together."""
    labels = 'job="headlight", namespace="headlight", release="headlight"'
    series = {
        f'headlight_waiting_seconds{{{labels}, pod="headlight-a", model="a"}}': "2x9",
        f'headlight_waiting_seconds{{{labels}, pod="headlight-a", model="b"}}': "4x9",
        f'headlight_waiting_seconds{{{labels}, pod="headlight-b", model="a"}}': "8x9",
        'headlight_waiting_seconds{job="headlight", namespace="b", release="headlight"}': "99x9",
    }
    each = [{"labels": f'{{pod="{pod}"}}', "value": n} for pod, n in zip(PODS, (6, 8), strict=True)]
    expected = {OF_ALL: [{"labels": "{}", "value": 14}], OF_EACH: each}
    test = {
        "interval": "15s",
        "input_series": [{"series": one, "values": said} for one, said in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "2m", "exp_samples": samples}
            for query, samples in expected.items()
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))

    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prove
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian has it)"
)
@pytest.mark.parametrize("case", ["deployment by load", "defaults"])
async def test_a_prometheus_that_scrapes_as_the_chart_says_answers_them(
    documents: list[dict[str, Any]], address: str, tmp_path: Path
) -> None:
    """By a ServiceMonitor or a ScrapeConfig; the page is a replica's own."""
    (scrape,) = (
        one["spec"].get("endpoints", [one["spec"]])[0]
        for one in documents
        if one["kind"] in ("ServiceMonitor", "ScrapeConfig")
    )
    found = {"container_port_name": "serve", "phase": "Running"}
    meta = {f"__meta_kubernetes_pod_{name}": value for name, value in found.items()}
    meta["__meta_kubernetes_service_name"] = "headlight-serve-svc"
    job = {
        "job_name": "headlight",
        "static_configs": [
            {"targets": [], "labels": meta | {"__meta_kubernetes_pod_name": pod}} for pod in PODS
        ],
        "relabel_configs": relabelings(scrape),
    }

    def ask(url: str, query: str) -> list[dict[str, Any]]:
        """What it says once it has scraped both."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                told = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()
                if told["data"]["result"]:
                    return list(told["data"]["result"])
            except (httpx.TransportError, ValueError, KeyError):  # it starts
                pass
            time.sleep(0.05)
        raise AssertionError(query)

    with prometheus(tmp_path, [job], address.removeprefix("http://")) as url:
        await asyncio.to_thread(ask, url, "count(headlight_waiting_seconds) == 2")
        (every,) = await asyncio.to_thread(ask, url, OF_ALL)
        each = await asyncio.to_thread(ask, url, OF_EACH)

    assert every["metric"] == {} and float(every["value"][1]) >= 0
    assert sorted(one["metric"]["pod"] for one in each) == list(PODS)
