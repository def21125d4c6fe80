"""Answers go to whoever asked, whatever another client makes two readers disagree about."""

import asyncio
import itertools
import runpy
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start
    from tests.smuggled_requests import Attack

pytestmark = pytest.mark.ray

FOUND = runpy.run_path(str(Path(__file__).parent.parent / "smuggled_requests.py"))
ATTACKS: "dict[str, list[Attack]]" = FOUND["ATTACKS"]
HIDDEN_ID = FOUND["HIDDEN_ID"].encode()
VICTIMS = 4
ATTACKERS, ANSWERS = 16, 200
DRILL_ATTACKERS, DRILL_ANSWERS = 8, 2_000
REST_SECONDS = 0.15  # of a victim, after an answer
PAUSE_SECONDS = 0.03  # between pieces: each in a read of its own
QUIET_SECONDS = 0.3  # after which no more is coming
DRILL_SECONDS = 600


@dataclass
class Journal:
    """What the victims were answered, and what the attackers should not have been."""

    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    under_way: list[str] = field(default_factory=list)  # attacks, the latest last
    obeyed: set[str] = field(default_factory=set)


async def victim(number: int, url: str, over: asyncio.Event, journal: Journal) -> None:
    """Ask for one's own vector again and again on a kept connection."""
    body = {"inputs": [f"Client {number} asks for itself" * (number + 1)], "encoding": "base64"}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        own = (await client.post("/v1/encode", json=body)).json()["data"]
        for count in itertools.count():
            if over.is_set():
                return
            name = f"client-{number}-{count}"
            try:
                answer = await client.post("/v1/encode", json=body, headers={"x-request-id": name})
                same = answer.headers.get("x-request-id") == name
                told = "its own" if same and answer.json().get("data") == own else answer.text[:60]
            except httpx.TransportError as error:
                told = repr(error)
            if told == "its own":
                journal.right += 1
            else:
                journal.wrong[f"{told}, during {journal.under_way[-1:]}"] += 1
            await asyncio.sleep(REST_SECONDS)


async def attack(attacks: "Iterator[Attack]", port: int, journal: Journal) -> None:
    """Send each attack on a connection of its own, and look who is answered there."""
    for one in attacks:
        journal.under_way.append(one.name)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        told = b""
        with suppress(ConnectionError, TimeoutError):
            for piece in one.pieces():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(PAUSE_SECONDS)
            while piece := await asyncio.wait_for(reader.read(65536), QUIET_SECONDS):
                told += piece
        writer.close()
        if HIDDEN_ID in told and not one.own:
            journal.obeyed.add(one.name)


async def meanwhile(
    attacks: "Iterator[Attack]", url: str, port: int, attackers: int, answers: int
) -> Journal:
    """Victims at one address, attackers at a port, until all was sent and so much was answered."""
    journal, over = Journal(), asyncio.Event()
    victims = [asyncio.create_task(victim(n, url, over, journal)) for n in range(VICTIMS)]
    await asyncio.gather(*(attack(attacks, port, journal) for _ in range(attackers)))
    while journal.right + journal.wrong.total() < answers:
        await asyncio.sleep(0.1)
    over.set()
    await asyncio.gather(*victims)
    return journal


def hold(journal: Journal, answers: int) -> None:
    """Every victim's answer was its own, and nothing hidden in a body was obeyed."""
    assert not journal.wrong, (journal.right, journal.wrong)
    assert not journal.obeyed
    assert journal.right >= answers


def doors(service: "Service") -> dict[str, int]:
    """The ports that take requests: the service's own, and a replica's."""
    targets: list[dict[str, Any]] = httpx.get(f"{service.url}/metrics/targets").json()
    replica = targets[0]["targets"][0]
    return {"the front": service.port, "a replica": int(replica.rpartition(":")[2])}


@pytest.mark.parametrize("door", ["the front", pytest.param("a replica", marks=pytest.mark.prove)])
def test_each_client_gets_its_own_answers_next_to_every_attack(
    running: "Service", door: str
) -> None:
    """Its id, its vector, 200; what is hidden in a body is never answered."""
    attacks = itertools.chain(*ATTACKS.values())

    port = doors(running)[door]
    hold(asyncio.run(meanwhile(attacks, running.url, port, ATTACKERS, ANSWERS)), ANSWERS)


@pytest.mark.prove
def test_ten_minutes_of_attacks_change_no_answer(start: "Start") -> None:
    """Through HAProxy, to replicas that share its connections."""
    with start("--replicas", "2") as service:
        end = time.monotonic() + DRILL_SECONDS
        every = itertools.cycle(itertools.chain(*ATTACKS.values()))
        attacks = itertools.takewhile(lambda _: time.monotonic() < end, every)
        sizes = DRILL_ATTACKERS, DRILL_ANSWERS
        journal = asyncio.run(meanwhile(attacks, service.url, service.port, *sizes))

    print(f"{journal.right} right, {len(journal.under_way)} attacks")
    hold(journal, DRILL_ANSWERS)
