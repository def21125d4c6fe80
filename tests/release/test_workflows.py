"""The workflows as they stand: nothing red is published, nothing is pulled that was not pushed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.release.test_version import CHARTS, VERSION, images
from tests.release.workflows import FOLDER, before, holds, legs, read, steps

RELEASE = read("release.yml")
CI = read("ci.yml")
ALL = sorted(path.name for path in FOLDER.glob("*.yml"))
# of steps and jobs: each would let a release go on after something has failed
CARELESS = re.compile(r"continue-on-error|always\(|failure\(|cancelled\(")


def test_what_a_merge_must_pass_a_release_must_pass() -> None:
    """On the tag's commit: a workflow of the repository is taken from the caller's."""
    assert RELEASE["jobs"]["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in CI["on"]
    assert {"run": ".ci/run"} in CI["jobs"]["test"]["steps"]


def test_nothing_is_built_or_published_after_a_red_test() -> None:
    """Every job but the check of the version waits for the tests, and none goes on regardless."""
    waiting = {*RELEASE["jobs"]} - {"version", "tests"}

    assert all("tests" in before(RELEASE, name) for name in waiting)
    assert before(RELEASE, "page") == {*RELEASE["jobs"]} - {"page"}
    assert not any(
        CARELESS.search((FOLDER / name).read_text())
        for name in ("ci.yml", "wheels.yml", "release.yml")
    )


@pytest.mark.parametrize("name", ALL)
def test_every_action_is_named_by_its_commit(name: str) -> None:
    """A tag can be moved; the version stands beside it, for people and for Dependabot."""
    lines = re.findall(r"^.*\buses: (.+)$", (FOLDER / name).read_text(), re.MULTILINE)

    foreign = [line for line in lines if not line.startswith("./")]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in foreign)
    assert all(
        "@sha256:" in job["container"] for job in read(name)["jobs"].values() if "container" in job
    )


@pytest.mark.parametrize("name", ALL)
def test_no_expression_stands_in_a_shell(name: str) -> None:
    """What is written there would be run; and the lines could not be run elsewhere."""
    assert not [step for step in steps(read(name)) if "${{" in step.get("run", "")]


def test_a_job_may_do_what_it_has_to_and_no_more() -> None:
    """None but the last writes to the repository; only what signs has an identity."""
    jobs = RELEASE["jobs"]
    written = {
        name: {key for key, value in job["permissions"].items() if value == "write"}
        for name, job in jobs.items()
    }

    assert RELEASE["permissions"] == {} and CI["permissions"] == {"contents": "read"}
    assert written == {
        **dict.fromkeys(["version", "tests", "wheels", "image"], set()),
        "publish": {"id-token", "attestations"},
        "index": {"id-token"},
        "page": {"contents"},
    }


def test_each_architecture_has_a_runner_of_its_own_and_none_ends_another() -> None:
    """An emulated build of CUDA's image takes longer than a job may."""
    for job in (CI["jobs"]["test"], RELEASE["jobs"]["image"]):
        assert job["strategy"]["fail-fast"] is False
        runners = {leg["arch"]: leg["runner"] for leg in legs(job)}
        assert runners == {"amd64": "ubuntu-24.04", "arm64": "ubuntu-24.04-arm"}


def test_an_image_called_cpu_is_not_built_without_an_index_of_torchs_cpu_builds() -> None:
    """pip's own torch is CUDA's; the refusal says where the address is found."""
    line = step("version", "Require what a release needs")
    given = {"PATH": os.environ["PATH"], "REGISTRY": "registry.example"}

    without = subprocess.run(["bash", "-ec", line], env=given, capture_output=True, text=True)
    set_ = {**given, "TORCH_INDEX": "https://index.example"}

    assert without.returncode == 1
    assert "TORCH_INDEX" in without.stderr and "pytorch.org/get-started" in without.stderr
    assert subprocess.run(["bash", "-ec", line], env=set_).returncode == 0
    for leg in legs(RELEASE["jobs"]["image"]):
        assert leg["index"] == ("${{ vars.TORCH_INDEX }}" if leg["build"] == "cpu" else "")


RECORDER = """#!/bin/sh
[ "$1 $2" = "manifest push" ] && echo "$@" >> pushed
while [ "$#" -gt 1 ]; do [ "$1" = --digestfile ] && echo sha256:0 > "$2"; shift; done
"""


def test_the_names_that_are_pushed_are_those_that_the_chart_pulls(tmp_path: Path) -> None:
    """The chart of a checkout, which has no digests, by its version."""
    (tmp_path / "podman").write_text(RECORDER)
    (tmp_path / "podman").chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "REGISTRY": "registry.example",
        "GITHUB_REF_NAME": f"v{VERSION}",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    line = step("publish", "Put the images of all architectures under one name")

    subprocess.run(["bash", "-eo", "pipefail", "-c", line], env=given, cwd=tmp_path, check=True)

    pushed = re.findall(r"docker://(\S+)$", (tmp_path / "pushed").read_text(), re.MULTILINE)
    assert pushed == images(CHARTS / "headlight", {"device": "cuda"})


def test_what_is_put_under_one_name_is_what_was_built() -> None:
    """Each architecture of each build, once."""
    line = step("publish", "Put the images of all architectures under one name")
    published = {
        (build, arch)
        for build, archs in re.findall(r"^publish (\w+) (.+)$", line, re.MULTILINE)
        for arch in archs.split()
    }

    built = [(leg["build"], leg["arch"]) for leg in legs(RELEASE["jobs"]["image"])]
    assert sorted(built) == sorted(published)


def test_a_condition_that_is_not_known_here_is_no_truth() -> None:
    """The rehearsal would otherwise run, or leave out, what GitHub does not."""
    assert holds("matrix.build == 'cuda'", {"matrix": {"build": "cuda"}})
    assert not holds("matrix.build == 'cuda'", {"matrix": {"build": "cpu"}})
    with pytest.raises(ValueError, match=r"always\(\)"):
        holds("always()", {})


def step(job: str, name: str) -> str:
    """What one step of the release does in a shell."""
    (found,) = (each["run"] for each in RELEASE["jobs"][job]["steps"] if each.get("name") == name)
    return str(found)
