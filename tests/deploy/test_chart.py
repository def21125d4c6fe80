"""The chart deploy/helm/headlight is whole: Helm renders it, and its readers accept the result.

deploy/helm/render.py writes what follows from it. What others' operators accept stands in schemas/,
which crds.py writes.
"""

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.values import CASES, DEPLOYMENTS, REFUSED, every_case, every_cluster

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "headlight"
SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = ("1.27", "1.37")  # oldest and newest, of its own kinds' schemas
NEWEST_ALONE = {"weights-oci as it stands"}  # a volume that is an image came in between
# What a RayService may have since a version of KubeRay: all that its schema of 1.7 has and one of
# before has not. Those of 1.5 and 1.6 are the same otherwise, but that they ask for a redisAddress.
GROUP = (".headGroupSpec", ".workerGroupSpecs[]")
SINCE = {
    "1.6": {
        ".managedBy",
        ".rayClusterConfig.authOptions.enableK8sTokenAuth",
        ".rayClusterConfig.authOptions.secretName",
        ".rayClusterConfig.upgradeStrategy",
        *(
            f".rayClusterConfig{group}.template.spec.volumes[].projected.sources[].podCertificate"
            ".userAnnotations"
            for group in GROUP
        ),
    },
    "1.7": {
        ".suspend",
        ".rayClusterConfig.autoscalerOptions.args",
        ".rayClusterConfig.autoscalerOptions.command",
        ".rayClusterConfig.gcsFaultToleranceOptions.backend",
        ".rayClusterConfig.gcsFaultToleranceOptions.storage",
        ".rayClusterConfig.headGroupSpec.ingressOptions",
        ".rayClusterConfig.historyServerOptions",
        ".rayClusterConfig.networkPolicy",
        ".rayClusterConfig.tlsOptions",
        ".rayClusterConfig.workerGroupSpecs[].priority",
        *(f".rayClusterConfig{group}.template.spec.schedulingGroup" for group in GROUP),
    },
}


@pytest.mark.parametrize(
    ("name", "made"),
    [("files/ray.yaml", "variables"), ("values.schema.json", "schema"), ("README.md", "page")],
)
def test_what_is_generated_is_the_codes(name: str, made: str, render: dict[str, Any]) -> None:
    """Byte for byte; `python deploy/helm/render.py` writes it."""
    assert (CHART / name).read_text() == render[made]()


def test_manifests_are_written_where_there_is_no_helm(
    tmp_path: Path, render: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `render.py --kuberay`: a file for each kind, of objects that have names."""
    folder = tmp_path / "kuberay"

    monkeypatch.setattr("sys.argv", ["render.py", "--kuberay", str(folder)])
    monkeypatch.chdir(tmp_path)
    render["main"]()

    names = {path.name for path in folder.iterdir()}
    assert {"rayservice.yaml", "networkpolicy.yaml", "scrapeconfig.yaml"} <= names
    for path in folder.iterdir():
        objects = [one for one in yaml.safe_load_all(path.read_text()) if one]
        assert objects and all(one["metadata"]["name"] for one in objects)


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


@cache
def accepted(text: str, *versions: str) -> None:
    """Hold an object, as JSON, to what reads its kind; many cases have the same."""
    one = json.loads(text)
    if (SCHEMAS / f"{one['kind'].lower()}.json").exists():
        schema(one["kind"]).validate(one)
    else:
        for version in versions:
            kubernetes_validate.validate(one, version, strict=True)


@every_case
def test_kubernetes_and_every_operator_know_each_key(
    documents: list[dict[str, Any]], case: str
) -> None:
    """An API server drops a key that it does not know."""
    versions = KUBERNETES[-1:] if case in NEWEST_ALONE else KUBERNETES
    for one in documents:
        accepted(json.dumps(one, sort_keys=True), *versions)


def keys(value: Any, place: str = "") -> Iterator[str]:
    """The place of every key in an object; those of a list's entries are one."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield f"{place}.{name}"
            yield from keys(part, f"{place}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from keys(part, f"{place}[]")


@every_cluster
@pytest.mark.parametrize("version", SINCE)
def test_kuberay_knows_each_key_since_1_5(service: dict[str, Any], version: str) -> None:
    """No case needs what a later version brought."""
    assert set(keys(service)) & SINCE[version] == set()


def test_a_key_since_a_later_kuberay_is_seen(answers: dict[str, dict[str, Any]]) -> None:
    """All of them are known to the newest, which could not say so otherwise."""
    spec = yaml.safe_load(answers["cluster"]["files"]["rayservice.yaml"])["spec"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    group["priority"] = 1
    whole = json.loads((SCHEMAS / "rayservice.json").read_text())

    assert set(keys(spec)) & SINCE["1.7"] == {".rayClusterConfig.workerGroupSpecs[].priority"}
    for place in (place for places in SINCE.values() for place in places):
        part = whole["properties"]["spec"]
        for name in place[1:].replace("[]", ".[]").split("."):
            while "$ref" in part:
                part = whole["$defs"][part["$ref"].rpartition("/")[2]]
            part = part["items"] if name == "[]" else part["properties"][name]


@pytest.mark.prove
def test_helms_own_command_renders_the_same(
    objects: dict[str, list[dict[str, Any]]], answers: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """`helm template` of whatever version is here, with every set of values; it refuses the same.

    With Helm 4.3.1, 4.1.4 and 3.17.3 it did; Helm 3 has other words for what a schema refuses.
    """
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("no helm on the PATH; several packages for AWS' CDK bring one")
    values = tmp_path / "values.json"
    command = [helm, "template", "headlight", CHART, "--namespace", "headlight", "-f", values]

    for case, given in (CASES | DEPLOYMENTS).items():
        values.write_text(json.dumps(given))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rendered = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
        assert sorted(map(json.dumps, rendered)) == sorted(map(json.dumps, objects[case])), case
    for said, given in REFUSED.items():
        values.write_text(json.dumps(given))
        assert "release" in given or subprocess.run(command, capture_output=True).returncode, said


def test_a_key_that_nobody_knows_is_seen(answers: dict[str, dict[str, Any]]) -> None:
    """Deep in a pod, where a typo is likeliest."""
    one = yaml.safe_load(answers["cluster"]["files"]["rayservice.yaml"])
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
