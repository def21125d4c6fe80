"""Prometheus' own tools accept the configuration, the rules and their unit tests."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from service.cli import main

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS, RUNBOOKS = ROOT / "deploy" / "prometheus", ROOT / "docs" / "runbooks"
RULES = PROMETHEUS / "rules"
CASES = sorted((PROMETHEUS / "tests").glob("*.yml"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*arguments: str | Path) -> str:
    """What promtool says; fails with it where promtool does."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    """Every rule."""
    files = (yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml")))
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def named(labels: dict[str, Any], alert: str) -> tuple[str, str]:
    """One alert: its name, and its window where one name has several."""
    return alert, labels.get("window", "")


ALERTS = {named(rule["labels"], rule["alert"]): rule for rule in rules() if "alert" in rule}
NAMES = ["-".join(filter(None, alert)) for alert in ALERTS]


@cache
def checked() -> list[tuple[str, set[tuple[str, str]]]]:
    """Each check of an alert in the unit tests: the alert's name, and which of it must fire."""
    return [
        (alert, {named(one["exp_labels"], alert) for one in check["exp_alerts"]})
        for path in CASES
        for case in yaml.load(path.read_text(), yaml.CSafeLoader)["tests"]
        for check in case.get("alert_rule_test", ())
        if (alert := check["alertname"])
    ]


@needs_promtool
def test_the_configuration_and_its_rules_are_valid() -> None:
    """As the server would read them, duplicate and unused names included."""
    for name in ("prometheus.yml", "replicas.yml", "haproxy.yml"):
        promtool("check", "config", PROMETHEUS / name)
    promtool("check", "rules", "--lint-fatal", *RULES.glob("*.yml"))


def test_every_selector_begins_with_the_job() -> None:
    """Other programs' series stay outside."""
    text = " ".join(rule["expr"] for rule in rules())
    series = re.findall(r"(?<![\w:])((?:\w+:)?(?:headlight|haproxy|ray)_[\w:]+|up)(\S*)", text)

    assert len(series) > 60
    assert [one for one in series if not one[1].startswith('{job="headlight')] == []


@needs_promtool
@pytest.mark.parametrize(
    ("file", "as_written"),
    [
        *((file, False) for file in CASES if file.stem != "days"),  # which take a minute
        *(pytest.param(file, True, marks=pytest.mark.prove) for file in CASES),
    ],
    ids=lambda value: getattr(value, "stem", "as written" if value else "seldom"),
)
def test_every_alert_fires_and_stays_silent_as_its_cases_say(
    file: Path, as_written: bool, tmp_path: Path
) -> None:
    """On series written for it, evaluated by Prometheus' own engine.

    Cases of an hour that ask for alerts alone, each fifth minute; `make prove` as they are written.
    """
    head, *cases = re.split(r"^(?=  - name: )", file.read_text(), flags=re.MULTILINE)
    head = head.replace("../rules", str(RULES))
    hours = [] if as_written else [case for case in cases if is_of_an_hour(case)]
    seldom = re.sub("evaluation_interval: .*", "evaluation_interval: 5m", head)
    for name, text in (
        ("each", head + "".join(case for case in cases if case not in hours)),
        ("seldom", seldom + "".join(hours)),
    ):
        copy = tmp_path / f"{name}.yml"
        copy.write_text(text)
        promtool("test", "rules", copy)


def is_of_an_hour(case: str) -> bool:
    """Whether a case asks for an alert after an hour alone, and for no series."""
    times = re.findall(r"eval_time: (\S+)", case)
    return "promql_expr_test" not in case and times == ["75m"]


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_alert_has_a_case_that_fires_it_and_one_that_does_not(
    alert: tuple[str, str],
) -> None:
    """An alert that was never seen firing, or silent, is a guess."""
    fired = [alert in fired for name, fired in checked() if name == alert[0]]

    assert set(fired) == {True, False}


def test_the_cases_check_no_alert_that_is_gone() -> None:
    """A renamed alert leaves no case behind that passes for ever."""
    assert {name for name, _ in checked()} == {name for name, _ in ALERTS}
    assert set().union(*(fired for _, fired in checked())) == ALERTS.keys()


@pytest.mark.parametrize("rule", ALERTS.values(), ids=NAMES)
def test_every_alert_says_what_how_bad_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """A summary, a severity, a page with the three things asked for at night."""
    summary, runbook = rule["annotations"]["summary"], rule["annotations"]["runbook"]
    page = (ROOT / runbook).read_text("ascii")

    assert summary and rule["labels"]["severity"] in ("page", "ticket")
    assert runbook == f"docs/runbooks/{rule['alert']}.md"
    assert re.findall("^## (.+)", page, re.MULTILINE) == [
        "What it means",
        "How to see it",
        "What to do",
    ]


def test_no_runbook_is_without_its_alert_and_every_link_leads_to_one() -> None:
    """A page to which no alert leads is never read."""
    names = {path.name for path in RUNBOOKS.iterdir()}
    links = {
        to for path in RUNBOOKS.iterdir() for to in re.findall(r"\]\((.+?)\)", path.read_text())
    }

    assert names == {f"{name}.md" for name, _ in ALERTS}
    assert links <= names


def test_every_option_that_a_runbook_names_exists() -> None:
    """A command typed at night must work."""
    text = "".join(path.read_text() for path in RUNBOOKS.iterdir())
    commands: dict[str, click.Command] = main.commands
    known = {flag for each in commands.values() for one in each.params for flag in one.opts}
    others = {"--content-on-error", "--header", "--unit", "--grep", "--lines"}  # wget, journalctl
    others |= {"--namespace", "--selector", "--container", "--all-containers", "--tail", "--output"}

    assert set(re.findall(r"`headlight (\w+)|^    headlight (\w+)", text, re.MULTILINE))
    for pair in re.findall(r"`headlight (\w+)|^    headlight (\w+)", text, re.MULTILINE):
        assert "".join(pair) in commands
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known | others
