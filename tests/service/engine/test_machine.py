"""service/engine/machine.py"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from service.engine import machine
from service.settings import Settings


@pytest.mark.parametrize(
    ("dtype", "quick", "slow"),
    [
        ("float32", {torch.float32}, False),
        ("bfloat16", {torch.float32}, True),
        ("bfloat16", {torch.float32, torch.bfloat16}, False),
        ("float16", {torch.float32, torch.bfloat16}, True),
    ],
)
def test_a_number_format_that_is_slow_on_this_processor_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: Any,
    quick: set[torch.dtype],
    slow: bool,
) -> None:
    """In one line at the start, which says that float32 is faster; it is served all the same."""
    monkeypatch.setattr(machine, "FAST_PRECISIONS", quick)

    assert machine.choose_precision(Settings(device="cpu", dtype=dtype))[1] is getattr(torch, dtype)

    lines = [f"{dtype} is probably slower than float32 on this processor"] if slow else []
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == lines


def test_bfloat16_is_quick_on_a_processor_with_amx() -> None:
    """By the processor's own list of what it can."""
    listed = Path("/proc/cpuinfo")
    able = listed.exists() and "amx_tile" in listed.read_text()

    assert (torch.bfloat16 in machine.FAST_PRECISIONS) is able


@pytest.mark.parametrize(
    ("device", "threads", "lanes"), [("cpu", 3, 3), ("cuda", 1, 1), ("cuda", None, 1)]
)
def test_lanes_follow_the_device_and_not_the_cores(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: int | None, lanes: int
) -> None:
    """A batch on a GPU has all of it; one on a processor has a core."""
    monkeypatch.setattr(machine, "count_cores", lambda: 7)

    assert machine.count_lanes(Settings(threads=threads), torch.device(device)) == lanes


def test_a_processor_has_a_lane_for_each_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas share the machine evenly."""
    monkeypatch.setattr(machine, "count_cores", lambda: 7)

    assert machine.count_lanes(Settings(replicas=2), torch.device("cpu")) == 3


def test_more_threads_than_a_gpu_has_lanes_are_refused() -> None:
    """They would make a replica believe in as many times its speed."""
    with pytest.raises(machine.Unservable, match="threads 5"):
        machine.count_lanes(Settings(threads=5), torch.device("cuda"))


@pytest.mark.parametrize(
    ("replicas", "gpus", "part"),
    [(1, 2, 1), (3, 3, 1), (2, 1, 0.5), (5, 2, 0.3333), (6, 1, 0.1666), (7, 5, 0.5)],
)
def test_replicas_share_gpus_evenly(replicas: int, gpus: int, part: float) -> None:
    """None lies on two of them."""
    assert machine.gpu_share(replicas, gpus) == part


def test_every_replica_finds_its_part_of_a_gpu() -> None:
    """As Ray counts, in ten-thousandths: a sixth rounded up would leave the sixth one outside."""
    for gpus, replicas in itertools.product((1, 2, 3, 5, 7), range(1, 257)):
        part = round(machine.gpu_share(replicas, gpus) * 10_000)

        assert gpus * (10_000 // part) >= replicas
