"""What a release must be: the steps of .github/workflows/release.yml that are more than a command.

    python3 deploy/release.py check TAG              every place that states the version agrees
    python3 deploy/release.py unpublished REGISTRY   none of its images and charts is there yet
    python3 deploy/release.py pin REGISTRY CPU CUDA  the chart pulls these images, by digest
    python3 deploy/release.py notes                  what CHANGELOG.md says of it

The version stands in pyproject.toml. It needs no package, and skopeo for `unpublished`.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHART = r"^(?:version|appVersion): (\S+)"
IMAGE = r"\bheadlight:v?(\d+\.\d[\w.]*)"  # as pages name it; its build follows a hyphen
# Where the version is said again, and how. Each must be found, each time.
STATED = {
    "client/pyproject.toml": r'^version = "(.+)"',
    "pyproject.toml": r'"headlight-serve-client(?:\[\w+\])?==(.+?)"',
    "service/__init__.py": r'^VERSION = "(.+?)"',
    "deploy/helm/headlight/Chart.yaml": CHART,
    "deploy/helm/headlight-monitoring/Chart.yaml": CHART,
    "CITATION.cff": r"^version: (\S+)",
    "Dockerfile": IMAGE,
    "deploy/compose.yaml": IMAGE,
    "docs/deploy.md": IMAGE,
    "SECURITY.md": IMAGE,
}
# What a registry says, by skopeo, of a name that it does not have.
ABSENT = re.compile(r"manifest unknown|name unknown|not found", re.IGNORECASE)


def version() -> str:
    """Return the version that everything else repeats."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def disagreements(tag: str) -> Iterator[str]:
    """Say of each place that states another version than pyproject.toml, or none."""
    right = version()
    if tag != f"v{right}":
        yield f"the tag is {tag}, pyproject.toml has {right}"
    for name, pattern in STATED.items():
        found = re.findall(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        if not found:
            yield f"{name}: states no version"
        for each in sorted({*found} - {right}):
            yield f"{name}: {each}, pyproject.toml has {right}"
    if not re.match(r" - \d{4}-\d\d-\d\d$", _changes()[0]):
        yield f"CHANGELOG.md: {right} has no date"


def published(registry: str) -> Iterator[str]:
    """Give each image and chart of this version that a registry has.

    Raises:
        SystemExit: the registry does not say, with what it says instead.
    """
    right = version()
    names = [f"headlight:{right}-{build}" for build in ("cpu", "cuda")]
    names += [f"charts/{chart}:{right}" for chart in ("headlight", "headlight-monitoring")]
    for name in names:
        command = ["skopeo", "inspect", "--raw", f"docker://{registry}/{name}"]
        asked = subprocess.run(command, capture_output=True, text=True)
        if asked.returncode == 0:
            yield f"{registry}/{name}"
        elif not ABSENT.search(asked.stderr):
            sys.exit(asked.stderr)


def pin(registry: str, cpu: str, cuda: str) -> None:
    """Write into the chart's values where its images are and which they are."""
    path = ROOT / "deploy" / "helm" / "headlight" / "values.yaml"
    text = path.read_text()
    for pattern, value in [
        (r"(?<=^  registry: )\S.*$", f"{registry} # registry of the images"),
        (r'(?<=^    digest: )""', cpu),  # the first that is left: cpu stands before cuda
        (r'(?<=^    digest: )""', cuda),
    ]:
        text, found = re.subn(pattern, value, text, count=1, flags=re.MULTILINE)
        if not found:
            sys.exit(f"{path}: {pattern} is not there")
    path.write_text(text)


def notes() -> str:
    """Return what CHANGELOG.md says of this version."""
    return _changes()[1].strip() + "\n"


def _changes() -> tuple[str, str]:
    """The rest of this version's heading, and what stands below it."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heading = re.escape(f"## [{version()}]")
    found = re.search(rf"^{heading}(.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    return (found[1], found[2]) if found else ("", "")


def main() -> None:
    """Do what the first argument names; end with 1 and a line for each fault."""
    match sys.argv[1:]:
        case ["check", tag]:
            faults = [*disagreements(tag)]
        case ["unpublished", registry]:
            faults = [
                f"{name} is published: a release needs a new version"
                for name in published(registry)
            ]
        case ["pin", registry, cpu, cuda]:
            faults = []
            pin(registry, cpu, cuda)
        case ["notes"]:
            faults = []
            print(notes(), end="")
        case _:
            sys.exit(__doc__)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
