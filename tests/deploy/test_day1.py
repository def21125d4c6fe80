"""Day 1 on Kubernetes: what the page says is what the workflow's script does, step by step.

tests/ray/test_day1.py runs the steps next to a real service.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.release.workflows import read

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "tests" / "kubernetes" / "day1.sh"
EXAMPLES = "deploy/helm/examples"
# What the script has for what a reader fills in, or has at hand
FILLED = {
    f"--values {EXAMPLES}/own-model.yaml --set image.registry=<yours>": '--values "$VALUES"',
    "<tag>": '"$TAG"',
    "<node>": '"$node"',
}


def section(heading: str) -> str:
    """A part of docs/deploy.md."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    return page.partition(f"{heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def commands(text: str) -> list[str]:
    """Each command of a shell's text, on one line."""
    return [line.strip() for line in re.sub(r" *\\\n *", " ", text).splitlines()]


@pytest.mark.parametrize(
    ("heading", "count"),
    [("## Day 1 on Kubernetes", 10), ("### A RayService, or an autoscaler of Kubernetes", 2)],
)
def test_the_pages_commands_are_the_scripts(heading: str, count: int) -> None:
    """But for what a reader fills in."""
    blocks = re.findall(r"^```sh\n(.*?)^```", section(heading), re.MULTILINE | re.DOTALL)
    said = [
        line for line in commands("".join(blocks)) if re.match("kubectl|helm install|helm up", line)
    ]
    done = "\n".join(commands(SCRIPT.read_text()))

    assert len(said) == count
    for line in said:
        for place, value in FILLED.items():
            line = line.replace(place, value)
        line = re.sub(r" --timeout[ =]\S+", "", line)
        assert line in re.sub(r' --timeout "\S+"', "", done), line


def test_day_1_is_one_screen() -> None:
    """Of a reader who has never seen the chart."""
    assert len(section("## Day 1 on Kubernetes").splitlines()) <= 45


def test_the_workflow_runs_every_step_of_the_script() -> None:
    """In its order, for both kinds of release."""
    job = read("kubernetes.yml")["jobs"]["day1"]
    lines = [step["run"] for step in job["steps"] if "day1.sh" in step.get("run", "")]
    steps = " ".join(line.partition("day1.sh ")[2] for line in lines).split()
    (usage,) = re.findall(
        r"^# +sh tests/kubernetes/day1.sh (.*)$", SCRIPT.read_text(), re.MULTILINE
    )

    assert steps == usage.split()
    assert [leg["kind"] for leg in job["strategy"]["matrix"]["include"]] == [
        "Deployment",
        "RayService",
    ]
    assert subprocess.run(["sh", "-n", SCRIPT]).returncode == 0
