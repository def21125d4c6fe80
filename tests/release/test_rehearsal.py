"""A release made here, from the tag to an answer of the image that the pulled chart names.

`make release-rehearsal` installs what it needs and writes what happened to .rehearsal/log.md.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.release import machine
from tests.release.base import BASE, push_base, torch_index
from tests.release.machine import TOOLS, Registry, shell, surroundings
from tests.release.rehearsal import START, Release, Step, push
from tests.release.test_version import VERSION, replace
from tests.release.test_workflows import step
from tests.release.workflows import FOLDER, ROOT

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(
        bool(machine.missing()), reason="make release-rehearsal installs what this needs"
    ),
]
TAG = f"v{VERSION}"
GIT = ("git", "-c", "user.name=rehearsal", "-c", "user.email=rehearsal@example.org")


@dataclass(frozen=True)
class Place:
    """Where a rehearsal takes place."""

    folder: Path
    registry: Registry
    repository: Path  # at a commit that may be released, and has no tag yet
    index: str  # of torch's CPU builds


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """An empty registry, and a repository in which the changelog has its day."""
    folder = Path(f"/var/tmp/headlight-release-{os.getpid()}")
    folder.mkdir()
    try:
        with (
            machine.registry(folder / "registry") as registry,
            torch_index(folder / "index") as index,
        ):
            repository = folder / "repository"
            subprocess.run(["git", "clone", "-q", ROOT, repository], check=True)
            base = push_base(folder / "base", registry)
            replace(repository / "Dockerfile", BASE.pattern, f"ARG BASE={base}")
            replace(repository / "CHANGELOG.md", r"^(## \[.+?\] - )\S+", r"\g<1>2026-12-01")
            commit(repository, "Release it")
            yield Place(folder, registry, repository, os.environ.get("TORCH_INDEX") or index)
    finally:
        shutil.rmtree(folder)


def commit(repository: Path, message: str) -> None:
    """Commit whatever has changed there."""
    subprocess.run([*GIT, "-C", repository, "commit", "-qam", message], check=True)


def tagged(place: Place, tag: str, green: bool = True) -> Release:
    """What becomes of the repository's commit if it gets a tag, which is taken away again."""
    subprocess.run(["git", "-C", place.repository, "tag", tag], check=True)
    try:
        done = push(
            tag,
            place.repository,
            place.folder / "jobs",
            place.registry,
            place.index,
            (lambda _: True) if green else passes,
        )
    finally:
        delete = ["git", "-C", place.repository, "tag", "--delete", tag]
        subprocess.run(delete, check=True, capture_output=True)
    log(tag, str(done.jobs), *map(written, done.steps))
    return done


