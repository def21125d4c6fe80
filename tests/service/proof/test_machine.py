"""service/proof/machine.py"""

import itertools
from typing import Any

import pytest
import torch

from model import kernels
from service.proof import machine
from service.tables.settings import Settings


@pytest.mark.parametrize(
    ("dtype", "half", "promised"),
    [
        ("auto", False, True),
        ("float32", False, True),
        ("bfloat16", True, True),
        ("bfloat16", False, False),
        ("float16", True, False),
    ],
)
def test_equal_bits_are_required_of_what_the_processor_computes_itself(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, half: bool, promised: bool
) -> None:
    """Of float32, and of bfloat16 where there is avx512_bf16; elsewhere the start is refused."""
    monkeypatch.setattr(kernels, "HAS_HALF", half)
    monkeypatch.setattr(kernels, "find_attention", lambda half: True)
    monkeypatch.setattr(kernels, "_agrees_with_plain", lambda *_: True)
    settings = Settings(device="cpu", dtype=dtype, require_same_bits=True)

    if promised:
        machine.check_same_bits(settings)
    else:
        with pytest.raises(machine.Unservable, match="--dtype float32 or, on a processor with"):
            machine.check_same_bits(settings)


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
