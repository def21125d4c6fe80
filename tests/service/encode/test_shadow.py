"""A second service that is sent a share of the texts: what goes there, and what never does."""

import asyncio
import io
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from starlette.requests import Request as Received
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.encode import shadow as shadowing
from service.encode.likened import FEWEST
from service.encode.request import Input, Request
from service.encode.shadow import HEADER, MOST_ANSWER_BYTES, MOST_WAITING, Shadow
from service.engine.machine import Unservable
from service.engine.work import Result
from service.observe import logs
from service.observe.metrics import Metrics, samples
from service.replica import Replica
from service.settings import Settings, fault, load
from tests.seams import altered
from tests.service.cluster.test_tls import write

pytestmark = pytest.mark.asyncio(loop_scope="session")

Listen = Callable[..., AbstractAsyncContextManager[str]]
Outer = Callable[[Replica], ASGIApp]
SECRET = "a text that is nobody's business"
KEY = "key-of-the-other-service"
Front = Callable[..., AbstractAsyncContextManager["Shadowed"]]


class Stand:
    """Another service that answers as it is told, and keeps what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"{}", **headers: str) -> None:
        self.asked, self.status, self.body = list[Received](), status, body
        self.bodies, self.headers, self.go = list[Any](), headers, asyncio.Event()
        self.came = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = Received(scope, receive)
        self.bodies.append(json.loads(await received.body()))
        self.asked.append(received)
        self.came.set()
        await self.go.wait()
        await Response(self.body, self.status, self.headers)(scope, receive, send)


class Shadowed:
    """A replica with a shadow, a client of it, and what is counted of the shadow."""

    def __init__(self, replica: Replica, http: httpx.AsyncClient, metrics: Metrics) -> None:
        self.replica, self.http, self._metrics = replica, http, metrics
        assert replica.shadow
        self.shadow = replica.shadow

    async def encode(self, *texts: str, **body: Any) -> Any:
        """What is answered to some texts."""
        answer = await self.http.post("/v1/encode", json={"inputs": texts, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def count(self, name: str, **labels: str) -> float:
        """A number of the page."""
        wanted = {"replica": "front", **labels}
        page = self._metrics.render().decode()
        return sum(
            value
            for n, ls, value in samples(page)
            if n == f"headlight_{name}" and wanted.items() <= ls.items()
        )

    async def until(self, name: str, least: float, **labels: str) -> None:
        """Wait for a number of the page."""
        async with asyncio.timeout(30):
            while self.count(name, **labels) < least:
                await asyncio.sleep(0.005)


@pytest.fixture
def shadowed(
    replica: Replica, outer: Outer, listen: Listen
) -> Callable[..., AbstractAsyncContextManager[Shadowed]]:
    """The bundled model with a shadow."""

    @asynccontextmanager
    async def serve(url: str, share: float = 1.0, **settings: Any) -> AsyncIterator[Shadowed]:
        metrics = Metrics("front")
        settled = Settings(shadow=url, shadow_share=share, **settings)
        shadow = Shadow(
            settled, replica.name, lambda: replica.batcher.waiting_requests > 0, metrics
        )
        front = altered(replica, shadow=shadow)
        try:
            async with (
                listen(outer(front)) as here,
                httpx.AsyncClient(base_url=here, timeout=60) as http,
            ):
                yield Shadowed(front, http, metrics)
        finally:
            await shadow.close()

    return serve


@pytest.fixture
def closed() -> Iterator[str]:
    """Where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


async def test_a_shadow_of_the_same_model_finds_the_same(shadowed: Front, address: str) -> None:
    """Through its public route; both numbers are 1, and nothing failed."""
    async with shadowed(address) as one:
        for first in range(0, FEWEST, 4):
            await one.encode(*[f"text {number} of many" for number in range(first, first + 4)])
        await one.until("shadow_window_texts", FEWEST)

        assert one.count("shadow_sent_total") == one.count("shadow_window_texts") == FEWEST
        assert one.count("shadow_likeness_correlation") == pytest.approx(1)
        assert one.count("shadow_neighbour_overlap") == 1
        assert one.count("shadow_failed_total") == one.count("shadow_dropped_total") == 0


async def test_a_shadow_of_another_size_is_compared(
    shadowed: Front,
    base: Replica,
    outer: Outer,
    listen: Listen,
) -> None:
    """Its vectors have other numbers of numbers, and random weights agree with none."""
    async with listen(outer(base)) as url, shadowed(url) as one:
        for number in range(FEWEST):
            await one.encode(f"text {number} of many")
        await one.until("shadow_window_texts", FEWEST)

        assert -1 < one.count("shadow_likeness_correlation") < 0.999
        assert 0 <= one.count("shadow_neighbour_overlap") < 1


