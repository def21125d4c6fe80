"""A release, job after job, by the shell lines of the workflow itself.

Each job has a clone of the tag and a machine that knows nothing of the others; a job whose need has
failed is skipped, as GitHub does. Of what is no shell, `uses: actions/checkout` is that clone, and
the rest is left out and listed. One image is built whole; instead of the others, of another
processor or with several GB of CUDA, a stand-in of one file is built, pushed and put into the lists
by the same lines.
"""

import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.release.machine import Registry, shell, surroundings
from tests.release.workflows import Names, Workflow, fill, holds, legs, needs, read

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
ELSEWHERE = {  # steps that only GitHub can do
    "Make room": "a hosted runner's disk",
    "Publish them, with what the images hold": "GitHub's own API",
}
CLONE = ("git", "-c", "advice.detachedHead=false", "clone", "-q")
START = "Start it as a pod does, and ask once"
STAND_IN = """\
FROM --platform=linux/{arch} scratch
ARG TORCH_INDEX
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.version="${{VERSION}}"
LABEL org.opencontainers.image.revision="${{REVISION}}"
COPY LICENSE /
"""


@dataclass
class Step:
    """One step that was run, or why it was not."""

    job: str
    name: str
    said: str
    ended: int | None = None  # the exit status; None: left out
    seconds: float = 0.0


@dataclass
class Release:
    """What became of a tag that was pushed."""

    steps: list[Step] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)  # success, failure or skipped

    def said(self, name: str) -> str:
        """Return what a step said, in whichever of its job's runs was not a stand-in's."""
        return next(
            step.said for step in self.steps if step.name == name and step.ended is not None
        )


def push(
    tag: str,
    repository: Path,
    folder: Path,
    registry: Registry,
    index: str,
    tested: Callable[[Path], bool],
) -> Release:
    """Do what pushing a tag starts.

    Args:
        repository: has the tag.
        folder: for clones and images; made, and gone at the end.
        index: of torch's CPU builds.
        tested: tells of a clone whether the workflow of the tests ends well there.
    """
    workflow = read("release.yml", repository / ".github" / "workflows")
    names = {
        "vars": {
            "REGISTRY": f"{registry.address}/team",
            "REGISTRY_USER": registry.user,
            "TORCH_INDEX": index,
        },
        "secrets": {"REGISTRY_TOKEN": registry.token},
        "github": {"token": ""},
        "env": workflow["env"],
    }
    done = Release()
    for name, job in workflow["jobs"].items():
        if any(done.jobs[need] != "success" for need in needs(job)):
            done.jobs[name] = "skipped"
            continue
        outcomes = []
        for leg in legs(job):
            here = folder / "-".join([name, *(leg[key] for key in ("build", "arch") if key in leg)])
            clone = here / "checkout"
            subprocess.run([*CLONE, "-b", tag, repository, clone], check=True)
            if name == "tests":
                outcomes.append(tested(clone))
            elif "uses" in job:
                done.steps.append(Step(name, job["uses"], "a workflow with tests of its own"))
            else:
                outcomes.append(
                    _run(done, workflow, name, {**names, "matrix": leg}, clone, registry)
                )
            shutil.rmtree(here)
        done.jobs[name] = "success" if all(outcomes) else "failure"
    return done


def _run(
    done: Release, workflow: Workflow, name: str, names: Names, clone: Path, registry: Registry
) -> bool:
    """Run a job's steps up to the first that fails; tell whether none did."""
    job = workflow["jobs"][name]
    leg = names["matrix"]
    stand_in = "build" in leg and (leg["build"], leg["arch"]) != ("cpu", ARCH)
    if stand_in:
        (clone / "Dockerfile").write_text(STAND_IN.format(arch=leg["arch"]))
    machine = surroundings(clone.parent, registry)
    machine |= _of_github(clone)
    outputs: dict[str, Any] = {}
    names = {**names, "steps": outputs}
    for step in job["steps"]:
        title = step.get("name", step.get("uses", ""))
        record = Step(
            "-".join([name, *(leg[key] for key in ("build", "arch") if key in leg)]), title, ""
        )
        left = _left_out(step, names, stand_in)
        if left is not None:
            record.said = left
            done.steps.append(record)
            continue
        given = {**workflow["env"], **job.get("env", {}), **step.get("env", {})}
        variables = machine | {key: fill(value, names) for key, value in given.items()}
        started = time.monotonic()
        ran = shell(step["run"], clone, variables)
        record.said, record.ended = ran.stdout, ran.returncode
        record.seconds = time.monotonic() - started
        done.steps.append(record)
        if ran.returncode:
            return False
        if "id" in step:
            lines = (clone.parent / "output").read_text().splitlines()
            outputs[step["id"]] = {"outputs": dict(line.split("=", 1) for line in lines)}
    return True


def _left_out(step: dict[str, Any], names: Names, stand_in: bool) -> str | None:
    """Say why a step is not run here, if it is not."""
    if "run" not in step:
        return "an action"
    if "if" in step and not holds(step["if"], names):
        return f"not if {step['if']}"
    if stand_in and step["name"] == START:
        return "a stand-in"
    return ELSEWHERE.get(step["name"])


def _of_github(clone: Path) -> dict[str, str]:
    """What GitHub sets for each step."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(clone), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return {
        "GITHUB_REF_NAME": git("describe", "--tags", "--exact-match"),
        "GITHUB_SHA": git("rev-parse", "HEAD"),
        "GITHUB_OUTPUT": str(clone.parent / "output"),
    }
