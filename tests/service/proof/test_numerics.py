"""service/proof/numerics.py"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from service.proof import numerics

CPU = torch.device("cpu")
CANARY = np.arange(35, dtype=np.float32).reshape(5, 7)


def test_the_arithmetic_is_named_by_what_its_bits_follow_from() -> None:
    """Device, number format, kernels, processor, torch, and the digest of what came out."""
    device, precision, kernel, unit, release, digest = numerics.name_arithmetic(
        CPU, torch.bfloat16, "plain", CANARY
    ).split("-")

    assert (device, precision, kernel) == ("cpu", "bf16", "plain")
    assert unit.partition("+")[0] == torch.backends.cpu.get_cpu_capability().lower()
    assert torch.__version__.startswith(release) and "+" not in release
    assert int(digest, 16) >= 0 and len(digest) == 6


def test_a_changed_bit_of_the_canary_is_another_arithmetic() -> None:
    """Two machines that give it other bits do not promise equal ones."""
    other = CANARY.copy()
    other[4, 6] = np.nextafter(other[4, 6], 99, dtype=np.float32)

    names = {numerics.name_arithmetic(CPU, torch.float32, "plain", one) for one in (CANARY, other)}

    assert len(names) == 2
    assert names == {
        numerics.name_arithmetic(CPU, torch.float32, "plain", one.copy()) for one in (CANARY, other)
    }


def test_kinds_of_gpu_are_told_apart() -> None:
    """An A100, an H100 on PCIe, an H200."""
    assert [numerics.gpu_kind(8, 0, 108), numerics.gpu_kind(9, 0, 114)] == [
        "sm80x108",
        "sm90x114",
    ]
    assert numerics.gpu_kind(9, 0, 132) == "sm90x132"


def test_vectors_are_apart_by_the_length_of_their_difference() -> None:
    """As a share of the expected one's length, in the worst row: 5 of 10, not 0 of 13."""
    expected = np.array([[6.0, 8.0], [5.0, 12.0]])
    found = np.array([[9.0, 12.0], [5.0, 12.0]])

    assert numerics.largest_difference([found], [expected]) == pytest.approx(0.5)
    assert numerics.largest_difference([expected, found], [expected] * 2) == pytest.approx(0.5)
    assert numerics.largest_difference([expected], [expected]) == 0
    assert numerics.largest_difference([0 * found], [0 * expected]) == 0


def test_only_equal_bits_are_no_distance() -> None:
    """Neither a difference whose square is below all numbers, nor a sign of 0."""
    here = np.array([[1e-38, 0]], dtype=np.float32)

    for there in ([[2e-38, 0]], [[1e-38, -0.0]]):
        apart = numerics.largest_difference([np.array(there, dtype=np.float32)], [here])
        assert 0 < apart < 1e-30


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_as_far_apart_as_can_be(wrong: float) -> None:
    """No limit lets it pass."""
    found = CANARY.copy()
    found[1, 3] = wrong

    assert numerics.largest_difference([found], [CANARY]) == np.inf


# torch is loaded once; MKL reads its variable at the first product, which is each child's own
CHILDREN = """
import os, sys
from service.engine import numerics
for value in [os.environ["MKL_CBWR"], *sys.argv[1:]]:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        os.environ["MKL_CBWR"] = value
        print(numerics.is_mkl_strict(), flush=True)
        os._exit(0)
"""
VALUES = {
    None: True,
    "AVX2,STRICT": True,
    "AVX2": False,
    "COMPATIBLE,STRICT": False,
    "avx2,strict": False,
}


@pytest.mark.prove
@pytest.mark.skipif(numerics.is_mkl_strict() is None, reason="torch multiplies without MKL")
def test_mkl_itself_says_whether_its_products_are_strict() -> None:
    """Without a value ours counts; one that MKL does not know, or takes for less, is found out."""
    environ = {name: kept for name, kept in os.environ.items() if name != "MKL_CBWR"}
    command = [sys.executable, "-c", CHILDREN, *filter(None, VALUES)]

    said = subprocess.check_output(command, env=environ, text=True).splitlines()

    assert said == [str(strict) for strict in VALUES.values()]


@pytest.mark.skipif(not numerics.is_mkl_strict(), reason="torch multiplies without MKL")
def test_strict_products_are_part_of_the_name() -> None:
    """An environment without them promises other bits."""
    assert (
        numerics.name_arithmetic(CPU, torch.float32, "plain", CANARY)
        .split("-")[3]
        .endswith("+strict")
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("head", [5, 8, 15, 32])
@pytest.mark.parametrize("tokens", [2, 9, 17, 33])
def test_a_product_has_the_same_bits_wherever_in_memory_its_matrices_lie(
    tokens: int, head: int, threads: int
) -> None:
    """As attention multiplies, and as a plain linear does, on one core or on several."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, tokens, head, generator=random) for _ in range(2))
    before = torch.get_num_threads()

    def products(start: int) -> list[torch.Tensor]:
        queries, keys = moved(q, start), moved(k, 15 - start)
        rows = queries.view(-1, head)
        return [queries @ keys.mT, torch.nn.functional.linear(rows, keys[0])]

    try:
        torch.set_num_threads(1)
        expected = products(0)
        torch.set_num_threads(threads)
        found = [products(start) for start in range(16)]
    finally:
        torch.set_num_threads(before)

    for each in found:
        assert all(map(torch.equal, each, expected))


def moved(matrix: torch.Tensor, start: int) -> torch.Tensor:
    """A copy that begins so many numbers after a multiple of 64 bytes."""
    place = torch.empty(matrix.numel() + 32)
    first = start - place.data_ptr() // 4 % 16
    return place[16 + first :][: matrix.numel()].view(matrix.shape).copy_(matrix)