@pytest.mark.parametrize("share", [0.01, 0.29, 1.0])
async def test_never_more_than_its_share_is_taken(closed: str, share: float) -> None:
    """After each request, however many texts it has; what is not like the shadow's is dropped."""
    metrics, seen = Metrics("front"), 0
    shadow = Shadow(Settings(shadow=closed, shadow_share=share), "m", lambda: False, metrics)
    result, one = Result(pooled=np.ones(3, np.float32)), Input(token_ids=[101, 102])
    try:
        for size in (1, 7, 1, 100, 1, 3, *[1] * 200):
            shadow.offer(Request(inputs=[one] * size), [result] * size, {})
            seen += size
            page = metrics.render().decode()
            taken = sum(v for n, _, v in samples(page) if n == "headlight_shadow_dropped_total")
            assert taken == int(share * seen)
    finally:
        await shadow.close()


async def test_a_shadows_own_request_is_sent_no_further(shadowed: Front, listen: Listen) -> None:
    """Two services that shadow each other do not send a text for ever."""
    stand = Stand()
    async with listen(stand) as url, shadowed(url) as one:
        await one.http.post("/v1/encode", json={"inputs": ["a"]}, headers={HEADER: "1"})
        await one.encode("b")
        await one.until("shadow_sent_total", 1)
        async with asyncio.timeout(30):
            await stand.came.wait()

        assert [body["inputs"] for body in stand.bodies] == [["b"]]
        assert stand.asked[0].headers[HEADER] == "1"


