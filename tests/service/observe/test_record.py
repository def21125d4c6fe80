"""What a request leaves behind."""

import time

from service.shapes.record import Record


def test_what_was_never_run_has_waited_only() -> None:
    """A request refused or left in the queue has no forward stage."""
    seen = Record("/v1/encode")
    seen.end_batch_stages(time.monotonic())

    assert [name for name, _, _ in seen.stages] == ["queue"]


def test_waiting_ends_where_the_first_batch_begins() -> None:
    """The two stages meet, and together are the time in the batcher."""
    seen = Record("/v1/encode")
    seen.batch_start = 1e9
    seen.end_batch_stages(time.monotonic())
    queue, forward = seen.stages

    assert (queue[0], forward[0]) == ("queue", "forward")
    assert queue[2] == forward[1] == 1e9
