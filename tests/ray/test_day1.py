"""Day 1 on Kubernetes, without one: its script next to a real service, whose keys it changes.

What a cluster would do to pods is noted, and held to the real kubectl's and Helm's own reading.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ray.rotation import Keys

if TYPE_CHECKING:
    from tests.ray.conftest import Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests" / "kubernetes"
NOWHERE = ["--server=http://127.0.0.1:1", "--request-timeout=1s"]
STEPS = ("install", "ask", "rotate", "upgrade", "drain")


@pytest.mark.parametrize("kind", ["Deployment", "RayService"])
def test_each_step_of_day_1_ends_well(start: "Start", tmp_path: Path, kind: str) -> None:
    """As far as it can be without a cluster: keys turn by the swap of a mounted Secret."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the PATH (Debian: kubernetes-client)")
    mounted = Keys(tmp_path / "mounted")
    mounted.folder.mkdir()
    first = "0" * 48
    mounted.write({first: "team-a:{}"})
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "keys").write_text(mounted.file.read_text())
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    for name in ("kubectl", "helm"):
        program = programs / name
        stand_in = f"exec {sys.executable} {FOLDER / 'kubectl.py'}"
        program.write_text(f'#!/bin/sh\n{stand_in} {"helm " * (name == "helm")}"$@"\n')
        program.chmod(0o755)
    for name in ("deploy", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)

    with start("--api-keys-file", str(mounted.file)) as service:
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KIND": kind,
            "URL": service.url,
            "PATIENCE": "60",
            "LOG": str(log),
            "MOUNT": str(mounted.folder),
            "KUBECTL": kubectl,
        }
        command = ["sh", "-x", FOLDER / "day1.sh", *STEPS]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert first not in mounted.file.read_text()
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"rollout" if kind == "Deployment" else "wait", "drain", "uncordon", "run"} <= {
        word for call in calls for word in call
    }
    for call in calls:
        if call[0] == "helm":
            rendered_by_helm(call[1:], tmp_path)
        elif "--dry-run=client" not in call and "apply" not in call:
            told = subprocess.run([kubectl, *call, *NOWHERE], capture_output=True, text=True)
            assert "refused" in told.stderr, told.stderr  # it understood, and nobody is there


def rendered_by_helm(arguments: list[str], folder: Path) -> None:
    """Hold a command of Helm's to Helm itself, where it is on the PATH."""
    helm = shutil.which("helm")
    if helm:
        command = {"install": ["template"], "upgrade": ["upgrade", "--help"]}[arguments[0]]
        done = subprocess.run([helm, *command, *arguments[1:]], cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr
