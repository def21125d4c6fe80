"""Drills of a minute and more: bodies without end, large answers, many at once."""

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

MIB = 1024 * 1024
BODY_BYTES, MOST_GROWTH_BYTES = 2048 * MIB, 64 * MIB
CONNECTIONS, MIXED = 64, 10_000
FLOOD_SECONDS = 20
LIVE_SECONDS = 0.25
WORDS = "the cat sat on a mat because it was warm and then ran off".split()


@pytest.fixture(scope="module")
def service(start: "Start") -> Iterator["Service"]:
    """A service of its own."""
    with start() as service:
        yield service


def resident(pids: Iterator[int] | dict[int, str]) -> dict[int, int]:
    """Resident bytes of processes, of those that still are."""
    found = {}
    for pid in pids:
        try:
            found[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    return found


def test_a_body_of_two_gib_is_refused_and_kept_nowhere(service: "Service") -> None:
    """Sent in chunks, to the end or until nobody listens: 413, and no process grows."""
    service.encode("All is well")
    family = service.family()
    before, most = resident(family), Counter[int]()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            for pid, size in resident(family).items():
                most[pid] = max(most[pid], size)

    looking = threading.Thread(target=look)
    looking.start()
    sent, told = send_chunks(service.port)
    time.sleep(0.5)
    done.set()
    looking.join()

    grown = {f"{family[pid]} {pid}": (most[pid] - before[pid]) // MIB for pid in before}
    worst = max(grown.items(), key=lambda pair: pair[1])
    print(f"sent {sent // MIB} MiB, told {told[:12]!r}, most growth {worst} MiB")
    assert told.startswith(b"HTTP/1.1 413 "), (sent, told)
    assert all(most[pid] - before[pid] < MOST_GROWTH_BYTES for pid in before), grown
    assert service.encode("All is well").status_code == 200


def send_chunks(port: int) -> tuple[int, bytes]:
    """Send a body without a length; how much went, and what came back."""
    head = b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece, sent, told = b"%x\r\n%s\r\n" % (MIB, bytes(MIB)), 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(head)
            while sent < BODY_BYTES:
                connection.sendall(piece)
                sent += MIB
                connection.setblocking(False)
                try:
                    told += connection.recv(65536)
                except BlockingIOError:
                    pass
                connection.settimeout(30)
            connection.sendall(b"0\r\n\r\n")
        except (ConnectionError, TimeoutError):
            pass
        try:
            connection.settimeout(5)
            told = told or connection.recv(65536)
        except (ConnectionError, TimeoutError):
            pass
    return sent, told


def test_large_json_answers_leave_room_for_small_requests(service: "Service") -> None:
    """Twelve heads' maps of 256 tokens as numbers, to 64 connections: who else asks is heard."""
    large = {
        "inputs": [{"token_ids": [7] * 256}],
        "pooled": False,
        "attention": {"layers": [5]},
    }

    until = time.monotonic() + FLOOD_SECONDS
    codes: Counter[int] = Counter()

    async def flood() -> None:
        async def ask(client: httpx.AsyncClient) -> None:
            while time.monotonic() < until:
                async with client.stream("POST", "/v1/encode", json=large) as answer:
                    async for _ in answer.aiter_raw():
                        pass
                codes[answer.status_code] += 1

        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=service.url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(ask(client) for _ in range(CONNECTIONS)))

    def probe(method: str, path: str, body: dict[str, Any] | None, took: list[float]) -> None:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            while time.monotonic() < until:
                begun = time.monotonic()
                assert client.request(method, path, json=body).status_code == 200
                took.append(time.monotonic() - begun)
                time.sleep(0.05)

    small: list[float] = []
    live: list[float] = []
    probes = [
        threading.Thread(
            target=probe, args=("POST", "/v1/encode", {"inputs": ["All is well"]}, small)
        ),
        threading.Thread(target=probe, args=("GET", "/live", None, live)),
    ]
    for each in probes:
        each.start()
    asyncio.run(flood())
    for each in probes:
        each.join()
    figures = (
        f"answers {dict(codes)}, small p99 {p99(small):.3f} s of {len(small)}, "
        f"/live p99 {p99(live):.3f} s, most {max(live):.3f} s of {len(live)}"
    )
    print(figures)
    assert set(codes) <= {200, 429} and codes[200] > 0, figures
    assert p99(live) <= LIVE_SECONDS, figures


def p99(seconds: list[float]) -> float:
    """The 99th percentile."""
    return sorted(seconds)[int(len(seconds) * 0.99)]


def test_ten_thousand_mixed_requests_are_each_answered_once_and_right(service: "Service") -> None:
    """Texts, ids, maps and bad ones from 64 connections; every answer is its own request's."""
    chance = random.Random(1)
    asked = [kind(chance) for _ in range(200)]
    wrong: list[str] = []
    seen: Counter[str] = Counter()

    async def drill() -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=service.url, timeout=60, limits=limits) as client:
            expected = [told(await client.request(*line, content=body)) for line, body in asked]
            numbers = iter(range(MIXED))

            async def worker() -> None:
                for number in numbers:
                    at = number * 7919 % len(asked)
                    (line, body), name = asked[at], f"mixed-{number}"
                    headers = {"x-request-id": name}
                    answer = await client.request(*line, content=body, headers=headers)
                    seen[answer.headers["x-request-id"]] += 1
                    if told(answer) != expected[at] or answer.headers["x-request-id"] != name:
                        wrong.append(f"{name}: {line} {body[:80]!r} {answer.status_code}")

            await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
        codes.update(code for code, _ in expected)

    codes: Counter[int] = Counter()
    begun = time.monotonic()
    asyncio.run(drill())
    print(f"{MIXED} requests in {time.monotonic() - begun:.1f} s; kinds {dict(codes)}")

    assert wrong == []
    assert len(seen) == MIXED and set(seen.values()) == {1}
    assert {200, 400, 404, 422} <= set(codes)


def kind(chance: random.Random) -> tuple[tuple[str, str], bytes]:
    """One request of any kind: its first line and body."""
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 40)))
    ids = chance.choices(range(1000, 30_000), k=chance.randint(1, 60))
    bodies = [
        f'{{"inputs":["{text}"],"encoding":"base64"}}',
        f'{{"inputs":["{text}","{text} too"]}}',
        f'{{"inputs":[{{"token_ids":{ids}}}]}}',
        f'{{"inputs":["{text[:40]}"],"attention":{{"layers":[{chance.randint(0, 5)}]}}}}',
        f'{{"inputs":["{text}"],"model":"{chance.random()}"}}',
        f'{{"inputs":["{text}"',
        f'{{"inputs":[{{"token_ids":[{chance.randint(30_522, 10**9)}]}}]}}',
    ]
    return ("POST", "/v1/encode"), chance.choice(bodies).encode()


def told(answer: httpx.Response) -> tuple[int, Any]:
    """What must be the same each time: the status, and the data or the code."""
    body = answer.json()
    return answer.status_code, body.get("data") or (body["code"], body.get("errors"))
