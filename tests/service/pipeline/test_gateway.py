"""The spine under trouble: a full queue, a late answer, a lost client, a fault in the model."""

import asyncio
import math
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import torch

from model.encoder import Encoded, Encoder
from model.packing import Packed
from model.packing import Sequence as Tokens
from service.engine.lanes import Lanes
from service.engine.speed import LoneCores
from service.pipeline.cost import make_cost_counter
from service.pipeline.replica import Replica
from service.proof import health
from service.proof.machine import Unservable
from service.questions.encode import EncodeRequest
from service.shapes.record import Record
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import Settings
from tests.conftest import application, connected
from tests.replica_internals import believe, bound, stalled, under
from tests.task_heads import MOST, checkpoint

DOG = {"inputs": ["A dog ate the food because it was hungry"], "encoding": "base64"}
POISON = {"inputs": [{"token_ids": [666]}]}


async def until(true: Callable[[], bool]) -> None:
    """Wait for what the service will do by itself."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@contextmanager
def held(replica: Replica) -> Iterator[threading.Event]:
    """Lanes that wait before every batch until the event is set; batches are remembered."""
    runner, gate = replica.lanes, threading.Event()
    run = runner.run_batch

    def waiting(works: Sequence[Work], threads: int) -> list[Result | Exception]:
        gate.wait(20)
        return run(works, threads)

    runner.run_batch = waiting  # type: ignore[method-assign]
    try:
        with pytest.MonkeyPatch.context() as alone:  # one sequence holds both lanes
            alone.setattr(LoneCores, "choose_cores", lambda *asked: 2)
            yield gate
    finally:
        gate.set()
        runner.run_batch = run  # type: ignore[method-assign]


@contextmanager
def poisoned(runner: Lanes) -> Iterator[None]:
    """A model that fails on token 666."""
    encoder = runner.model.encoder

    class Poisoned(Encoder):
        def __call__(self, packed: Packed, **kept: Any) -> Encoded:
            if 666 in packed.token_ids:
                raise ValueError("poison")
            return super().__call__(packed, **kept)

    encoder.__class__ = Poisoned
    try:
        yield
    finally:
        encoder.__class__ = Encoder


@pytest_asyncio.fixture
async def golden(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """After the test the service answers as before it, bit for bit."""
    before = (await client.post("/v1/encode", json=DOG)).json()["data"]
    yield
    assert (await client.post("/v1/encode", json=DOG)).json()["data"] == before
    assert (await client.get("/ready")).status_code == 200


@pytest.mark.usefixtures("golden")
async def test_a_full_queue_refuses_with_retry_after_and_the_probes_answer(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """429 at once for what finds no room; /live, /ready and /metrics do not wait."""
    bound(monkeypatch, replica.batcher, requests=2)
    with held(replica):
        waiting = [asyncio.create_task(client.post("/v1/encode", json=DOG)) for _ in range(7)]
        await until(lambda: sum(task.done() for task in waiting) >= 3)
        probes = [(await client.get(path)).status_code for path in ("/live", "/ready", "/metrics")]
        refused = [task.result() for task in waiting if task.done()]
        for task in waiting:
            task.cancel()

    assert probes == [200, 200, 200]
    assert len(refused) >= 3 and all(answer.status_code == 429 for answer in refused)
    assert int(refused[0].headers["retry-after"]) >= 1


async def test_of_many_that_come_at_once_only_what_can_be_done_is_tokenized(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are refused by their characters, behind those that are being read."""
    other = under(replica)  # whose estimate no other test's texts have moved
    texts = ["a dog ate the food " * 20] * 11  # which a thread tokenizes
    headers = {"x-headlight-deadline-ms": "29000"}
    async with connected(application(other)) as client:
        price = await client.post("/v1/encode?dry_run=true", json={"inputs": texts})
        believe(monkeypatch, replica.batcher, price.json()["tokens"] / 10)
        before = tokenized(replica)
        with stalled(replica.batcher):
            asked = [
                asyncio.create_task(
                    client.post("/v1/encode", json={"inputs": texts}, headers=headers)
                )
                for _ in range(11)
            ]
            await until(lambda: sum(task.done() for task in asked) >= 9)
        codes = Counter(answer.status_code for answer in await asyncio.gather(*asked))

    assert codes == {200: 2, 429: 9}
    assert tokenized(replica) - before <= 3


