"""Many releases under one Prometheus and one Grafana: each is told apart, none is judged twice."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.observe.families import BUCKETS

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
PROMETHEUS, GRAFANA = DEPLOY / "prometheus", DEPLOY / "grafana"
# One name in two namespaces, two names in one; joined by a hyphen, two of them would be one
RELEASES = [("team-a", "search"), ("team-b", "search"), ("team-b", "rank"), ("team", "a-search")]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
Objects = list[dict[str, Any]]


def loaded(answer: Mapping[str, Any]) -> Objects:
    """Every object of an answer."""
    files = (text for name, text in answer["files"].items() if name.endswith(".yaml"))
    return [one for text in files for one in yaml.load_all(text, yaml.CSafeLoader) if one]


@pytest.fixture(scope="module")
def releases(render: dict[str, Any]) -> dict[tuple[str, str], Objects]:
    """What each release renders, by namespace and name."""
    cases = {
        "/".join(one): {"namespace": one[0], "release": one[1], "kind": "RayService"}
        for one in RELEASES
    }
    answers = render["rendered"](**cases)
    return {one: loaded(answers["/".join(one)]) for one in RELEASES}


@pytest.fixture(scope="module")
def once(render: dict[str, Any]) -> Objects:
    """What is installed once for all."""
    answer = render["rendered"](render["MONITORING"], once={"namespace": "monitoring"})["once"]
    assert answer["lint"] == []
    return loaded(answer)


def of(kind: str, documents: Objects) -> Objects:
    """The specifications of a kind."""
    return [one["spec"] for one in documents if one["kind"] == kind]


def test_only_what_is_installed_once_has_rules_and_dashboards(
    releases: dict[tuple[str, str], Objects], once: Objects
) -> None:
    """With each release they would come twice."""
    kinds = {one["kind"] for documents in releases.values() for one in documents}

    assert not kinds & {"PrometheusRule", "ConfigMap"}
    assert {one["kind"] for one in once} == {"PrometheusRule", "ConfigMap"}


def test_the_rules_are_the_projects_own(once: Objects) -> None:
    """Each file, as Prometheus without an operator reads it."""
    files = [PROMETHEUS / "rules" / f"{name}.yml" for name in ("alerts", "recording")]

    assert of("PrometheusRule", once) == [yaml.safe_load(path.read_text()) for path in files]
    assert {*files} == {*(PROMETHEUS / "rules").iterdir()}


def test_the_objectives_are_those_of_the_values(
    render: dict[str, Any], once: Objects, tmp_path: Path
) -> None:
    """In rules, summaries and the dashboard; a bound of the histogram, as Prometheus writes it."""
    own = {"availability": 0.995, "latency": 0.95, "seconds": 1}
    answer = render["rendered"](render["MONITORING"], one={"objectives": own})["one"]
    text, default = (json.dumps(each) for each in (loaded(answer), once))

    for project, ours in {
        "(1 - 0.999)": "(1 - 0.995)",
        "(1 - 0.99)": "(1 - 0.95)",
        r"le=\"0.25\"": r"le=~\"1([.]0)?\"",
        "250 ms": "1000 ms",
        "99.9 %": "99.5 %",
        "99 % of": "95 % of",
    }.items():
        assert (project in default, project in text, ours in text) == (True, False, True), project
    for number, spec in enumerate(of("PrometheusRule", loaded(answer))):
        (tmp_path / f"{number}.yml").write_text(yaml.safe_dump(spec))
    if shutil.which("promtool"):
        command = ["promtool", "check", "rules", *tmp_path.iterdir()]
        assert subprocess.run(command, capture_output=True).returncode == 0


def test_each_objective_may_be_the_projects_own_of_the_other(
    render: dict[str, Any], once: Objects
) -> None:
    """Exchanged, each alert has its own, and so has each text."""
    own = {"availability": 0.99, "latency": 0.999}
    answer = render["rendered"](render["MONITORING"], one={"objectives": own})["one"]
    default, text = (json.dumps(each) for each in (once, loaded(answer)))

    for place, told in {
        r"failed_per_request:\S+ > 14.4 \* \((\S+ - \S+)\)": ["1 - 0.999", "1 - 0.99"],
        r"slow_per_short:\S+ > 14.4 \* \((\S+ - \S+)\)": ["1 - 0.99", "1 - 0.999"],
        r"The objective is (\S+) %": ["99.9", "99"],
        r"ms for (\S+) %": ["99", "99.9"],
    }.items():
        found = [re.findall(place, each) for each in (default, text)]
        assert [first for first, *_ in found] == told, place


def test_the_objectives_bound_is_one_of_the_histogram(render: dict[str, Any]) -> None:
    """Between two, nothing is counted."""
    schema = json.loads((render["MONITORING"] / "values.schema.json").read_text())

    assert schema["properties"]["objectives"]["properties"]["seconds"]["enum"] == [*BUCKETS]


def test_alerts_link_to_where_the_runbooks_are(render: dict[str, Any]) -> None:
    """As a value says."""
    wiki = "https://wiki.example/headlight"
    answer = render["rendered"](render["MONITORING"], one={"runbooks": wiki})["one"]

    rules = [
        rule
        for spec in of("PrometheusRule", loaded(answer))
        for group in spec["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    urls = {rule["annotations"]["runbook_url"] for rule in rules}
    assert urls == {f"{wiki}/{rule['alert']}.md" for rule in rules}


# Prometheus


def series(namespace: str, name: str, missing: str | None = None) -> Iterator[dict[str, str]]:
    """What a release publishes of which one request in 20 fails; if it is missing, no answer."""
    labels = f'job="headlight", namespace="{namespace}", release="{name}", instance="{name}:8000"'
    if name == missing:
        yield {"series": f"up{{{labels}}}", "values": "0x80"}
        return
    failing = "0+5x80" if (namespace, name) == RELEASES[0] else "0x80"
    requests = f'headlight_requests_total{{{labels}, replica="r", route="/v1/encode", input="text"'
    values = {
        f"up{{{labels}}}": "1x80",
        f'headlight_ready{{{labels}, replica="r"}}': "1x80",
        f'headlight_start_time_seconds{{{labels}, replica="r"}}': "0x80",
        f'{requests}, code="200"}}': "0+95x80",
        f'{requests}, code="500"}}': failing,
    }
    yield from ({"series": one, "values": value} for one, value in values.items())


def judged(folder: Path, specs: Objects, missing: str | None, alert: str, expected: Objects) -> str:
    """What promtool says of the alerts that fire on all releases' series by all their rules."""
    for number, spec in enumerate(specs):
        (folder / f"rules-{number}.yml").write_text(yaml.safe_dump(spec))
    given = [one for place in RELEASES for one in series(*place, missing)]
    check = {"eval_time": "75m", "alertname": alert, "exp_alerts": expected}
    test = {"interval": "1m", "input_series": given, "alert_rule_test": [check]}
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules-*.yml"], "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def fired(alert: str, summary: str, **labels: str) -> dict[str, Any]:
    """An alert as it is expected."""
    return {
        "exp_labels": {"job": "headlight", "severity": "page", **labels},
        "exp_annotations": {"summary": summary, "runbook": f"docs/runbooks/{alert}.md"},
    }


