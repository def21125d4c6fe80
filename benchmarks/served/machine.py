"""What a figure was measured on: the processor, how busy it was, the commit and the versions."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CORES = len(os.sched_getaffinity(0))
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PACKAGES = ("headlight-serve", "ray", "torch", "numpy", "tokenizers")
# Of a processor's flags those that a matrix product may use: x86's, then ARM's
ISA = (
    *("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def describe_processor() -> dict[str, Any]:
    """Return what the kernel knows of the processor; a virtual machine's name says little."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "name": fields.get("model name", platform.machine()),
        "family, model, stepping": [
            fields.get(name, "") for name in ("cpu family", "model", "stepping")
        ],
        "isa": [name for name in ISA if name in flags],
        "cores": CORES,
        "hypervisor": "hypervisor" in flags,
        "caches": cache_sizes(),
    }


def cache_sizes() -> dict[str, str]:
    """Return the sizes of a core's caches, by level and kind."""
    return {
        f"L{(each / 'level').read_text().strip()} {(each / 'type').read_text().strip()}": (
            each / "size"
        )
        .read_text()
        .strip()
        for each in sorted(CACHES.glob("index*"))
    }


def load_averages() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


def current_commit() -> str:
    """Return this checkout's commit, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of what this environment serves with."""
    every = {"python": platform.python_version()}
    return every | {name: importlib.metadata.version(name) for name in PACKAGES}


def pinned_versions(lists: Iterable[Path], packages: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the versions of packages in lists of pinned requirements, by the lists' names."""
    wanted = set(packages)
    found: dict[str, dict[str, str]] = {}
    for each in lists:
        pins = (line.split("==") for line in each.read_text().splitlines())
        found[each.stem] = {name: version for name, version in pins if name in wanted}
    return found
