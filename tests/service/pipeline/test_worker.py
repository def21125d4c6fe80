"""Work in a thread of its own: turns, bounds, and who gives up."""

import asyncio
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.engine.fair.rotation import OWNER_KEY
from service.pipeline.replica import Replica
from service.pipeline.worker import Worker, one_step
from service.questions.highlight.evidence import COPY_BYTES
from service.shapes.record import Record
from service.tables.memory import Hold
from service.tables.refusals import Refused
from tests.conftest import application, connected
from tests.replica_internals import occupied, stalled, under

FAR = 60.0
LONG: dict[str, Any] = {"inputs": ["well " * 2000], "truncate": "right"}


def steps(name: str, count: int, taken: list[str]) -> Generator[None, None, str]:
    """Work of so many steps, each of which is noted."""
    for _ in range(count):
        taken.append(name)
        yield
    return name


async def test_who_waits_takes_turns_step_by_step() -> None:
    """So little work is done before much work that came first."""
    worker, taken = Worker(), list[str]()
    deadline = time.monotonic() + FAR
    async with occupied(worker):
        both = asyncio.gather(
            worker.run(steps("much", 7, taken), deadline),
            worker.run(steps("little", 2, taken), deadline),
        )
        while worker.waiting < 2:
            await asyncio.sleep(0)

    assert await both == ["much", "little"]
    assert taken[:4] == ["much", "little", "much", "little"] and len(taken) == 9


async def test_who_gives_up_leaves_after_the_step_that_runs() -> None:
    """The thread cannot be stopped, so its place is taken until then; no later step is taken."""
    worker, taken = Worker(1), list[str]()
    gate, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> Generator[None, None, str]:
        taken.append("first")
        loop.call_soon_threadsafe(began.set)
        gate.wait()
        yield
        taken.append("second")
        return "done"

    asking = asyncio.create_task(worker.run(slow(), time.monotonic() + FAR))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(Refused, match="overloaded"):
        await worker.run(one_step(lambda: "other"), time.monotonic() + FAR)
    gate.set()
    while worker.waiting:
        await asyncio.sleep(0)

    assert await worker.run(one_step(lambda: "other"), time.monotonic() + FAR) == "other"
    assert taken == ["first"]


async def test_of_several_keys_none_takes_all_the_room() -> None:
    """One alone has two thirds of it, and the next finds some."""
    worker = Worker(12)
    deadline, asked = time.monotonic() + FAR, list[asyncio.Task[str]]()

    async def come(owner: str, count: int) -> int:
        """How many of so many requests of a key find room."""
        OWNER_KEY.set(owner)
        runs = (worker.run(one_step(lambda: owner), deadline) for _ in range(count))
        came = [asyncio.create_task(run) for run in runs]
        await asyncio.sleep(0)
        asked.extend(came)
        return sum(not task.done() for task in came)

    for _ in range(2):  # what is done takes no room from its key
        async with occupied(worker):
            rooms = [await asyncio.create_task(come(owner, 12)) for owner in "ab"]
        await asyncio.gather(*asked, return_exceptions=True)
        assert rooms == [8, 3]
        while worker.waiting:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/encode", LONG),
        ("/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": LONG["inputs"]}),
        ("/embed", {"inputs": LONG["inputs"]}),
        ("/tokenize", {"inputs": LONG["inputs"]}),
        ("/v1/explain", {"text": LONG["inputs"][0], "layer": 0, "truncate": "right"}),
    ],
)
async def test_characters_that_wait_to_be_tokenized_are_bounded(
    replica: Replica, path: str, body: object
) -> None:
    """On every route; a short text is not held up."""
    worker = Worker(10_000)
    reader = replace(replica.reader, worker=worker)
    async with connected(application(under(replica, reader))) as client:
        async with occupied(worker):
            first = asyncio.create_task(client.post("/embed", json={"inputs": LONG["inputs"]}))
            while not worker.waiting:
                await asyncio.sleep(0)
            second = await client.post(path, json=body)
            short = await client.post("/v1/encode", json={"inputs": ["All is well"]})

        assert second.status_code == 429 and second.headers["retry-after"] == "1"
        assert short.status_code == 200 and (await first).status_code == 200


PAGE = "It rains here. " * 60
ENDED: dict[str, tuple[str, Any]] = {
    "evidence": ("/v1/highlight", {"query": "a", "documents": [PAGE], "truncate": "right"}),
    "similarity": ("/v1/similarity", {"left": "a", "right": ["b"], "form": "score"}),
}


@pytest.mark.parametrize("route", ["evidence", "similarity"])
async def test_what_was_admitted_is_not_refused_at_a_later_step(
    replica: Replica, route: str
) -> None:
    """However much waits for the same thread by then: all steps have one admission."""
    path, body = ENDED[route]
    worker, far = Worker(10_000), time.monotonic() + FAR
    other = under(replica, replace(replica.reader, worker=worker), max_waiting_requests=1)
    used = worker if route == "evidence" else other.admission.sums
    async with connected(application(other)) as client:
        with stalled(replica.batcher):
            asking = asyncio.create_task(client.post(path, json=body))
            while not replica.batcher.waiting_requests:
                await asyncio.sleep(0.01)
            gate = threading.Event()
            filled = asyncio.create_task(used.run(one_step(gate.wait), far, 10_000))
            await asyncio.sleep(0)
        while used.waiting == 10_000 and not asking.done():
            await asyncio.sleep(0.01)
        gate.set()
        await filled
        answer = await asking

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("a", id="short", marks=pytest.mark.prove),
        pytest.param(LONG["inputs"][0], id="long"),
    ],
)
async def test_a_request_is_let_into_the_tokenizer_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """All that is read for evidence: a long query, its documents, how they divide, their units.

    The bytes of its units' texts are held as they wait, since no room bounds them.
    """
    take, held = Hold.take, list[int]()

    def noted(self: Hold, bodies: int = 0, arrays: int = 0, answers: int = 0) -> None:
        held.append(bodies)
        take(self, bodies=bodies, arrays=arrays, answers=answers)

    monkeypatch.setattr(Hold, "take", noted)
    worker, far, gate = Worker(10_000), time.monotonic() + FAR, threading.Event()
    other = under(replica, replace(replica.reader, worker=worker))
    body = {"query": query, "documents": [PAGE * 2], "method": "alone", "truncate": "right"}

    def waiting() -> Generator[None, None, None]:
        while not gate.wait(0.001):
            yield

    async with connected(application(other)) as client:
        async with occupied(worker):
            asking = asyncio.create_task(client.post("/v1/highlight", json=body))
            while not worker.waiting:
                await asyncio.sleep(0)
            admitted = Record("other", admitted=True)
            filled = asyncio.create_task(worker.run(waiting(), far, 10_000, admitted))
            await asyncio.sleep(0)
        answer = await asking
        gate.set()
        await filled

    assert answer.status_code == 200, answer.text
    assert max(held) > COPY_BYTES * 60 * 2


async def test_an_answer_says_how_long_a_text_was_that_is_cut(client: httpx.AsyncClient) -> None:
    """Of a lone text longer than a piece, too: all its tokens count."""
    text = {"inputs": ["well " * 5000], "tokens": True}
    for side in ("right", "left"):
        (item,) = (await client.post("/v1/encode", json={**text, "truncate": side})).json()["data"]
        refused = await client.post("/v1/encode", json=text)

        assert (item["length"], len(item["tokens"]), item["truncated"]) == (5002, 256, True)
        assert item["words"][1] == (0 if side == "right" else 5000 - 254)
        assert (refused.status_code, refused.json()["length"]) == (422, 5002)