@needs_promtool
def test_an_alert_is_of_the_one_release_that_fails(once: Objects, tmp_path: Path) -> None:
    """Once, with its namespace and name."""
    specs = of("PrometheusRule", once)
    alert, (namespace, name) = "HeadlightAvailabilityBurn", RELEASES[0]
    summary = "so many requests fail that 30 days' error budget is gone in"
    expected = [
        {
            **fired(
                alert,
                f"search:8000: {summary} {days} days",
                **{"severity": severity, "window": window},
                namespace=namespace,
                release=name,
                instance="search:8000",
            )
        }
        for window, days, severity in (("1h", 2, "page"), ("6h", 5, "page"))
    ]

    assert judged(tmp_path, specs, None, alert, expected) == ""


@needs_promtool
def test_a_release_that_is_gone_is_missed_though_others_are_there(
    once: Objects, tmp_path: Path
) -> None:
    """By its own namespace and name: its target stays, and is down."""
    alert, summary = "HeadlightTargetDown", "rank:8000: no answer to GET /metrics for a minute"
    labels = {"namespace": "team-b", "release": "rank", "instance": "rank:8000"}
    expected = [fired(alert, summary, **labels)]

    assert judged(tmp_path, of("PrometheusRule", once), "rank", alert, expected) == ""


