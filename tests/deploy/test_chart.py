"""The chart deploy/helm/headlight is whole: Helm renders it, and whoever reads what it renders.

deploy/helm/render.py writes what follows from it. What others' operators accept stands in schemas/,
which crds.py writes.
"""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.values import REFUSED, every_case

ROOT = Path(__file__).parent.parent.parent
CHART, KUBERAY = ROOT / "deploy" / "helm" / "headlight", ROOT / "deploy" / "kuberay"
SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = "1.37"  # of its own kinds' schemas


@pytest.mark.parametrize(
    ("name", "made"),
    [("files/ray.yaml", "variables"), ("values.schema.json", "schema"), ("README.md", "page")],
)
def test_what_is_generated_is_the_codes(name: str, made: str, render: dict[str, Any]) -> None:
    """Byte for byte; `python deploy/helm/render.py` writes it."""
    assert (CHART / name).read_text() == render[made]()


def test_the_plain_manifests_are_what_the_chart_renders_with_its_defaults(
    render: dict[str, Any],
) -> None:
    """Byte for byte, and no file besides; `python deploy/helm/render.py` writes them."""
    there = {path.name: path.read_text() for path in KUBERAY.iterdir()}

    assert there == render["manifests"]()


def test_every_value_says_what_it_is(render: dict[str, Any]) -> None:
    """In values.yaml, and by that in README.md."""
    assert [name for name, _, comment in render["values"]() if not comment] == []


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
    return jsonschema.Draft202012Validator(
        json.loads((SCHEMAS / f"{kind.lower()}.json").read_text())
    )


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
    (group,) = one["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    group["template"]["spec"]["containers"][0]["volumeMounts"][0]["readonly"] = True

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
