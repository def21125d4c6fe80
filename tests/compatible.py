"""Run the tests of the rooms that use a library with other releases of it: `make compatible`.

    python -m tests.compatible                      each of RELEASES
    python -m tests.compatible torch==2.15.0 ...    those named

A release is installed, with all that it brings, in an environment of its own under
build/compatible. Other packages are this environment's; the checkout is a copy, whose compiled pass
is built for that torch. Each release prints its row of the table in docs/upstream.md, and what
passed is removed: torch's build for CUDA takes 5 GB.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "compatible"
TORCHS = (
    "tests/model",
    "tests/service/engine",
    "tests/service/proof",
    "tests/service/files",
    "tests/service/start",
    "tests/service/cluster",
)
TRANSFORMERS = (  # of which the service asks for tokenizers alone, and tests for models
    "tests/model",
    "tests/service/engine",
    "tests/service/files",
    "tests/service/commands/test_convert.py",
    "tests/ray/test_families.py",
)
# What pyproject.toml allows besides constraints.txt's releases, which are those of `make test`,
# and the rooms that touch it.
RELEASES = {"torch==2.15.0": TORCHS, "transformers==5.24.0": TRANSFORMERS}
SERVED = ("tests/ray/test_invariance.py", "tests/ray/test_serve.py", "tests/ray/test_stop.py")
REHEARSAL = ("benchmarks/gpu.py", "--rehearse")  # a GPU's path without a card
BUILD = "setuptools>=77"  # as pyproject.toml asks; venv brings an older one
LOADS = "from model.native import library; library.load_operator()"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600")
ALONE = ("--no-compile", "--no-deps", "--no-build-isolation")
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")


def library(requirement: str) -> str:
    """Return the name of the library that a requirement is of."""
    return re.split(r"\W", requirement, maxsplit=1)[0]


def install(requirement: str, folder: Path) -> Path:
    """Install a release with what it brings, and a copy of the checkout on it.

    Args:
        folder: made anew; gets the environment `env` and the checkout `tree`.

    Returns:
        The environment's Python.

    Raises:
        CalledProcessError: there is no such release, or it cannot be installed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder / "env", with_pip=True)
    python, tree = folder / "env" / "bin" / "python", folder / "tree"
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--no-compile", BUILD, requirement], check=True)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    # after its own, and pip does not see them while it chooses what the release brings
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    checkout = [*pip, *ALONE, "--editable", "./client", "--editable", "."]
    # the compiled pass is in the copy already, for the torch of .venv
    compiler = {} if library(requirement) == "torch" else {"CC": "none", "CXX": "none"}
    subprocess.run(checkout, cwd=tree, check=True, env={**os.environ, **compiler})
    subprocess.run([python, "-c", LOADS], cwd=tree, check=True)
    return python


def count(python: Path, tree: Path, *arguments: str) -> Counter[str]:
    """Run tests; return how many passed, failed and were skipped.

    Raises:
        RuntimeError: pytest could not run.
    """
    command = [python, *PYTEST, *arguments]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-20_000:], flush=True)
    if done.returncode > 1:
        raise RuntimeError(f"pytest ended with status {done.returncode}")
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout.splitlines()[-1])
    return Counter({"failed" if how == "error" else how: int(number) for number, how in found})


def run(python: Path, tree: Path, rooms: tuple[str, ...]) -> Counter[str]:
    """Run the tests of some rooms; where they are torch's, a service's and the rehearsal too."""
    told = count(python, tree, "-m", "not ray and not prove", "-n", "2", *rooms)
    if rooms == TORCHS:
        told += count(python, tree, "-m", "ray and not prove", *SERVED)
        rehearsed = subprocess.run([python, *REHEARSAL], cwd=tree)
        told["failed" if rehearsed.returncode else "passed"] += 1
    return told


def row(requirement: str, python: Path, told: Counter[str]) -> str:
    """Return a release's row of the table in docs/upstream.md, without what was mended."""
    name = library(requirement)
    asked = [python, "-c", f"import {name}; print({name}.__version__)"]
    release = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    counts = " | ".join(f"{told[how]:,}" for how in ("passed", "failed", "skipped"))
    return f"| {name} | {release} | {counts} | {datetime.now(UTC):%Y-%m-%d} | |"


def main(requirements: Sequence[str]) -> bool:
    """Try each of some RELEASES; return whether all passed."""
    rows, failed = [], []
    for requirement, rooms in [(each, RELEASES[each]) for each in requirements]:
        folder = PLACE / re.sub(r"\W+", "-", requirement)
        try:
            python = install(requirement, folder)
            told = run(python, folder / "tree", rooms)
        except (subprocess.CalledProcessError, RuntimeError) as error:
            failed.append(f"{requirement}: {error}")
            continue
        rows.append(row(requirement, python, told))
        if told["failed"]:
            failed.append(f"{requirement}: its environment stays in {folder}")
        else:
            shutil.rmtree(folder)
    print("\n".join([*rows, *failed]))
    return not failed


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:] or RELEASES))