def test_every_scrape_says_whose_series_they_are(
    releases: dict[tuple[str, str], Objects],
) -> None:
    """The service's, Ray's and HAProxy's, under the names by which rules and dashboards ask."""
    files = ("prometheus", "haproxy")
    texts = [yaml.safe_load((PROMETHEUS / f"{name}.yml").read_text()) for name in files]
    jobs = [job for text in texts for job in text["scrape_configs"]]
    for (namespace, name), documents in releases.items():
        service, *pods = of("ScrapeConfig", documents)
        (static,) = service["staticConfigs"]
        assert static["labels"]["namespace"] == namespace
        assert static["labels"]["release"] == name
        assert static["labels"]["instance"] == static["targets"][0]
        assert service["metricsPath"] == "/metrics"
        for one in pods:
            put = {
                rule["targetLabel"]: rule.get("replacement")
                for rule in one["relabelings"]
                if "targetLabel" in rule
            }
            assert (put["namespace"], put["release"]) == (namespace, name)
            assert one["kubernetesSDConfigs"][0]["namespaces"] == {"names": [namespace]}
        assert [one["jobName"] for one in (service, *pods)] == [job["job_name"] for job in jobs]
        assert service["scrapeInterval"] == jobs[0]["scrape_interval"]
        kept = [one["metricRelabelings"][0]["regex"] for one in pods]
        assert kept == [job["metric_relabel_configs"][0]["regex"] for job in jobs[1:]]


def test_prometheus_may_read_the_counts_of_haproxy_and_no_other_port_of_its(
    releases: dict[tuple[str, str], Objects],
) -> None:
    """Where the pods show them."""
    documents = releases[RELEASES[0]]
    (policy,) = (one["spec"] for one in documents if one["metadata"]["name"] == "search-metrics")
    (ray,) = of("RayService", documents)
    (group,) = ray["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    (rule,) = policy["ingress"]

    assert [port["port"] for port in rule["ports"]] == [9101]
    assert "monitoring" in json.dumps(rule["from"])
    assert variables["HAPROXY_METRICS_HOST"] == "0.0.0.0"
    assert variables["RAY_SERVE_HAPROXY_METRICS_PORT"] == "9101"


# Grafana


def test_the_dashboard_is_the_projects_own(once: Objects) -> None:
    """To the byte, and marked for the sidecar."""
    (board,) = (one for one in once if one["kind"] == "ConfigMap")

    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"] == {"headlight.json": (GRAFANA / "headlight.json").read_text()}


# What is installed once


def test_its_page_and_version_are_those_of_its_values_and_of_the_project(
    render: dict[str, Any],
) -> None:
    """As for the chart that it watches."""
    folder, text = render["MONITORING"], (render["MONITORING"] / "values.yaml").read_text()
    values = render["leaves"]("", yaml.compose(text, yaml.SafeLoader), text.splitlines())
    rows = "".join(f"| `{one[0]}` | `{json.dumps(one[1])}` | {one[2]} |\n" for one in values)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    other = yaml.safe_load((render["CHART"] / "Chart.yaml").read_text())

    assert (folder / "README.md").read_text().endswith(f"|---|---|---|\n{rows}")
    assert (chart["version"], chart["appVersion"]) == (other["version"], other["appVersion"])


def test_a_value_that_it_does_not_know_is_refused(render: dict[str, Any]) -> None:
    """With its name."""
    answers = render["rendered"](render["MONITORING"], typo={"dashboard": False})

    assert "additional properties 'dashboard' not allowed" in answers["typo"]["refused"]
