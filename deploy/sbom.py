"""Adds to a CycloneDX list of packages what no package manager says of them; `make sbom`.

    libraries   those inside wheels, found in their files: HAProxy's OpenSSL, Rust's crates
    Debian      the packages of an image, from dpkg's status file
    base        the image that the Dockerfile builds on, by digest

Reads the list on stdin and writes it on stdout. A library has its evidence next to it: the words in
a file that name it, and the files. A wheel that is not installed here was not looked into, and
says so.
"""

import json
import mmap
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent
Found = dict[str, Any]

# What a library's own files say of it. Without a group it has no version that a file would tell.
SAID = {
    "boringssl": rb"BoringSSL",
    "grpc": rb"grpc-c\+\+/",
    "haproxy": rb" version (\d+\.\d+\.\d+)-[0-9a-f]{7,}, released [\d/]+",
    "hiredis": rb"hiredis\.c\0",
    "jemalloc": rb"\0(\d+\.\d+\.\d+)-\d+-g[0-9a-f]{40}\0",
    "lua": rb"\$LuaVersion: Lua (\d+\.\d+\.\d+) ",
    "onednn": rb"info,oneDNN v%d",
    "onemkl": rb"Intel oneMKL FATAL ERROR",
    "openblas": rb"OpenBLAS (\d+\.\d+\.\d+)",
    "openssl": rb"OpenSSL (\d+\.\d+\.\d+[a-z]?) {1,2}\d{1,2} [A-Z][a-z]{2} \d{4}",
    "pcre": rb"(8\.\d\d) \d{4}-\d\d-\d\d\0",
    "zlib": rb" (?:in|de)flate (\d+\.\d+(?:\.\d+)*) Copyright",
}
PATTERNS = {name: re.compile(words) for name, words in SAID.items()}
# Where rustc found a crate, which a panic would say
CRATE = re.compile(rb"/registry/src/[^/\0]+/([a-z0-9_-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/")
NUMBERED = re.compile(r"(lib.+?)(?:-[0-9a-f]{8})*\.so\.\d")  # no file of a wheel's own has a number
PARENT = "headlight:libraries"


def libraries(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what is linked into one file: package URL's type and name, version, evidence."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size < 4:
        return
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        if content[:4] != b"\x7fELF":
            return
        named = False
        for name, pattern in PATTERNS.items():
            if match := pattern.search(content):
                named = True
                version = match[1].decode() if pattern.groups else ""
                yield f"generic/{name}", version, match[0].strip(b"\0 ").decode()
        for name, version in sorted({match.groups() for match in CRATE.finditer(content)}):
            yield f"cargo/{name.decode()}", version.decode(), f"{name.decode()}-{version.decode()}"
        if not named and (match := NUMBERED.match(file.name)):
            yield f"generic/{match[1]}", "", file.name


def inside(distribution: metadata.Distribution) -> list[Found]:
    """Return the libraries in the files of an installed wheel, each with where it was found."""
    found: dict[tuple[str, str], Found] = {}
    for path in distribution.files or ():
        for name, version, words in libraries(Path(str(distribution.locate_file(path)))):
            url = f"pkg:{name}" + (f"@{version}" if version else "")
            technique = "filename" if words == path.name else "binary-analysis"
            method = {"technique": technique, "confidence": 1, "value": words}
            one: Found = found.setdefault(
                (name, version),
                {
                    "type": "library",
                    "bom-ref": f"{distribution.name}/{url}",
                    "name": name.partition("/")[2],
                    **({"version": version} if version else {}),
                    "purl": url,
                    "evidence": {
                        "identity": [
                            {"field": "version" if version else "name", "methods": [method]}
                        ],
                        "occurrences": [],
                    },
                },
            )
            one["evidence"]["occurrences"].append({"location": str(path)})
    return [found[key] for key in sorted(found)]


def looked_into(component: Found, installed: dict[str, metadata.Distribution]) -> int | None:
    """Put a wheel's libraries into its component: how many, or None where it is not installed."""
    here = installed.get(component["name"].lower().replace("_", "-"))
    if here is None or here.version.partition("+")[0] != component.get("version"):
        note = {"name": PARENT, "value": "not looked for: this wheel is not installed here"}
        component.setdefault("properties", []).append(note)
        return None
    if found := inside(here):
        component["components"] = found
    return len(found)


def debian(status: str, distribution: str) -> list[Found]:
    """Return the packages of dpkg's status file that are installed.

    Raises:
        ValueError: it is no such file.
    """
    entries = [dict(re.findall(r"^([\w-]+): (.*)$", each, re.M)) for each in status.split("\n\n")]
    found = []
    for entry in entries:
        if entry.get("Status", "").endswith(" installed"):
            name, version, architecture = (entry[k] for k in ("Package", "Version", "Architecture"))
            url = f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}"
            url += f"?arch={architecture}&distro={distribution}"
            found.append(
                {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
            )
    if not found:
        raise ValueError("no package is installed there: is it dpkg's status file?")
    return found


def base(dockerfile: str) -> tuple[Found, str]:
    """Return the image that is built on, and the name of its Debian."""
    match = re.search(r"^ARG BASE=(\w+):([\w.-]+)@(sha256:[0-9a-f]{64})$", dockerfile, re.M)
    if match is None:
        raise ValueError("the Dockerfile's BASE has no digest")
    url = f"pkg:oci/{match[1]}@{match[3].replace(':', '%3A')}?tag={match[2]}"
    found = {"type": "container", "bom-ref": url, "name": match[1], "version": match[2]}
    return {**found, "purl": url}, match[2].rpartition("-")[2]


@click.command()
@click.option("--debian", "status", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(status: Path | None) -> None:
    """Read a list on stdin, write it with what was found on stdout."""
    bom = json.load(sys.stdin)
    installed = {each.name.lower().replace("_", "-"): each for each in metadata.distributions()}
    cuda = any(component["name"].startswith("nvidia-") for component in bom["components"])
    if "torch" in installed and installed["torch"].version.endswith("+cpu") == cuda:
        del installed["torch"]  # the other build, under the same number
    counts = [looked_into(component, installed) for component in bom["components"]]
    image, distribution = base((ROOT / "Dockerfile").read_text())
    packages = debian(status.read_text(), distribution) if status else []
    bom["components"] += [image, *packages]
    json.dump(bom, sys.stdout, indent=2)
    read = [count for count in counts if count is not None]
    click.echo(
        f"sbom: {sum(read)} libraries in {len(read)} of {len(counts)} wheels,"
        f" {f'{len(packages)} Debian packages' if status else 'Debian packages left out'}",
        err=True,
    )


if __name__ == "__main__":
    main()
