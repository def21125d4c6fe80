"""What is told of a batch."""

import asyncio
from collections.abc import Sequence

import pytest
import torch

from service.engine.batches import Batches, Member
from service.engine.runner import Done, Wanted, Work
from service.observe.metrics import Metrics
from service.observe.record import Seen


async def nothing(lane: int, works: Sequence[Work], threads: int) -> Sequence[Done | Exception]:
    """A lane that answers nothing."""
    return []


async def test_a_batch_counts_its_sequences_and_marks_when_its_requests_began() -> None:
    """A request's first batch is its beginning; later ones are not."""
    metrics = Metrics("r")
    batches = Batches(nothing, metrics, None)
    one, other = Seen("/v1/encode"), Seen("/v1/encode", began=7.0)
    works = [Work([1] * length, None, None, Wanted()) for length in (2, 3, 5)]
    members = [Member(works[0], one), Member(works[1], one), Member(works[2], other)]

    await batches(0, members, 1)

    text = metrics.render().decode()
    assert 'headlight_batch_sequences_sum{replica="r"} 3.0\n' in text
    assert 'headlight_batch_tokens_sum{replica="r"} 10.0\n' in text
    assert one.began > 0 and other.began == 7.0


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
    metrics = Metrics("r")
    await asyncio.to_thread(Batches(nothing, metrics, None).failed, error)

    text = metrics.render().decode()
    for name in ("oom", "other"):
        line = f'headlight_accelerator_errors_total{{kind="{name}",replica="r"}} '
        assert f"{line}{float(name == kind)}\n" in text
