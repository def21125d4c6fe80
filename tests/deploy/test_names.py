"""The names of Kubernetes' objects: those that the pages say are those that the chart renders."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml")),
]
SAYS = {  # what names an object of which kind
    "Secret": r"create secret generic (\S+)|\bSecret `([^`]+)`",
    "Service": r"exec service/(\S+)|(?<![\w-])([\w-]+-svc)\b",
    "RayService": r"kubectl .*\brayservice[ /](\S+)",
    "Deployment": r"rollout status deployment[ /](\S+)",
    "container": r"--container (\S+)",
    "namespace": r"--namespace[ =](\S+)|create namespace (\S+)|from the namespace `([^`]+)`",
    "label": r"--selector (\S+)",
}
# Of others: the namespaces of what is installed once, and examples of several teams
ELSEWHERE = {"namespace": {"monitoring", "team-a", "gateway"}}
# What a cluster has besides what the chart renders
KUBERAY = {
    "Service": {"headlight-serve-svc"},  # made by KubeRay of the RayService's name
}


def strings(value: Any) -> Iterator[tuple[str, str]]:
    """Each string in an object with its key."""
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, str):
                yield name, part
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


@pytest.fixture(scope="module")
def rendered(objects: dict[str, list[dict[str, Any]]]) -> dict[str, set[str]]:
    """The names that there are, by kind: of the recipe's values, and of others."""
    recipe = objects["own-model"], objects["own-model as it stands"]
    cases = chain(*recipe, objects["deployment of more"], objects["keys"])
    found: dict[str, set[str]] = {kind: set(KUBERAY.get(kind, ())) for kind in SAYS}
    for one in cases:
        found.setdefault(one["kind"], set()).add(one["metadata"]["name"])
        found["namespace"].add(one["metadata"]["namespace"])
        text = yaml.safe_dump(one)
        found["container"] |= set(
            re.findall(r"^ +(?:- )?name: ((?:ray-)?\w+)$", text, re.MULTILINE)
        )
        found["Secret"] |= {part for name, part in strings(one) if name == "secretName"}
        if one["kind"] == "ScrapeConfig" and "authorization" in one["spec"]:
            found["Secret"].add(one["spec"]["authorization"]["credentials"]["name"])
        for labels in re.findall(r"labels:\n((?: +\S+: \S+\n)+)", text):
            found["label"] |= {line.strip().replace(": ", "=") for line in labels.splitlines()}
    return found


@pytest.mark.parametrize("kind", SAYS)
def test_every_name_on_a_page_is_that_of_an_object(
    kind: str, rendered: dict[str, set[str]]
) -> None:
    """A Secret that was made under another name is never read."""
    said = {
        (path.name, name)
        for path in PAGES
        for match in re.finditer(SAYS[kind], path.read_text())
        for name in "".join(filter(None, match.groups())).rstrip(".,;)`").split(",")
        if not name.startswith(("<", "$", "{", "'"))
    }

    assert said
    known = rendered[kind] | ELSEWHERE.get(kind, set())
    assert {(page, name) for page, name in said if name not in known} == set()


def test_a_cluster_of_kuberays_has_its_operator_where_the_recipe_says(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    """The policies let it in from that namespace alone."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    policies = yaml.safe_dump([one for one in objects["cluster"] if "Policy" in one["kind"]])

    (said,) = set(re.findall(r"its operator in the namespace `(\S+)`", page))
    assert f"kubernetes.io/metadata.name: {said}\n" in policies


def test_the_commands_that_rotate_keys_change_the_secret_that_pods_mount() -> None:
    """The file's name in it, too."""
    made, changed = (
        {
            *re.findall(
                r"create secret generic (\S+) --from-file[ =](\S+)",
                (ROOT / "docs" / page).read_text(),
            )
        }
        for page in ("deploy.md", "operations.md")
    )

    assert made and made == changed
