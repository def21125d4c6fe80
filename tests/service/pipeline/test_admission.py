"""What is foreseen of a request before it is read."""

import asyncio
from collections.abc import Sequence

import pytest

from model import packing
from service.engine.batcher import Batcher
from service.observe.metrics import Metrics
from service.pipeline.admission import Admission, Estimate
from service.shapes.inputs import InputItem, Text
from service.shapes.record import Record
from service.shapes.step import Step
from service.shapes.work import Outputs, Result, Work
from service.tables.refusals import Refused
from service.tables.settings import Settings


def outcome(tokens: int, length: int) -> Work:
    """A text that turned out to be so many tokens, of which so many are run."""
    sequence = packing.Sequence([7] * tokens, [0] * tokens)
    return Work(sequence, Outputs(), length=length)


def test_texts_hold_as_many_tokens_by_character_as_those_before_them() -> None:
    """With the two around each; what was cut teaches nothing, and ids are counted."""
    estimate = Estimate(longest=100, most=151)
    for _ in range(200):
        read = ["x" * 30, InputItem(token_ids=[7] * 9)]
        estimate.learn(read, [outcome(12, 12), outcome(9, 9)])
        estimate.learn(["x" * 1000], [outcome(100, 5000)])

    def tokens(*inputs: Text) -> int:
        return estimate.tokens(inputs)[0]

    assert tokens("x" * 60) == pytest.approx(22, abs=1)
    assert tokens(InputItem(text="x" * 30, pair="x" * 30)) == pytest.approx(22, abs=1)
    assert tokens("x" * 9000, InputItem(token_ids=[7] * 51)) == 151
    assert tokens(*["x" * 9000] * 50) == 151  # one that holds more is refused
    assert tokens(InputItem(embeddings=[[0.0] * 4])) <= 2


def admission(gate: asyncio.Event) -> Admission:
    """Admission to one lane that waits for a gate, of 1,000 tokens a second at time 0."""

    async def launch(lane: int, works: Sequence[Work], threads: int) -> list[Result]:
        await gate.wait()
        return [Result()] * len(works)

    batcher = Batcher[Work, Result](
        launch,
        lanes=1,
        budget=1000,
        speed=1000.0,
        most_requests=100,
        most_tokens=10_000,
        clock=lambda: 0.0,
    )
    return Admission(batcher, Metrics("r", "m"), Settings(), "float32")


async def test_what_would_be_late_behind_others_is_foreseen() -> None:
    """By its tokens alone; while nothing waits nothing is foreseen, however long it is."""
    gate, record = asyncio.Event(), Record("r")
    entrance = admission(gate)
    batcher = entrance._batcher

    def foresee(tokens: int, deadline: float) -> None:
        entrance.foresee(tokens, deadline, record, queued=False)

    foresee(5000, 1.0)
    running = asyncio.create_task(batcher.submit([outcome(500, 500)], 1e9))
    await asyncio.sleep(0)
    foresee(5000, 1.0)
    waiting = asyncio.create_task(batcher.submit([outcome(500, 500)], 1e9))
    await asyncio.sleep(0)

    foresee(599, 2.0)
    with pytest.raises(Refused, match="overloaded") as late:
        foresee(601, 2.0)
    gate.set()
    await asyncio.gather(running, waiting)

    assert late.value.bound == "deadline"


async def test_a_request_in_its_last_step_keeps_none_from_being_alone() -> None:
    """Nothing of it is to follow."""
    gate = asyncio.Event()
    entrance, works = admission(gate), [outcome(500, 500)]
    running = asyncio.create_task(entrance.run(Step(works), 1e9, Record("r")))
    await asyncio.sleep(0)

    entrance.foresee(5000, 1.0, Record("s"), queued=False)
    gate.set()
    await running

    assert works[0].result == Result()


async def test_what_is_read_already_counts_for_what_comes_behind_it() -> None:
    """Of its own key; what was read is counted where it waits, and what gave up nowhere."""
    entrance, read = admission(asyncio.Event()), asyncio.Event()
    record, other = Record("r", key="a"), Record("r", key="b")

    def foresee(tokens: int, record: Record, *, queued: bool) -> None:
        try:
            entrance.foresee(tokens, 1.0, record, queued=queued)
        finally:
            entrance.forget(record)

    async def wait() -> None:
        reader = Record("r", key="a")
        try:
            entrance.foresee(601, 1e9, reader, queued=True)
            await read.wait()
        finally:
            entrance.forget(reader)

    reading = asyncio.create_task(wait())
    await asyncio.sleep(0)

    foresee(398, record, queued=True)
    foresee(5000, record, queued=False)  # what is read at once waits for none
    foresee(5000, other, queued=True)
    with pytest.raises(Refused, match="overloaded") as late:
        foresee(401, record, queued=True)
    reading.cancel()
    await asyncio.wait([reading])
    foresee(5000, record, queued=True)

    assert late.value.bound == "deadline"
