"""deploy/release.py: what is wrong with a release is said, each time, before anything is built."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.release.workflows import ROOT

STATED: dict[str, str] = runpy.run_path(str(ROOT / "deploy" / "release.py"))["STATED"]
CHARTS = ROOT / "deploy" / "helm"
DIGESTS = ["sha256:" + "c" * 64, "sha256:" + "d" * 64]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What of this one the script reads, with a day for the release."""
    for name in [*STATED, "CHANGELOG.md", "deploy/release.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(CHARTS, tmp_path / "deploy" / "helm", dirs_exist_ok=True)
    replace(tmp_path / "CHANGELOG.md", r"^(## \[.+?\] - )\S+", r"\g<1>2026-12-01")
    return tmp_path


def replace(path: Path, pattern: str, by: str) -> None:
    """Write another text in place of the first that fits."""
    text, found = re.subn(pattern, by, path.read_text("utf-8"), count=1, flags=re.MULTILINE)
    assert found
    path.write_text(text, "utf-8")


def asked(checkout: Path, *words: str) -> tuple[int, str]:
    """The script's exit status, and what it says."""
    command = [sys.executable, "deploy/release.py", *words]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_tag_of_the_version_that_everything_states_is_released(checkout: Path) -> None:
    """It stands in pyproject.toml; the others repeat it."""
    assert asked(checkout, "check", f"v{VERSION}") == (0, "")


@pytest.mark.parametrize("name", STATED)
def test_a_file_of_another_version_is_named(checkout: Path, name: str) -> None:
    """With the version that it states."""
    (statement,) = re.findall(STATED[name], (checkout / name).read_text(), re.MULTILINE)[:1]
    older = statement.replace(VERSION, "0.0.9")
    whole = re.search(STATED[name], (checkout / name).read_text(), re.MULTILINE)
    assert whole and statement == VERSION
    replace(checkout / name, re.escape(whole[0]), whole[0].replace(VERSION, older))

    status, said = asked(checkout, "check", f"v{VERSION}")

    assert status == 1
    assert said == f"{name}: 0.0.9, pyproject.toml has {VERSION}\n"


def test_a_file_that_no_longer_states_it_is_named(checkout: Path) -> None:
    """So that a page which is written anew is not forgotten."""
    replace(checkout / "CITATION.cff", r"^version: .*\n", "")

    assert asked(checkout, "check", f"v{VERSION}") == (1, "CITATION.cff: states no version\n")


def test_a_second_tag_without_a_new_version_is_refused(checkout: Path) -> None:
    """And so is one that is no version."""
    for tag in ("v0.1.9", VERSION, f"v{VERSION}-2"):
        status, said = asked(checkout, "check", tag)

        assert (status, said) == (1, f"the tag is {tag}, pyproject.toml has {VERSION}\n")


def test_a_release_without_a_day_is_refused(checkout: Path) -> None:
    """As the changelog stands between releases."""
    replace(checkout / "CHANGELOG.md", r"^(## \[.+?\] - )\S+", r"\g<1>unreleased")

    said = asked(checkout, "check", f"v{VERSION}")

    assert said == (1, f"CHANGELOG.md: {VERSION} has no date\n")


def test_the_notes_are_this_versions_part_of_the_changelog(checkout: Path) -> None:
    """Neither its heading nor an older version's part."""
    with (checkout / "CHANGELOG.md").open("a") as changelog:
        changelog.write("\n## [0.0.9] - 2020-01-01\n\nOlder.\n")

    status, said = asked(checkout, "notes")

    whole = (checkout / "CHANGELOG.md").read_text()
    assert status == 0
    assert said in whole and "### Security" in said
    assert not {line for line in said.splitlines() if line.startswith("## ") or line == "Older."}


def test_a_released_chart_pulls_the_images_by_digest(checkout: Path) -> None:
    """From where they were pushed, with no value set."""
    assert asked(checkout, "pin", "registry.example:5000/team", *DIGESTS) == (0, "")

    found = images(checkout / "deploy" / "helm" / "headlight", {"device": "cuda"})

    assert found == [f"registry.example:5000/team/headlight@{digest}" for digest in DIGESTS]


def test_a_chart_in_which_nothing_is_left_to_pin_is_refused(checkout: Path) -> None:
    """It would pull what an earlier release built."""
    asked(checkout, "pin", "registry.example", *DIGESTS)

    status, said = asked(checkout, "pin", "registry.example", *DIGESTS)

    assert status == 1 and "values.yaml" in said


def images(chart: Path, values: dict[str, object]) -> list[str]:
    """The images of a rendered RayService: the head's, then its workers'."""
    asking = json.dumps({"chart": str(chart), "cases": {"one": {"kind": "RayService", **values}}})
    command = [sys.executable, CHARTS / "engine.py"]
    done = subprocess.run(command, input=asking, capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)["one"]["files"]
    cluster = yaml.safe_load(files["rayservice.yaml"])["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [each["template"]["spec"]["containers"][0]["image"] for each in groups]