@pytest.mark.parametrize(
    ("stand", "reason"),
    [
        (Stand(503), "refused"),
        (Stand(302, location="http://127.0.0.1:9/elsewhere"), "refused"),
        (Stand(body=b" " * (MOST_ANSWER_BYTES + 1)), "unusable"),
        (Stand(body=b'{"weights": "w", "data": []}'), "unusable"),
        (Stand(body=b"[1]"), "unusable"),
    ],
    ids=["an error", "a redirect", "too much", "too few", "something else"],
)
async def test_a_shadow_that_does_not_answer_as_it_must_is_counted(
    shadowed: Front, listen: Listen, stand: Stand, reason: str, tmp_path: Path
) -> None:
    """Once: it is asked no second time, and neither text nor key is in a line of the log."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.Lines("front"))
    file = tmp_path / "key"
    file.write_text(f"ours:{KEY}\n")
    logging.getLogger("service").addHandler(handler)
    try:
        async with listen(stand) as url, shadowed(url, shadow_key_file=file) as one:
            await one.encode(SECRET)
            await one.until("shadow_failed_total", 1, reason=reason)
            asked = stand.asked[-1]
    finally:
        logging.getLogger("service").removeHandler(handler)

    assert asked.headers["authorization"] == f"Bearer {KEY}" and len(stand.asked) == 1
    assert f'"reason":"{reason}"' in written.getvalue().replace(": ", ":")
    assert SECRET not in written.getvalue() and KEY not in written.getvalue()


async def test_the_shadows_key_is_read_again_while_it_is_sent(
    shadowed: Front, listen: Listen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike the file of our own clients' keys, by the one task that sends it."""
    monkeypatch.setattr(shadowing, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(shadowing, "PAUSE_SECONDS", 0.0)
    file, stand = tmp_path / "key", Stand(401)
    file.write_text(KEY)
    async with listen(stand) as url, shadowed(url, shadow_key_file=file) as one:
        for number, text in enumerate((KEY, "another", "another " * 2, "# a third one")):
            file.write_text(text)
            await one.encode("a")
            await one.until("shadow_failed_total", number + 1, reason="refused")

    sent = [asked.headers["authorization"] for asked in stand.asked]
    assert sent == [f"Bearer {key}" for key in (KEY, "another", "another", "another")]


async def test_a_shadow_is_trusted_by_its_certificate(
    shadowed: Front,
    listen: Listen,
    outer: Outer,
    replica: Replica,
    log: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by an authority that the machine does not know is refused, until SSL_CERT_FILE has it."""
    monkeypatch.setattr(shadowing, "PAUSE_SECONDS", 0.0)
    async with listen(outer(replica), tls=write(tmp_path, 1)) as url:
        async with shadowed(url) as one:
            for number in (1, 2):
                await one.encode(SECRET)
                await one.until("shadow_failed_total", number, reason="untrusted")
        logged = log()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        async with shadowed(url) as one:
            await one.encode(SECRET)
            await one.until("shadow_window_texts", 1)
            assert one.count("shadow_failed_total") == 0

    failed = [line for line in logged.splitlines() if "shadow failed" in line]
    assert len(failed) == 1 and json.loads(failed[0])["reason"] == "untrusted"
    assert SECRET not in logged


async def test_certificates_that_cannot_be_read_end_the_start(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line that says where they are looked for."""
    for name, text in (("none", None), ("wrong", "no certificate")):
        if text:
            (tmp_path / name).write_text(text)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
        with pytest.raises(Unservable, match="^shadow: .* SSL_CERT_FILE"):
            Shadow(Settings(shadow=closed), "m", lambda: False, Metrics("front"))


async def test_clients_of_a_service_with_a_dead_shadow_get_the_same_answers(
    shadowed: Front, closed: str, client: httpx.AsyncClient
) -> None:
    """Bit for bit; what waits is bounded, the rest is counted."""
    body = {"inputs": ["All is well"], "encoding": "base64"}
    expected = (await client.post("/v1/encode", json=body)).json()["data"]
    async with shadowed(closed) as one:
        await one.encode("first")
        await one.until("shadow_failed_total", 1, reason="unreachable")
        told = [await one.encode("All is well", encoding="base64") for _ in range(3)]
        await one.encode(*[f"text {number}" for number in range(2 * MOST_WAITING)])

        assert all(each["data"] == expected for each in told)
        assert one.count("shadow_dropped_total", reason="full") == MOST_WAITING + 3
        assert one.count("shadow_sent_total") == 1  # the pause


async def test_clients_do_not_wait_for_a_slow_shadow(
    shadowed: Front, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds one request, which ends in time; others wait within their bound, or are dropped."""
    monkeypatch.setattr(shadowing, "ANSWER_SECONDS", 0.5)
    stand = Stand()
    stand.go.clear()
    async with listen(stand) as url, shadowed(url) as one:
        await one.encode("first")
        async with asyncio.timeout(30):
            await stand.came.wait()
        told = await one.encode(*[f"text {number}" for number in range(MOST_WAITING + 5)])
        full, asked = one.count("shadow_dropped_total", reason="full"), len(stand.asked)
        await one.until("shadow_failed_total", 1, reason="timeout")
        stand.go.set()

        assert (len(told["data"]), full, asked) == (MOST_WAITING + 5, 5, 1)


async def test_all_that_is_taken_is_counted_once_and_nothing_of_it_is_awaited(
    shadowed: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that takes connections and never answers: each answer comes all the same.

    The drill of tests/ray/test_shadow_drill.py measures this.
    """
    monkeypatch.setattr(shadowing, "ANSWER_SECONDS", 600.0)
    monkeypatch.setattr(shadowing, "GATHER_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with shadowed(url, share=0.5) as one:
            await one.encode("first", "and second")
            await one.until("shadow_sent_total", 1)
            for size in (1, 100, 7, 100, 1):
                assert len((await one.encode(*["another"] * size))["data"]) == size
            sent, failed = one.count("shadow_sent_total"), one.count("shadow_failed_total")
            dropped = one.count("shadow_dropped_total")

    assert (sent, failed, dropped) == (1, 0, 211 // 2 - 1 - MOST_WAITING)


async def test_texts_of_several_requests_go_together(listen: Listen) -> None:
    """A request to the shadow costs the event loop as much for one text as for many."""
    stand, result = Stand(), Result(pooled=np.ones(3, np.float32))
    async with listen(stand) as url:
        shadow = Shadow(Settings(shadow=url, shadow_share=1), "m", lambda: False, Metrics("front"))
        for text in ("a", "b"):
            shadow.offer(Request(inputs=[Input(text)]), [result], {})
            for _ in range(5):
                await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await stand.came.wait()
        await shadow.close()

    assert [body["inputs"] for body in stand.bodies] == [["a", "b"]]


async def test_under_load_nothing_is_sent(closed: str) -> None:
    """While the replica has work waiting, what would be sent is dropped."""
    metrics = Metrics("front")
    shadow = Shadow(Settings(shadow=closed, shadow_share=1), "m", lambda: True, metrics)
    shadow.offer(Request(inputs=[Input("a")]), [Result(pooled=np.ones(3, np.float32))], {})
    async with asyncio.timeout(30):
        while b'dropped_total{reason="busy",replica="front"} 1.0' not in metrics.render():
            await asyncio.sleep(0)
    await shadow.close()

    assert b'shadow_sent_total{replica="front"} 0.0' in metrics.render()


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"shadow": "ftp://other"}, "shadow: "),
        ({"shadow": "http://user:pass-word@other"}, "shadow: "),
        ({"shadow": "http://other/?a=b"}, "shadow: "),
        ({"shadow": "http://other:99999"}, "shadow: "),
        ({"shadow_share": "0.1"}, "shadow_share: it needs shadow"),
        ({"shadow": "http://other", "shadow_share": "1.01"}, "shadow_share: "),
        ({"shadow": "http://other", "shadow_share": "0"}, "shadow_share: "),
        ({"shadow_key_file": "/there"}, "shadow_key_file: it needs shadow"),
        ({"shadow": "http://other", "shadow_key": "pass-word"}, "shadow_key: no such setting"),
    ],
)
async def test_a_shadow_that_cannot_be_honoured_is_refused(
    values: dict[str, str], wrong: str
) -> None:
    """In a line that names the setting, and repeats neither a password nor a key."""
    variables = {f"HEADLIGHT_{name.upper()}": value for name, value in values.items()}
    with pytest.raises(ValueError) as refused:
        load({}, variables)

    errors = refused.value.errors() if isinstance(refused.value, ValidationError) else None
    said = fault(errors[0]) if errors else str(refused.value)
    assert said.startswith(wrong) and "pass-word" not in said
