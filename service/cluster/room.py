"""What this machine has free for a service of its own: memory, shared memory, files."""

import shutil
from pathlib import Path

from service.settings import MIB

STORE_BYTES = 80 * MIB  # of Ray's shared memory, which carries no requests; its least is 75 MiB
# Where Ray keeps it, and where it does when that is too small
SHARED, TEMPORARY = Path("/dev/shm"), Path("/tmp")
# of a control group, version 2 and 1: its bound, its use, and how much of that is cache of files,
# which the kernel gives up where room is needed
GROUPS = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        ("inactive_file", "active_file"),
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def memory() -> int:
    """Bytes that processes may still take: of the machine, or less where a container is bounded."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {name: int(size) * 1024 for name, size, *_ in lines}
    free = sizes["MemAvailable:"] + sizes["SwapFree:"]
    lefts = (_left(*group) for group in GROUPS)
    return min([free, *(left for left in lefts if left is not None)])


def _left(bound: str, used: str, parts: str, files: tuple[str, ...]) -> int | None:
    """What a control group has left, or None where it has no bound."""
    try:
        most = Path(bound).read_text().strip()
        if most == "max":
            return None
        sizes = dict(line.split() for line in Path(parts).read_text().splitlines())
        return int(most) - int(Path(used).read_text()) + sum(int(sizes[name]) for name in files)
    except (OSError, KeyError):
        return None


def files(place: Path) -> int:
    """Free bytes where a folder lies; none where there is no folder."""
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return 0
