"""What is proved at the start, and what is not served."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model import kernels
from model.packing import Sequence
from service.engine import proof
from service.engine.loading import load
from service.engine.proof import NotTrustworthy, check_exact, check_invariance
from service.engine.weights import BUNDLED, locate
from service.engine.work import Outputs, Result, Work
from service.replica import Replica
from service.settings import Settings

CPU = torch.device("cpu")
PRESET = "preset:transformer-base"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_model_whose_bits_depend_on_the_batch_is_not_served(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up check sees it; this is the negative control of the promise."""
    run = replica.lanes.run

    def leaky(works: list[Work], threads: int) -> list[Result | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Result) and result.tokens is not None:
                result.tokens[0, 0] += len(works) * 1e-6
        return results

    monkeypatch.setattr(replica.lanes, "run", leaky)

    with pytest.raises(NotTrustworthy):
        check_invariance(replica.lanes, replica.proof)


def moved(replica: Replica, above: int, by: float) -> Callable[..., list[Result | Exception]]:
    """A model whose answers move in batches of more than so many tokens."""
    run = replica.lanes.run

    def leaky(works: list[Work], threads: int) -> list[Result | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Result) and result.tokens is not None:
                result.tokens[:] *= 1 + by * (sum(map(len, works)) > above)
        return results

    return leaky


async def test_a_model_whose_bits_move_in_a_full_batch_alone_is_not_served(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix kernels may change with thousands of rows; the start tries a batch as large as any."""
    proof = replace(replica.proof, budget=2 * 1021)
    monkeypatch.setattr(replica.lanes, "run", moved(replica, 900, 1e-6))

    with pytest.raises(NotTrustworthy, match="depends on the batch"):
        check_invariance(replica.lanes, proof)


@pytest.mark.parametrize(("by", "right"), [(1e-6, True), (1e-3, False)])
async def test_where_bits_are_not_promised_the_canary_is_compared_closely(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, by: float, right: bool
) -> None:
    """A GPU's answer moves with the batch within rounding, which is no fault; more than it is."""
    lanes, proof = replica.lanes, replace(replica.proof, fixed=False)
    leaky = moved(replica, 100, by)
    canary = lanes.run([proof.canary], 1)[0]
    crowded = leaky([proof.canary, Work(Sequence([1] * 127), Outputs())], 1)[0]
    assert isinstance(canary, Result) and isinstance(crowded, Result)

    monkeypatch.setattr(lanes, "run", leaky)

    assert proof.right(canary)
    assert proof.right(crowded) is right
    if right:
        check_invariance(lanes, proof)
    else:
        with pytest.raises(NotTrustworthy):
            check_invariance(lanes, proof)


def unscaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that forgot its scale."""
    return kernels.attend_plain(q, k, v, 1.0, bias)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (BUNDLED, torch.float32),
        (BUNDLED, torch.bfloat16),
        (BUNDLED, torch.float16),
        (PRESET, torch.float32),
        pytest.param(PRESET, torch.bfloat16, marks=pytest.mark.prove),
        pytest.param(PRESET, torch.float16, marks=pytest.mark.prove),
    ],
    ids=str,
)
async def test_every_number_format_is_held_against_plain_float32(
    model: str, dtype: torch.dtype
) -> None:
    """At the start, by the canary; a path that computes something else does not serve."""
    found = locate(model)
    broken = replace(kernels.PLAIN, attend=unscaled)
    check_exact(load(found, CPU, dtype, kernels.PLAIN), found, dtype)

    with pytest.raises(NotTrustworthy, match="differs from the plain float32 path's by"):
        check_exact(load(found, CPU, dtype, broken), found, dtype)


def short_of_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that forgets all keys beyond its first tile."""
    return kernels.attend_plain(q, k[:, :, :128], v[:, :, :128], scale, bias)


async def test_half_precision_is_held_to_more_than_a_tile_of_keys() -> None:
    """Kernels loop over tiles: a canary of one says nothing of the others."""
    found = locate(BUNDLED)
    broken = replace(kernels.PLAIN, attend=short_of_keys)

    with pytest.raises(NotTrustworthy, match="differs from the plain float32 path's by"):
        check_exact(load(found, CPU, torch.bfloat16, broken), found, torch.bfloat16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_half_precision_is_served_on_any_processor_and_promises_no_bits(dtype: Any) -> None:
    """Where the processor's own half-precision kernels follow the batch, close is what holds."""
    replica = await Replica.start(Settings(threads=2, device="cpu", dtype=dtype), "half-1")
    told = replica.info()["numerics"]
    await replica.close()

    assert told.endswith("-varying")


class Accelerator:
    """Lanes of a device that does a token a microsecond, and no pass in less than 2 ms."""

    model = SimpleNamespace(max_tokens=61)

    def __init__(self) -> None:
        self.now = 0.0
        self.batches: set[int] = set()  # their tokens

    def __len__(self) -> int:
        return 1

    def run(self, works: list[Work], threads: int) -> None:
        """What a clock sees of it."""
        tokens = sum(map(len, works))
        self.batches.add(tokens)
        self.now += max(2e-3, tokens / 1e6)


@pytest.mark.parametrize(("full", "batches"), [(7000, {1, 488, 976, 1952, 3904}), (500, {1, 488})])
async def test_a_gpu_is_measured_by_a_batch_that_fills_it(
    monkeypatch: pytest.MonkeyPatch, full: int, batches: set[int]
) -> None:
    """By one token a pass it would seem slow; below so many tokens sharing a pass costs nothing."""
    lanes: Any = Accelerator()
    monkeypatch.setattr(proof, "time", SimpleNamespace(perf_counter=lambda: lanes.now))

    speed, small = proof.pace(lanes, full)

    assert lanes.batches == batches
    fast = min(1e6, max(batches) / 2e-3)
    assert speed == pytest.approx(fast) and small == pytest.approx(fast * 2e-3, abs=1)
