"""The chart as Helm renders it with each set of values."""

import fcntl
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.values import CASES, DEPLOYMENTS, REFUSED

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


@pytest.fixture(scope="session")
def render() -> dict[str, Any]:
    """What deploy/helm/render.py can do, by name."""
    return runpy.run_path(str(DEPLOY / "helm" / "render.py"))


@pytest.fixture(scope="session")
def answers(
    render: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What Helm makes of all values, in one process; of several of pytest's the first asks it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all processes of this run
    file = folder / "rendered.json"
    with (folder / "rendering").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(render["rendered"](**CASES, **DEPLOYMENTS, **REFUSED)))
    rendered: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return rendered


@pytest.fixture(scope="session")
def objects(answers: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Every object of each case."""
    return {
        case: [
            one
            for name, text in answers[case]["files"].items()
            if name.endswith(".yaml")
            for one in yaml.load_all(text, yaml.CSafeLoader)
            if one
        ]
        for case in [*CASES, *DEPLOYMENTS]
    }


@pytest.fixture
def documents(objects: dict[str, list[dict[str, Any]]], case: str) -> list[dict[str, Any]]:
    """Every object of a case."""
    return objects[case]


@pytest.fixture
def service(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The specification of its RayService."""
    (spec,) = (one["spec"] for one in documents if one["kind"] == "RayService")
    return spec
