"""What is told of a batch."""

import asyncio
from collections.abc import Sequence

import pytest
import torch

from model import packing
from service.engine.lanes import ProcessBroken
from service.engine.recorded import RecordedBatches
from service.observe.metrics import Metrics
from service.shapes.record import Record
from service.shapes.work import Outputs, Result, Work


async def nothing(lane: int, works: Sequence[Work], threads: int) -> Sequence[Result | Exception]:
    """A lane that answers nothing."""
    return []


async def test_a_batch_counts_its_sequences_and_marks_when_its_requests_began() -> None:
    """A request's first batch is its beginning; later ones are not."""
    metrics = Metrics("r", "m")
    batches = RecordedBatches(nothing, metrics, None)
    one, other = Record("/v1/encode"), Record("/v1/encode", batch_start=7.0)
    works = [
        Work(packing.Sequence([1] * length), Outputs(), record)
        for length, record in ((2, one), (3, one), (5, other))
    ]

    await batches(0, works, 1)

    text = metrics.freeze()().decode()
    assert 'headlight_batch_tokens_sum{model="m",replica="r"} 10.0\n' in text
    assert one.batch_start > 0 and other.batch_start == 7.0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("x"), "oom"),
        (torch.AcceleratorError("x"), "other"),
        (ValueError("x"), None),
    ],
)
async def test_what_the_accelerator_fails_is_counted_by_kind(
    error: Exception, kind: str | None
) -> None:
    """A mistake of ours is not the accelerator's."""
    metrics = Metrics("r", "m")
    await asyncio.to_thread(RecordedBatches(nothing, metrics, None).note_failure, error)

    text = metrics.freeze()().decode()
    for name in ("oom", "other"):
        line = f'headlight_accelerator_errors_total{{kind="{name}",model="m",replica="r"}} '
        assert f"{line}{float(name == kind)}\n" in text


async def test_nothing_comes_out_once_the_accelerator_has_failed() -> None:
    """Neither of that batch, nor of another that runs, nor later; who must know is told once."""
    faults, launched = [], []
    other = asyncio.Event()

    async def lane(lane: int, works: Sequence[Work], threads: int) -> Sequence[Result | Exception]:
        launched.append(lane)
        if lane == 1:
            await other.wait()
        else:
            await asyncio.to_thread(batches.note_failure, torch.AcceleratorError("x"))
        return []

    batches = RecordedBatches(lane, Metrics("r", "m"), None)
    batches.on_fault = lambda: faults.append(batches.fault)
    beside = asyncio.create_task(batches(1, [], 1))
    with pytest.raises(ProcessBroken):
        await batches(0, [], 1)
    other.set()
    with pytest.raises(ProcessBroken):
        await beside
    with pytest.raises(ProcessBroken):
        await batches(2, [], 1)

    assert faults == ["the accelerator failed"] and sorted(launched) == [0, 1]
