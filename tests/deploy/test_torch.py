"""deploy/torch.sh: which build of torch an installation takes, and what it says before."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_packaging import pinned

SCRIPT = Path(__file__).parents[2] / "deploy" / "torch.sh"
VERSION = pinned({"torch"})["torch"]
CUDA, CPU, NEWER = (
    VERSION,
    f"{VERSION}+cpu",
    f"{VERSION}+cu130",
)  # pip prefers the last of the three

Told = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """What the script says where pip finds these builds, with a card or without."""

    def tell(builds: list[str], *, card: bool = False) -> subprocess.CompletedProcess[str]:
        for version in builds:
            make_wheel(tmp_path, version)
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nexit {int(not card)}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
        }
        command = ["sh", SCRIPT, sys.executable, "", "tell"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    return tell


def make_wheel(folder: Path, version: str) -> None:
    """Write an empty package called torch."""
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a card is here")
def test_without_a_card_the_cpu_build_is_taken_where_pip_finds_it(told: Told) -> None:
    """Also next to a build that pip would prefer, and without a word about sizes."""
    said = told([CUDA, CPU, NEWER])

    assert (said.stdout, said.stderr) == (f"torch {CPU}\n", "")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a card is here")
def test_without_a_card_and_that_build_both_sizes_are_said(told: Told) -> None:
    """Before anything is downloaded; README has the same."""
    said = told([CUDA])

    sizes = re.search(
        r"CPU build the installation downloads ([\d.]+) GB, takes ([\d.]+) GB of disk.*"
        r"built for CUDA, ([\d.]+) GB, ([\d.]+) GB",
        SCRIPT.parents[1].joinpath("README.md").read_text(),
    )
    assert sizes and said.stdout == ""
    assert f"CUDA build alone: {sizes[3]} GB to download, {sizes[4]} GB of disk" in said.stderr
    assert f"With the CPU build it is {sizes[1]} GB and {sizes[2]} GB" in said.stderr
    assert "TORCH_INDEX=" in said.stderr


def test_with_a_card_pip_chooses(told: Told) -> None:
    """As its settings say."""
    assert told([CUDA], card=True).stdout == f"torch {CUDA}\n"
    assert told([CPU, NEWER], card=True).stdout == f"torch {NEWER}\n"
