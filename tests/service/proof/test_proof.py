"""What is proved at the start, and what is not served."""

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from model import kernels
from model.encoder import Encoded
from model.native import library, stack
from model.packing import Sequence
from model.probes import Maps
from service.engine import speed
from service.engine.lanes import Lanes
from service.pipeline.replica import Replica
from service.proof import proof
from service.proof.comparison import NotTrustworthy
from service.proof.proof import is_steady
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import Settings
from tests.task_heads import MOST, checkpoint

CPU = torch.device("cpu")


async def test_bits_that_depend_on_the_batch_are_seen(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the start-up check; this is the negative control of the promise."""
    run = replica.lanes.run_batch

    def leaky(works: list[Work], threads: int) -> list[Result | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Result) and result.tokens is not None:
                result.tokens[0, 0] += len(works) * 1e-6
        return results

    assert is_steady(replica.lanes, replica.proof)

    monkeypatch.setattr(replica.lanes, "run_batch", leaky)

    assert not is_steady(replica.lanes, replica.proof)


async def test_a_model_of_few_positions_starts_without_a_failed_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The canary's company is no longer than the model reads."""
    checkpoint(tmp_path, "Model")
    settings = Settings(model=str(tmp_path), device="cpu", threads=1)

    replica = await Replica.start(settings, "few-1")
    await replica.close()

    assert replica.lanes.model.max_tokens == MOST < 40
    assert [record.message for record in caplog.records if record.exc_info] == []


def moved(replica: Replica, above: int, by: float) -> Callable[..., list[Result | Exception]]:
    """A model whose answers move in batches of more than so many tokens."""
    run = replica.lanes.run_batch

    def leaky(works: list[Work], threads: int) -> list[Result | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Result) and result.tokens is not None:
                result.tokens[:] *= 1 + by * (sum(map(len, works)) > above)
        return results

    return leaky


async def test_bits_that_move_in_a_full_batch_alone_are_seen(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix kernels may change with thousands of rows; the start tries a batch as large as any."""
    proof = replace(replica.proof, budget=2 * 1021)
    monkeypatch.setattr(replica.lanes, "run_batch", moved(replica, 900, 1e-6))

    assert not is_steady(replica.lanes, proof)


async def test_a_head_whose_map_moves_where_it_is_asked_for_alone_is_seen(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a map that moves in company, though the vectors stay."""
    run, proof = replica.lanes.run_batch, replica.proof

    def moving(differs: Callable[[list[Work], int], bool]) -> Callable[..., Any]:
        """Maps move by a last digit where it does."""

        def ran(works: list[Work], threads: int) -> list[Result | Exception]:
            results = run(works, threads)
            for result in results:
                if isinstance(result, Result) and Maps.name in result.made:
                    for arrays in result.made[Maps.name]["heads"].values():
                        arrays["map"][:] *= 1 + 1e-6 * differs(works, len(arrays["map"]))
            return results

        return ran

    assert is_steady(replica.lanes, proof)
    for differs in (lambda works, heads: heads == 1, lambda works, heads: len(works) > 1):
        monkeypatch.setattr(replica.lanes, "run_batch", moving(differs))
        assert not is_steady(replica.lanes, proof)


@pytest.mark.parametrize(("by", "right"), [(1e-6, True), (1e-3, False)])
async def test_where_bits_are_not_promised_the_canary_is_compared_closely(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, by: float, right: bool
) -> None:
    """A GPU's answer moves with the batch within rounding, which is no fault; more than it is."""
    lanes, proof = replica.lanes, replace(replica.proof, same_bits=False)
    leaky = moved(replica, 100, by)
    canary = lanes.run_batch([proof.canary], 1)[0]
    crowded = leaky([proof.canary, Work(Sequence([1] * 127), Outputs())], 1)[0]
    assert isinstance(canary, Result) and isinstance(crowded, Result)

    monkeypatch.setattr(lanes, "run_batch", leaky)

    assert proof.is_right(canary)
    assert proof.is_right(crowded) is right
    if right:
        assert is_steady(lanes, proof)
    else:
        with pytest.raises(NotTrustworthy):
            is_steady(lanes, proof)


def adding(differs: Callable[[torch.Tensor], bool], by: float = 1e-5) -> type[kernels.PlainLinear]:
    """A linear that adds its inputs up in another order for some matrices, as kernels may.

    Args:
        by: how much larger half of the sum is then; more than rounding, which 20 next to it hides.
    """

    class Adding(kernels.PlainLinear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if not differs(x):
                return super().__call__(x)
            half, weight = x.shape[1] // 2, self.weight()
            first = linear(x[:, :half], weight[:, :half], self.bias)
            return first * (1 + by) + linear(x[:, half:], weight[:, half:])

    return Adding


def crowded(x: torch.Tensor) -> bool:
    """More rows than the canary has alone, or next to few."""
    return len(x) > 64


def on_several_cores(x: torch.Tensor) -> bool:
    """Whatever the rows are."""
    return torch.get_num_threads() > 1


def now_and_then() -> Callable[[torch.Tensor], bool]:
    """As where a matrix lies in memory decides: every seventh product."""
    calls = count()
    return lambda x: next(calls) % 7 == 0


FASTEST = replace(kernels.PLAIN, name="fastest")
PROCESSORS = {
    "the fast kernels": ([adding(crowded), kernels.PlainLinear], "plain"),
    "all that see a batch": ([adding(crowded)] * 2, "fastest+alone"),
    "all on several cores": ([adding(on_several_cores)] * 2, "fastest+alone"),
}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have this processor's kernels compute so, the fast ones and the plain ones."""

    def compute(fast: type[kernels.PlainLinear], plain: type[kernels.PlainLinear]) -> None:
        monkeypatch.setattr(kernels, "ONEDNN", replace(FASTEST, linear=fast))
        monkeypatch.setattr(kernels, "PLAIN", replace(kernels.PLAIN, linear=plain))

    return compute


def moves(lanes: Lanes) -> bool:
    """Whether a batch moves a bit of a sequence, on one core or on all."""
    work = Work(Sequence([101, *range(2000, 2019), 102]), Outputs(tokens=True))
    company = [Work(Sequence([1] * length), Outputs()) for length in (3, 61, 127)]
    (alone,), together = (
        lanes.run_batch([work], 1),
        lanes.run_batch([*company, work], len(lanes))[-1],
    )
    assert isinstance(alone, Result) and isinstance(together, Result)
    return pickle.dumps(alone.tokens) != pickle.dumps(together.tokens)


@pytest.mark.parametrize(
    ("linears", "serves", "required"),
    [(*way, name == "the fast kernels") for name, way in PROCESSORS.items()],
    ids=PROCESSORS,
)
async def test_where_the_batch_moves_bits_a_slower_way_keeps_them_and_a_line_says_what_it_costs(
    loud: Path,
    processor: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    linears: list[type[kernels.PlainLinear]],
    serves: str,
    required: bool,
) -> None:
    """On a processor whose kernels add up in another order by what else they are given."""
    processor(*linears)
    settings = Settings(model=str(loud), device="cpu", threads=2, require_same_bits=required)

    replica = await Replica.start(settings, "odd-1")
    await replica.health.run_canary()
    moved, told, fault = moves(replica.lanes), replica.info()["numerics"], replica.health.fault
    await replica.close()

    assert not moved and fault is None
    assert told.startswith(f"cpu-fp32-{serves}-") and not told.endswith("-varying")
    (line,) = [each for each in caplog.records if each.getMessage() == proof.SLOWER_KERNELS]
    assert re.fullmatch(rf"{re.escape(told)} at \d+% of their speed", vars(line)["reason"])


async def test_where_no_way_keeps_bits_they_are_not_promised_and_the_service_runs(
    loud: Path, processor: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """As on CUDA: `numerics` says so, and a line of the log."""
    processor(*[adding(now_and_then())] * 2)
    replica = await Replica.start(Settings(model=str(loud), device="cpu", threads=2), "odd-1")
    await replica.health.run_canary()
    moved, told, fault = moves(replica.lanes), replica.info()["numerics"], replica.health.fault
    await replica.close()

    assert moved and fault is None
    assert re.fullmatch(r"cpu-fp32-fastest-\S+-[0-9a-f]{6}-varying", told)
    (line,) = [each for each in caplog.records if each.getMessage() == proof.UNSTEADY_BITS]
    assert vars(line)["reason"] == told


async def test_required_bits_that_no_way_keeps_are_not_served(
    loud: Path, processor: Callable[..., None]
) -> None:
    """`require_same_bits` prefers no service to other bits."""
    processor(*[adding(now_and_then())] * 2)
    settings = Settings(model=str(loud), device="cpu", threads=2, require_same_bits=True)

    with pytest.raises(NotTrustworthy, match="require_same_bits: on this processor the batch"):
        await Replica.start(settings, "odd-1")


async def test_wrong_numbers_are_refused_where_other_kernels_would_be_right(
    loud: Path, processor: Callable[..., None]
) -> None:
    """More than the last bits of the canary follow from the batch: that is no rounding."""
    processor(adding(crowded, by=0.1), kernels.PlainLinear)

    with pytest.raises(NotTrustworthy, match="the canary's numbers follow from the batch"):
        await Replica.start(Settings(model=str(loud), device="cpu", threads=2), "odd-1")


class Crowded(stack.NativeStack):
    """A compiled pass that adds up in another order in batches larger than those it is tried on."""

    def __call__(self, *batch: Any) -> Encoded:
        encoded = super().__call__(*batch)
        many = len(encoded.last) > 256
        return replace(encoded, last=encoded.last * (1 + 1e-6)) if many else encoded


async def test_a_compiled_pass_whose_bits_a_batch_moves_gives_way_to_the_loop(
    loud: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees on a few short sequences; the canary's larger company shows it."""
    try:
        library.load_operator()
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    monkeypatch.setattr(stack, "NativeStack", Crowded)

    replica = await Replica.start(Settings(model=str(loud), device="cpu", threads=1), "odd-1")
    await replica.close()

    assert replica.proof.numerics.startswith("cpu-fp32-onednn-")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_half_precision_is_served_on_any_processor(tmp_path: Path, dtype: Any) -> None:
    """It promises equal bits where the processor multiplies it; elsewhere close is what holds.

    How close bfloat16's vectors are, where it was asked for, GET /info says.
    """
    checkpoint(tmp_path, "Model")
    settings = Settings(model=str(tmp_path), threads=2, device="cpu", dtype=dtype)
    replica = await Replica.start(settings, "half-1")
    told = replica.info()
    await replica.close()

    half = kernels.choose_kernels(CPU, getattr(torch, dtype)).half
    assert told["numerics"].endswith("-varying") is not half
    assert ("certificate" in told) is (dtype == "bfloat16")
    assert dtype == "float16" or 0.999 < told["certificate"]["worst_cosine"] < 1


class Accelerator:
    """Lanes of a device that does a token a microsecond, and no pass in less than 2 ms."""

    model = SimpleNamespace(max_tokens=61)

    def __init__(self) -> None:
        self.now = 0.0
        self.batches: set[int] = set()  # their tokens

    def __len__(self) -> int:
        return 1

    def run_batch(self, works: list[Work], threads: int) -> None:
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
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: lanes.now))

    fastest, small = proof.measure_gpu(lanes, full)

    assert lanes.batches == batches
    fast = min(1e6, max(batches) / 2e-3)
    assert fastest == pytest.approx(fast) and small == pytest.approx(fast * 2e-3, abs=1)
