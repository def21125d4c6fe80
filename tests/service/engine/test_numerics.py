"""service/engine/numerics.py"""

import numpy as np
import pytest
import torch

from service.engine import numerics

CPU = torch.device("cpu")
CANARY = np.arange(35, dtype=np.float32).reshape(5, 7)


def test_the_arithmetic_is_named_by_what_its_bits_follow_from() -> None:
    """Device, number format, kernels, processor, torch, and the digest of what came out."""
    device, precision, kernel, unit, release, digest = numerics.name(
        CPU, torch.bfloat16, "plain", CANARY
    ).split("-")

    assert (device, precision, kernel) == ("cpu", "bf16", "plain")
    assert unit == torch.backends.cpu.get_cpu_capability().lower()
    assert torch.__version__.startswith(release) and "+" not in release
    assert int(digest, 16) >= 0 and len(digest) == 6


def test_a_changed_bit_of_the_canary_is_another_arithmetic() -> None:
    """Two machines that give it other bits do not promise equal ones."""
    other = CANARY.copy()
    other[4, 6] = np.nextafter(other[4, 6], 99, dtype=np.float32)

    names = {numerics.name(CPU, torch.float32, "plain", one) for one in (CANARY, other)}

    assert len(names) == 2
    assert names == {
        numerics.name(CPU, torch.float32, "plain", one.copy()) for one in (CANARY, other)
    }


def test_kinds_of_gpu_are_told_apart() -> None:
    """An A100, an H100 on PCIe, an H200."""
    assert [numerics.multiprocessors(8, 0, 108), numerics.multiprocessors(9, 0, 114)] == [
        "sm80x108",
        "sm90x114",
    ]
    assert numerics.multiprocessors(9, 0, 132) == "sm90x132"


def test_vectors_are_apart_by_the_length_of_their_difference() -> None:
    """As a share of the expected one's length, in the worst row: 5 of 10, not 0 of 13."""
    expected = np.array([[6.0, 8.0], [5.0, 12.0]])
    found = np.array([[9.0, 12.0], [5.0, 12.0]])

    assert numerics.apart(found, expected) == pytest.approx(0.5)
    assert numerics.apart(expected, expected) == 0
    assert numerics.apart(0 * found, 0 * expected) == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_as_far_apart_as_can_be(wrong: float) -> None:
    """No limit lets it pass."""
    found = CANARY.copy()
    found[1, 3] = wrong

    assert numerics.apart(found, CANARY) == np.inf
