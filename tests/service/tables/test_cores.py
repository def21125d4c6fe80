"""The cores of a process: those it may run on, within the CPU quotas of its control groups."""

import math
import os
from pathlib import Path

import pytest

from service.tables import cores

DOCKER = "/docker/6f1c"
V1 = "12:cpu,cpuacct:{0}\n4:memory:{0}\n0::/\n"
V2 = "0::{0}\n"
# Files of the groups, by their path below the mount, and the cores that they leave
CASES: dict[str, tuple[str, str, dict[str, str], float]] = {
    "version 2": (V2, "/a", {"a/cpu.max": "250000 100000\n"}, 2.5),
    "version 2, none": (V2, "/a", {"a/cpu.max": "max 100000\n"}, math.inf),
    "version 2, a parent's": (
        V2,
        "/pod/own",
        {"pod/own/cpu.max": "400000 100000\n", "pod/cpu.max": "50000 100000\n"},
        0.5,
    ),
    "version 2, a container that sees its own": (V2, DOCKER, {"cpu.max": "300000 100000\n"}, 3),
    "version 1": (
        V1,
        DOCKER,
        {
            f"cpu,cpuacct{DOCKER}/cpu.cfs_quota_us": "200000\n",
            f"cpu,cpuacct{DOCKER}/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "version 1, a container that sees its own": (
        V1,
        DOCKER,
        {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/cpu.cfs_period_us": "50000\n"},
        3,
    ),
    "version 1, of another controller": (V1, "/", {"memory/cpu.max": "1000 100000\n"}, math.inf),
    "no groups": ("", "/", {}, math.inf),
}


@pytest.mark.parametrize(("groups", "path", "files", "left"), CASES.values(), ids=CASES)
def test_the_tightest_quota_of_the_processs_groups_counts(
    tmp_path: Path, groups: str, path: str, files: dict[str, str], left: float
) -> None:
    """Of its own group and all above it, as the kernel holds them."""
    (tmp_path / "membership").write_text(groups.format(path))
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert cores.quota(tmp_path / "groups", tmp_path / "membership") == left


@pytest.mark.parametrize(
    ("quota", "count", "told"),
    [
        (math.inf, 64, "64 cores"),
        (100.0, 64, "64 cores"),
        (2.5, 2, "2 of 64 cores (a CPU quota of 2.5)"),
        (0.5, 1, "1 of 64 cores (a CPU quota of 0.5)"),
    ],
)
def test_cores_are_those_it_may_run_on_within_its_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float, count: int, told: str
) -> None:
    """`docker run --cpus 2` on 64 cores is two lanes, not 64."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(cores, "quota", lambda: quota)

    assert (cores.count_cores(), cores.describe_cores()) == (count, told)