async def test_a_small_request_is_not_refused_for_a_large_one_that_is_read(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Not even for one that is refused in the end: what is small is read at once."""
    large = {"inputs": ["good morning " * 75] * 2048}
    seconds = replica.settings.max_request_tokens / replica.batcher.speed
    headers = {"x-headlight-deadline-ms": str(max(100, int(seconds * 500)))}

    reading = asyncio.create_task(client.post("/v1/encode", json=large))
    await until(lambda: replica.reader.worker.waiting > 0)
    small = await client.post("/v1/encode", json=DOG, headers=headers)
    assert not reading.done()

    assert small.status_code == 200
    assert (await reading).status_code == 413


async def test_a_stage_that_fails_has_taken_its_time(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """It is recorded whichever way it ends."""
    parsed, read = stages(replica, "parse"), tokenized(replica)

    await client.post("/v1/encode", json={"inputs": 7})
    await client.post("/v1/encode", json={"inputs": [""]})

    assert (stages(replica, "parse") - parsed, tokenized(replica) - read) == (2, 1)


def tokenized(replica: Replica) -> int:
    """How many requests' inputs were read."""
    return stages(replica, "tokenize")


def stages(replica: Replica, name: str) -> int:
    """How many stages of a name were recorded."""
    page = replica.freeze_metrics(openmetrics=False)().decode()
    found = re.search(rf'stage_duration_seconds_count\{{[^}}]*"{name}".* (\d+)', page)
    return int(found[1]) if found else 0


@pytest.mark.usefixtures("golden")
async def test_a_deadline_that_passes_is_504_and_the_work_is_not_done(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """The header shortens the deadline; what still waited then never runs."""
    with held(replica):
        first = asyncio.create_task(client.post("/v1/encode", json=DOG))
        await until(lambda: replica.batcher.busy)
        late = await client.post("/v1/encode", json=DOG, headers={"x-headlight-deadline-ms": "200"})
        left = replica.batcher.waiting_requests

    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert left == 0
    assert (await first).status_code == 200


async def test_what_no_deadline_allows_is_refused_with_how_much_would_fit(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, at the speed that was measured; and so much of it is admitted."""
    inputs = [{"token_ids": [7] * 250}] * 900
    costs = make_cost_counter(replica.lanes.model.config)
    cost = sum(costs([Work(Tokens([7] * 250), Outputs())] * 900))
    believe(monkeypatch, replica.batcher, cost / 33)  # all take 33 s

    refused = await client.post("/v1/encode", json={"inputs": inputs})
    told = refused.json()
    fitting = {"inputs": inputs[: told["sequences"]]}
    dry = await client.post("/v1/encode?dry_run=true", json=fitting)

    assert (refused.status_code, told["code"]) == (422, "deadline_unreachable")
    assert told["sequences"] == pytest.approx(900 * 0.8 * 30 / 33, rel=0.01)
    assert f"about {told['sequences']} of its sequences would fit" in told["detail"]
    assert dry.json()["admitted"] is True


async def test_how_much_would_fit_is_told_in_inputs_and_not_in_their_copies(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving out encodes a text again without each token: parts of that are no answer."""
    believe(monkeypatch, replica.batcher, 1.0)
    body = {"left": "All is well", "right": ["All was well"], "form": "occlusion"}

    refused = await client.post("/v1/similarity", json=body)

    assert refused.json()["sequences"] < 2


@pytest.mark.usefixtures("golden")
async def test_a_client_that_leaves_takes_its_waiting_work_along(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Cancelling the request frees its place in the queue and counts as 499."""
    with held(replica):
        first = asyncio.create_task(client.post("/v1/encode", json=DOG))
        gone = asyncio.create_task(client.post("/v1/encode", json=DOG))
        await until(lambda: replica.batcher.waiting_requests == 1)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        left = replica.batcher.waiting_requests

    assert left == 0
    assert (await first).status_code == 200
    assert 'code="499"' in (await client.get("/metrics")).text


@pytest.mark.usefixtures("golden")
async def test_an_exception_in_the_forward_pass_fails_only_the_request_that_caused_it(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Requests in the same batch are answered; the fault's text stays inside."""
    with poisoned(replica.lanes):
        with held(replica):
            tasks = [
                asyncio.create_task(client.post("/v1/encode", json=body))
                for body in (DOG, DOG, POISON, DOG)
            ]
            await until(lambda: replica.batcher.waiting_requests == 3)
        answers = await asyncio.gather(*tasks)

    assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
    assert answers[2].json()["code"] == "internal" and "poison" not in answers[2].text


@pytest.mark.usefixtures("golden")
async def test_output_that_is_not_finite_never_leaves(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings that overflow inside the model are a 500 with its own code, for them alone."""
    lenient = replace(replica.reader, max_embedding=math.inf)
    huge = {"inputs": [{"embeddings": [[3e38, -3e38] * 192]}]}

    async with connected(application(under(replica, lenient))) as client:
        answer = await client.post("/v1/encode", json=huge)

    told = answer.json()
    assert (answer.status_code, told["code"]) == (500, "nonfinite_output")
    assert (told["layer"], told["dtype"]) == (0, "float32")


async def test_the_canary_runs_while_the_replica_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong bits under a steady load must not go unseen."""
    monkeypatch.setattr(health, "CANARY_SECONDS", 0.01)
    checkpoint(tmp_path, "Model")
    replica = await Replica.start(Settings(model=str(tmp_path), device="cpu", threads=1), "busy-1")
    runs = b'headlight_canary_runs_total{model="%b",replica="busy-1"} ' % tmp_path.name.encode()
    asked = EncodeRequest.of(["All is well"] * 8)
    done = False

    async def load() -> None:
        while not done:
            await replica.gateway.encode(asked, time.monotonic() + 30, Record("own"))

    loads = [asyncio.create_task(load()) for _ in range(4)]
    await until(lambda: replica.batcher.busy)
    before = float(replica.metrics.freeze()().partition(runs)[2].split()[0])
    await until(
        lambda: float(replica.metrics.freeze()().partition(runs)[2].split()[0]) >= before + 3
    )
    done = True
    await asyncio.gather(*loads)
    await replica.close()


async def test_a_canary_that_comes_out_wrong_takes_the_replica_out_of_service(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One changed bit is enough: /ready refuses and the failure is counted."""
    health, run = replica.health, replica.lanes.run_batch

    def wrong(works: Sequence[Work], threads: int) -> list[Result | Exception]:
        (result,) = run(works, threads)
        assert isinstance(result, Result) and result.pooled is not None
        result.pooled[7] = np.nextafter(result.pooled[7], np.float32(9))
        return [result]

    monkeypatch.setattr(replica.lanes, "run_batch", wrong)
    await health.run_canary()
    ready = await client.get("/ready")
    metrics = (await client.get("/metrics")).text
    health.batches.fault = None

    assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
    assert (
        'headlight_canary_failures_total{model="all-MiniLM-L6-v2",replica="replica-1"} 1.0'
        in metrics
    )
    assert 'headlight_ready{model="all-MiniLM-L6-v2",replica="replica-1"} 0.0' in metrics
    assert (await client.get("/ready")).status_code == 200


@contextmanager
def sticky() -> Iterator[list[int]]:
    """A device that fails for good; the sequences of each batch that was tried."""
    tried = list[int]()

    def fail(encoder: Encoder, sequences: Sequence[object]) -> None:
        tried.append(len(sequences))
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.MonkeyPatch.context() as failing:
        failing.setattr(Encoder, "pack", fail)
        yield tried


async def test_a_replica_whose_accelerator_failed_answers_nothing_more(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Not 500: another replica can answer. What failed is not tried again, in halves or at all."""
    seven = {"inputs": [{"token_ids": [2035]}] * 7}
    batches = replica.health.batches
    with sticky() as tried:
        failed = await client.post("/v1/encode", json=seven)
        later = [
            await client.post("/v1/encode", json=seven),
            await client.post("/tokenize", json={"inputs": "a"}),
            await client.get("/info"),
            await client.get("/ready"),
        ]
    alive = [await client.get("/live"), await client.get("/metrics")]
    with pytest.raises(RuntimeError, match="the accelerator failed"):
        replica.health.raise_if_faulty()
    batches.fault, batches._accelerator_broken = None, False

    assert {answer.status_code for answer in (failed, *later)} == {503}
    assert failed.json()["code"] == "not_ready" and failed.headers["retry-after"] == "1"
    assert {answer.status_code for answer in alive} == {200} and sum(tried) <= 7
    assert (await client.post("/v1/encode", json=seven)).status_code == 200


async def test_an_answer_made_before_a_fault_is_known_does_not_leave(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """The canary's turn may come while a request is under way."""
    with held(replica) as gate:
        asking = asyncio.create_task(client.post("/v1/encode", json=DOG))
        await until(lambda: replica.batcher.busy)
        replica.health.batches.distrust("a test says so")
        gate.set()
        answer = await asking
    replica.health.batches.fault = None

    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


async def test_the_canary_takes_its_turn_in_a_full_queue(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong bits under overload must not go unseen either."""
    bound(monkeypatch, replica.batcher, requests=0)
    runs = b'headlight_canary_runs_total{model="all-MiniLM-L6-v2",replica="replica-1"} '

    def count() -> float:
        return float(replica.metrics.freeze()().partition(runs)[2].split()[0])

    before = count()
    refused = await client.post("/v1/encode", json=DOG)
    await replica.health.run_canary()

    assert refused.status_code == 429
    assert count() > before and replica.health.fault is None  # the watch may have run one, too


async def test_a_batch_that_hangs_makes_the_replica_not_ready(
    client: httpx.AsyncClient,
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """/ready answers from the age of the batch, without running anything; the log has why."""
    monkeypatch.setattr("service.proof.health.STUCK_SECONDS", 0.0)
    with held(replica):
        waiting = asyncio.create_task(client.post("/v1/encode", json=DOG))
        async with asyncio.timeout(60):
            while (await client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="a batch hangs"):
            replica.check_health()
    monkeypatch.undo()
    await waiting

    told = [(line.getMessage(), getattr(line, "reason", None)) for line in caplog.records]
    assert told == [("not ready", "a batch hangs")] * 2  # asked by a client, and by Ray
    assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"max_tokens": MOST + 1}, "38.*37 positions"), ({"device": "cuda"}, "no CUDA device")],
)
async def test_a_setting_that_cannot_be_honoured_stops_the_start(
    tmp_path: Path, setting: dict[str, Any], said: str
) -> None:
    """With a line that says why, instead of a value quietly lowered."""
    checkpoint(tmp_path, "Model")
    with pytest.raises(Unservable, match=said):
        await Replica.start(Settings(model=str(tmp_path), threads=1, **setting), "r")
