"""Stand-ins for CUDA's libraries, without which torch's build for arm64 does not load.

An index may have no CPU build of torch for arm64, and to the one for CUDA belong 2.3 GB of
libraries. None of them is called on a machine without a GPU: each stand-in has the symbols and the
versions that torch asks of it, and every function returns an error.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

COMPILER = "aarch64-linux-gnu-gcc"
OF_CUDA = "(?:cu|nccl|nvrtc|nvshmem|nvtx)"  # how names of libraries and of their functions begin
FAILED = 100  # cudaErrorNoDevice, and no success of the others either


def make_stubs(libraries: Path, folder: Path) -> None:
    """Compile into `folder` a stand-in for each CUDA library that torch's own libraries name."""
    symbols = defaultdict[str, defaultdict[str, set[str]]](lambda: defaultdict(set))
    loose, defined = set[str](), set[str]()
    for library in libraries.glob("*.so*"):
        for name in re.findall(rf"NEEDED.*\[(lib{OF_CUDA}.*)\]", _told("readelf", "-d", library)):
            symbols[name][""] |= set()
        homes = dict(_versions(library))
        for name, version in _undefined(library):
            if version in homes:
                symbols[homes[version]][version].add(name)
            elif not version and re.match(OF_CUDA, name):
                loose.add(name)
        defined |= set(
            _told("nm", "-D", "--defined-only", "--format=just-symbols", library).split()
        )
    symbols[min(symbols)][""] |= loose - defined  # the loader does not mind where it finds them
    folder.mkdir(parents=True, exist_ok=True)
    for name, versions in symbols.items():
        _compile(folder / name, versions)


def _told(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _versions(library: Path) -> Iterator[tuple[str, str]]:
    """Yield each version that a library asks of CUDA's, and of which."""
    home = ""
    for line in _told("readelf", "-W", "-V", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            home = found[1]
        elif (found := re.search(r"Name: (\S+) +Flags", line)) and re.match(f"lib{OF_CUDA}", home):
            yield found[1], home


def _undefined(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the symbols that a library asks of others, each with its version or ""."""
    for line in _told("nm", "-D", "--undefined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version


def _compile(library: Path, versions: dict[str, set[str]]) -> None:
    """Compile a library of functions that fail, by version."""
    names = sorted(set[str]().union(*versions.values()))
    source, script = library.with_suffix(".c"), library.with_suffix(".map")
    source.write_text("".join(f"int {name}(void) {{ return {FAILED}; }}\n" for name in names))
    blocks = [(version, names) for version, names in versions.items() if version]
    script.write_text("".join(f"{v} {{ {'; '.join(sorted(n))}; }};\n" for v, n in blocks))
    scripted = [f"-Wl,--version-script={script}"] if blocks else []
    options = ["-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", f"-Wl,-soname,{library.name}"]
    subprocess.run([COMPILER, *options, *scripted, source, "-o", library], check=True)
    source.unlink(), script.unlink()