def passes(clone: Path) -> bool:
    """Whether what ci.yml runs ends well in a clone, which has this checkout's environment."""
    (clone / ".venv").symlink_to(ROOT / ".venv")
    for path in clone.rglob("*"):
        if path.is_file() and ".venv" not in path.parts:
            os.utime(path, (0, 0))  # older than what was installed of it
    ran = subprocess.run(
        [".ci/run"], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(ran.stdout[-2000:])
    return ran.returncode == 0


def log(title: str, *lines: str) -> None:
    """Append to what happened."""
    with (TOOLS / "log.md").open("a") as file:
        print(f"\n## {title}\n", *lines, sep="\n", file=file)


def written(step: Step) -> str:
    """A step as the log has it, with the end of what it said."""
    ended = "left out" if step.ended is None else f"{step.ended}, {step.seconds:.1f} s"
    said = "".join(f"\n      {line}" for line in step.said.splitlines()[-12:])
    return f"- {step.job}: {step.name}: {ended}{said}"


def names(place: Place, repository: str) -> list[str]:
    """The tags that the registry has of a repository."""
    variables = surroundings(fresh(place, "asking"), place.registry)
    done = shell(
        f"{login(place)}\nskopeo list-tags docker://{place.registry.address}/{repository}",
        place.folder / "asking",
        variables,
    )
    return [] if done.returncode else json.loads(done.stdout[done.stdout.index("{") :])["Tags"]


def login(place: Place) -> str:
    """A line that logs in as the workflow does."""
    registry = place.registry
    return (
        f"skopeo login {registry.address} --authfile $HOME/.docker/config.json"
        f" --username {registry.user} --password-stdin <<< {registry.token}"
    )


def fresh(place: Place, name: str) -> Path:
    """An empty folder."""
    shutil.rmtree(place.folder / name, ignore_errors=True)
    (place.folder / name).mkdir()
    return place.folder / name


def test_a_red_commit_is_not_released(place: Place) -> None:
    """A line that is badly formatted: the tests' own script ends there, and no job follows."""
    with (place.repository / "service" / "__init__.py").open("a") as file:
        file.write("ODD = [1,2]\n")
    commit(place.repository, "Format it badly")
    try:
        done = tagged(place, TAG, green=False)
    finally:
        subprocess.run(
            ["git", "-C", place.repository, "reset", "-q", "--hard", "HEAD~1"], check=True
        )

    assert (done.jobs.pop("version"), done.jobs.pop("tests")) == ("success", "failure")
    assert "publish" in done.jobs and {*done.jobs.values()} == {"skipped"}
    assert names(place, "team/headlight") == []


def test_a_tag_of_another_version_is_not_released(place: Place) -> None:
    """Nothing is even tested."""
    done = tagged(place, "v99.0.0")

    assert {*done.jobs.values()} == {"failure", "skipped"} and done.jobs["version"] == "failure"
    assert done.steps[-1].said == f"the tag is v99.0.0, pyproject.toml has {VERSION}\n"


@pytest.fixture(scope="module")
def released(place: Place) -> Release:
    """The tag of a commit that passed."""
    done = tagged(place, TAG)
    assert {*done.jobs.values()} == {"success"}, done.steps[-1]
    return done


def test_the_image_is_started_before_it_is_published(released: Release) -> None:
    """And answers with the bundled weights."""
    assert '"weights":"sha256:5fc648cb18e4"' in released.said(START)


@dataclass(frozen=True)
class User:
    """Someone who pulled the charts, on a machine that had nothing."""

    folder: Path
    variables: dict[str, str]
    images: dict[
        str, dict[str, object]
    ]  # each that the rendered chart names, as the registry has it

    def does(self, lines: str) -> str:
        """What some lines say; they end well."""
        done = shell(lines, self.folder, self.variables)
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def user(place: Place, released: Release) -> User:
    """Pulls both charts, renders a cluster with GPUs, and asks the registry for its images."""
    here = fresh(place, "user")
    one = User(here / "home", surroundings(here, place.registry), {})
    at = f"oci://{place.registry.address}/team/charts"
    said = one.does(f"""
        {login(place)}
        helm pull {at}/headlight --version {VERSION}
        helm pull {at}/headlight-monitoring --version {VERSION}
        helm template headlight headlight-{VERSION}.tgz \\
            --set kind=RayService,device=cuda > rendered.yaml
    """)
    rendered = [*yaml.safe_load_all((one.folder / "rendered.yaml").read_text())]
    for image in re.findall(r'"image": "(\S+?)"', json.dumps(rendered, default=str)):
        one.images[image] = inspected(one, image)
    log("A user", said + "\n".join(f"{image}: {found}" for image, found in one.images.items()))
    return one


def inspected(user: User, image: str) -> dict[str, object]:
    """What the registry says of an image; MB are of the layers of this machine's."""
    decoder = json.JSONDecoder()
    said = user.does(
        f"skopeo inspect --raw docker://{image}\necho\nskopeo inspect docker://{image}"
    )
    several, end = decoder.raw_decode(said)
    one = decoder.decode(said[end:])
    return {
        "digest": one["Digest"],
        "version": one["Labels"]["org.opencontainers.image.version"],
        "architectures": [each["platform"]["architecture"] for each in several["manifests"]],
        "MB": round(sum(layer["Size"] for layer in one.get("LayersData") or ()) / 1e6),
    }


def test_the_pulled_chart_names_images_that_are_there(place: Place, user: User) -> None:
    """By digest, of this version, for each architecture; their tags lead to the same."""
    name = f"{place.registry.address}/team/headlight"
    cpu, cuda = (inspected(user, f"{name}:{VERSION}-{build}") for build in ("cpu", "cuda"))

    assert user.images == {f"{name}@{each['digest']}": each for each in (cpu, cuda)}
    assert cpu["version"] == cuda["version"] == VERSION
    assert (cpu["architectures"], cuda["architectures"]) == (["amd64", "arm64"], ["amd64"])


def test_the_image_that_the_chart_names_answers(user: User) -> None:
    """Pulled by its digest, and started as its pod starts it; it has kept its health check."""
    (image,) = (name for name, found in user.images.items() if len(found["architectures"]) == 2)

    said = user.does(f"podman pull --quiet {image}\npodman tag {image} headlight")
    shown = user.does(
        "podman inspect --format '{{.Config.User}} {{.Size}} {{.HealthCheck}}' headlight"
    )
    answer = user.does(step("image", START))

    log("Its pod", said + shown + answer)
    assert '"weights":"sha256:5fc648cb18e4"' in answer
    assert shown.startswith("1000:1000 ") and "wget" in shown


def test_a_version_is_released_once(place: Place, released: Release) -> None:
    """Another commit with its tag finds each image and chart in the registry, and says so."""
    with (place.repository / "README.md").open("a") as page:
        page.write("\nLater.\n")
    commit(place.repository, "Change it without a new version")

    done = tagged(place, TAG)

    at = f"{place.registry.address}/team"
    there = [
        f"headlight:{VERSION}-cpu",
        f"headlight:{VERSION}-cuda",
        f"charts/headlight:{VERSION}",
        f"charts/headlight-monitoring:{VERSION}",
    ]
    assert done.jobs["version"] == "failure" and done.jobs["publish"] == "skipped"
    assert done.steps[-1].said.splitlines() == [
        f"{at}/{name} is published: a release needs a new version" for name in there
    ]


def test_actionlint_and_zizmor_find_nothing_high_or_medium() -> None:
    """In each workflow, and in Dependabot's file; zizmor without asking GitHub."""
    linter = TOOLS / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"
    checks = [
        ["node", str(linter), str(FOLDER / "*.yml")],
        [
            str(TOOLS / "lint" / "bin" / "zizmor"),
            "--offline",
            "--min-severity",
            "medium",
            str(ROOT / ".github"),
        ],
    ]
    for check in checks:
        done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)

        assert done.returncode == 0, done.stdout + done.stderr
