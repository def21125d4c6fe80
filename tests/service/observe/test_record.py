"""What a request leaves behind."""

import time

import pytest

from service.observe.record import Record


def test_a_stage_that_fails_has_taken_its_time() -> None:
    """It is recorded whichever way it ends."""
    seen = Record("/v1/encode")
    with pytest.raises(ValueError), seen.stage("parse"):
        raise ValueError

    (stage,) = seen.stages
    assert stage.name == "parse" and stage.seconds >= 0


def test_what_was_never_run_has_waited_only() -> None:
    """A request refused or left in the queue has no forward stage."""
    seen = Record("/v1/encode")
    seen.waited(time.monotonic())

    assert [stage.name for stage in seen.stages] == ["queue"]


def test_waiting_ends_where_the_first_batch_begins() -> None:
    """The two stages meet, and together are the time in the batcher."""
    seen = Record("/v1/encode")
    seen.began = 1e9
    seen.waited(time.monotonic())
    queue, forward = seen.stages

    assert (queue.name, forward.name) == ("queue", "forward")
    assert queue.end == forward.start == 1e9
