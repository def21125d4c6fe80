"""The dashboard is valid and linted, and asks for what is there.

The rules are those of Grafana's dashboard-linter (docs/rules), which needs a Go that few have.
"""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from service.observe import scrape

ROOT = Path(__file__).parent.parent.parent
GRAFANA, PROMETHEUS = ROOT / "deploy" / "grafana", ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((GRAFANA / "headlight.json").read_text())
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
OPEN = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PANELS = [*OPEN, *(panel for row in ROWS for panel in row["panels"])]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {value for value in vars(units).values() if isinstance(value, str)}
WITH_CUDA, WITH_KEYS = {"headlight_gpu_memory_bytes"}, {"headlight_keys_stale"}


def asked(expression: str) -> str:
    """A query as Prometheus gets it."""
    query = re.sub(r"\$(namespace|release)\b", ".*", expression.replace("$__rate_interval", "1m"))
    return re.sub(r"\$(job|instance|model|replica)\b", ".+", query)


# Grafana's schema


def lost(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Each place where what came back is not what went in; what was added does not count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            each
            for key, value in ours.items()
            for each in lost(value, theirs.get(key), f"{place}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [each for n, pair in pairs for each in lost(*pair, f"{place}[{n}]")]
    return [] if ours == theirs else [place]


def through_grafana(document: dict[str, Any]) -> Any:
    """A dashboard read and written by the types that Grafana generates from its own schema."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_grafanas_own_types_know_every_field() -> None:
    """A misspelt field would not come back."""
    assert lost(DASHBOARD, through_grafana(DASHBOARD)) == []


def test_a_misspelt_field_is_noticed() -> None:
    """The check above can fail, in panels, options and queries alike."""
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][1]["descripton"] = "x"
    wrong["panels"][1]["options"]["txtMode"] = "x"
    wrong["panels"][1]["targets"][0]["expression"] = "x"

    assert lost(wrong, through_grafana(wrong)) == [
        ".panels[1].options.txtMode",
        ".panels[1].targets[0].expression",
        ".panels[1].descripton",
    ]


def test_the_schema_is_of_today_and_the_name_is_for_ever() -> None:
    """A link to it survives; its number in one Grafana's database is not in the file."""
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"] == "headlight" and "id" not in DASHBOARD
    assert DASHBOARD["refresh"] == "30s"


@pytest.mark.parametrize("shown", [DASHBOARD, *ROWS], ids=lambda shown: shown["title"])
def test_no_two_panels_overlap(shown: dict[str, Any]) -> None:
    """Within the 24 columns of the grid, and within a row that is opened."""
    boxes = [panel["gridPos"] for panel in shown["panels"]]

    assert all(0 <= box["x"] and box["x"] + box["w"] <= 24 for box in boxes)
    for one, other in combinations(boxes, 2):
        across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        along = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
        assert not (across and along), (one, other)


def test_every_number_is_used_once() -> None:
    """Of rows and panels."""
    numbers = [panel["id"] for panel in (*ROWS, *PANELS)]

    assert len(set(numbers)) == len(numbers)


def test_one_row_is_open_and_all_of_it_is_held_in_the_head() -> None:
    """What says whether it is well; the rest is for when it is not."""
    assert [panel["title"] for panel in OPEN] == [
        "Availability",
        "Time to a short answer, p99",
        "Requests by code",
        "Replicas: ready of expected",
        "Queue",
        "Busy",
    ]
    assert [(row["title"], row["collapsed"]) for row in ROWS] == [
        ("Overview", False),
        ("Objectives", True),
        ("Traffic", True),
        ("Latency", True),
        ("Model", True),
        ("Memory", True),
    ]
    assert len(PANELS) <= 20


# dashboard-linter


def test_template_datasource_rule() -> None:
    """The one datasource is a variable."""
    sources = [each for each in VARIABLES.values() if each["type"] == "datasource"]

    assert [(each["name"], each["label"], each["query"]) for each in sources] == [
        ("datasource", "Data source", "prometheus")
    ]


@pytest.mark.parametrize("name", ["namespace", "release", "job", "instance", "model", "replica"])
def test_template_job_instance_and_on_time_change_reload_rules(name: str) -> None:
    """Each is asked of that datasource, takes several, and follows the time range."""
    variable = VARIABLES[name]

    assert variable["datasource"] == SOURCE and variable["type"] == "query"
    assert variable["label"] == name.title()
    everything = ".*" if name in ("namespace", "release") else ".+"  # which not all series have
    assert variable["multi"] is True and variable["allValue"] == everything
    assert variable["refresh"] == 2


def test_template_uneditable_rule() -> None:
    """Changed in the file: what a browser changes in a provisioned dashboard is lost."""
    assert not DASHBOARD["editable"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_rules(panel: dict[str, Any]) -> None:
    """panel-datasource, panel-title-description, panel-units, panel-no-targets."""
    assert panel["datasource"] == SOURCE
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: None)
def test_target_rules(target: dict[str, Any]) -> None:
    """target-job, target-instance, target-rate-interval, target-counter-agg; no LogQL."""
    query = target["expr"]

    for chosen in re.findall(r"\{(.*?)\}", query):
        assert chosen.startswith('namespace=~"$namespace", release=~"$release"')
        assert 'job=~"$job"' in chosen and 'instance=~"$instance"' in chosen
    for name, chosen in re.findall(r"\b(?<!:)headlight_(\w+)\{(.*?)\}", query):
        of_all = ("scrape_incomplete", "replicas_expected")
        of_one = 'model=~"$model", replica=~"$replica"' in chosen
        assert of_one == (name not in of_all)
    assert set(re.findall(r"\[(.+?)\]", query)) <= {"$__rate_interval"}
    counted = re.findall(r"(rate\()?\bheadlight_\w+_total\{", query)
    assert all(counted)
    assert target["datasource"] == SOURCE


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
def test_target_promql_and_template_label_promql_rules(tmp_path: Path) -> None:
    """Prometheus' own parser takes every query, and every series that a variable lists."""
    listed = [
        re.sub(r"label_values\((.+), \w+\)", r"\1", variable["query"])
        for variable in VARIABLES.values()
        if variable["type"] == "query"
    ]
    queries = [asked(query) for query in [target["expr"] for target in TARGETS] + listed]
    rules = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


# The service


def test_the_objectives_are_those_of_the_rules() -> None:
    """A budget left is a budget that pages when it is spent."""
    rules = (PROMETHEUS / "rules" / "alerts.yml").read_text()
    queries = " ".join(target["expr"] for target in TARGETS)

    for name in ("failed_per_request", "slow_per_short"):
        paged = set(re.findall(rf"{name}:ratio_rate\w+{{.*?}} > [\d.]+ \* (\(.+?\))", rules))
        shown = set(re.findall(rf"{name}:ratio_rate\w+{{.*?}} / (\(.+?\))", queries))
        assert len(paged) == 1 and paged == shown


def named(text: str) -> set[str]:
    """Our metrics in a text, without a histogram's endings; recorded series are not metrics."""
    names = re.findall(r"(?<![\w:.])headlight_[a-z_]+(?![\w:])", text)
    for group in re.findall(r"headlight_\(([a-z_|]+)\)", text):
        names += [f"headlight_{name}" for name in group.split("|")]
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names if not name.endswith("_")}


def test_every_recorded_series_that_is_asked_for_is_recorded() -> None:
    """By a rule of that very name."""
    rules = (PROMETHEUS / "rules" / "recording.yml").read_text()
    recorded = set(re.findall(r"record: (\S+)", rules))
    asking = [target["expr"] for target in TARGETS]
    asking.append((PROMETHEUS / "rules" / "alerts.yml").read_text())

    used = set(re.findall(r"(?:instance|pod):headlight_\w+:\w+", " ".join(asking)))

    assert used <= recorded


async def test_every_metric_that_is_published_is_asked_for_and_the_other_way_round(
    client: httpx.AsyncClient,
) -> None:
    """By a panel, rule or runbook; of a real replica, but for what one with a GPU or keys has."""
    files = [*(PROMETHEUS / "rules").glob("*.yml"), *(ROOT / "docs" / "runbooks").glob("*.md")]
    texts = [path.read_text() for path in files] + [target["expr"] for target in TARGETS]
    replica = await client.get("/metrics")
    whole = scrape.join_pages([replica.content], incomplete=False).decode()
    published = set(re.findall(r"^# TYPE (\w+) ", whole, re.MULTILINE))

    used = set().union(*map(named, texts))

    assert published - used == set()
    assert used - published == WITH_CUDA | WITH_KEYS


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    """The datasource has a uid for ever; the dashboard lands in a folder of its own."""
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    folder = yaml.safe_load((GRAFANA / "provisioning/dashboards/headlight.yml").read_text())
    scrapes = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())

    (one,) = source["datasources"]
    (provider,) = folder["providers"]
    assert (one["uid"], one["type"]) == ("headlight-prometheus", "prometheus")
    assert one["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]
    assert provider["folder"] == "Headlight" and provider["allowUiUpdates"] is False
