"""How many cores this process may keep busy: those that it may run on, within its CPU quotas.

Source: Linux, "Control Group v2" (cpu.max) and "CFS Bandwidth Control" (version 1).
"""

import math
import os
from pathlib import Path

# Where control groups are mounted, and which ones this process is in
GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NO_QUOTA = ("max", "-1")  # in version 2 and in version 1


def count_cores() -> int:
    """Return the number of cores that this process may keep busy, at least 1."""
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota())))


def describe_cores() -> str:
    """Return the number of cores in words, with the CPU quota where one leaves fewer."""
    here, allowed = len(os.sched_getaffinity(0)), quota()
    return (
        f"{here} cores"
        if allowed >= here
        else f"{count_cores()} of {here} cores (a CPU quota of {allowed:g})"
    )


def quota(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the cores that the tightest quota of this process's control groups allows, or inf.

    Args:
        groups: where they are mounted; a container sees its own there, with a host's path too.
        membership: the process's groups, as /proc has them.
    """
    tightest = math.inf
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = groups / controllers  # version 2 has one hierarchy, and names no controllers
        own = top / path.strip("/")
        for group in (own, *own.parents):
            tightest = min(tightest, _quota_of_group(group))
            if group == top:
                break
    return tightest


def _quota_of_group(group: Path) -> float:
    """Return the cores that one control group's CPU quota allows, or inf."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            microseconds, period = " ".join((group / name).read_text() for name in names).split()
        except OSError:
            continue
        return math.inf if microseconds in NO_QUOTA else int(microseconds) / int(period)
    return math.inf
