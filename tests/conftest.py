"""What every test shares: a real replica in process; with --no-skip no test may skip itself."""

import asyncio
import base64
import gc
import io
import json
import logging
import os
import runpy
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

# read when torch and Ray count GPUs: what is tested here is a processor's path, on any machine; a
# GPU's is held by benchmarks/gpu.py
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# read when torch loads OpenMP: threads that wait for another sleep. By default they spin first, on
# the core that it wants where two test processes share two cores.
os.environ["OMP_WAIT_POLICY"] = "passive"

import certifi
import httpx
import numpy as np
import pytest
import pytest_asyncio
import uvicorn
from hypothesis import settings as hypothesis
from numpy.typing import NDArray
from starlette.types import ASGIApp

from service.door.door import Door
from service.door.request import Request
from service.files.weights import BUNDLED_MODEL
from service.observe import logs
from service.observe.scrape import join_pages
from service.pipeline.replica import Replica
from service.proof import health, proof
from service.tables.memory import Hold, Memory
from service.tables.settings import Settings
from tests.behind_entrance import mounted
from tests.replica_internals import under

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


# The same examples every time, so that a change is refused for what it did; `make prove` looks for
# others. No deadline: the machine may be busy.
hypothesis.register_profile("same", hypothesis(), deadline=None, derandomize=True)
hypothesis.register_profile("others", hypothesis(), deadline=None, max_examples=2000)
hypothesis.load_profile("same")

# A client of httpx reads 140 authorities of the web, 45 ms, and no test asks the web
make_context, of_the_web = ssl.create_default_context, {"cafile": certifi.where()}
WEB = make_context(**of_the_web)
ssl.create_default_context = lambda *purpose, **how: (
    WEB if not purpose and how == of_the_web else make_context(*purpose, **how)
)

gc.disable()  # until the tests are collected: looking for garbage among them took half of the time

PATIENCE_SECONDS = 30.0
health.CANARY_SECONDS = 86_400.0  # none joins the work that a test holds up
proof.MEASURED_SECONDS = (
    0.02  # a round or two, at each of a hundred starts: no test needs the speed
)
ROOT = Path(__file__).parent.parent
BAD_INPUTS = Path(__file__).with_name("bad_inputs.py")
FAILING_SERVICE = Path(__file__).with_name("failing_service.py")
RAY_FOLDERS = [Path(__file__).with_name(name) for name in ("cluster", "ray")]


class Connected(httpx.AsyncClient):
    """A client of an application in this process, which it knows.

    Args:
        prefix: below which the application is mounted.
    """

    def __init__(self, app: ASGIApp, prefix: str = "") -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        super().__init__(transport=transport, base_url=f"http://headlight{prefix}")
        self.app: Any = app


def in_flight(replica: Replica) -> float:
    """Return how many requests a replica has not yet answered, as its metrics say."""
    replica.observer.report()
    page = replica.freeze_metrics(False)().decode()
    return float(page.partition("\nheadlight_requests_in_flight{")[2].split()[1])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a `bad_group` or a `bad_wire` once for each there is."""
    if {"bad_group", "bad_wire"}.isdisjoint(metafunc.fixturenames):
        return
    found = runpy.run_path(str(BAD_INPUTS))
    groups, wires = found["ROWS"], found["WIRE"]
    for name, values, ids in (
        ("bad_group", groups.values(), groups.keys()),
        ("bad_wire", wires, [wire.name for wire in wires]),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=ids)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs Ray last, so that no idle service takes a core from all other tests.

    Raises:
        UsageError: a test that starts Ray lies where `make test` does not look for such tests.
    """
    with_ray = [item for item in items if item.get_closest_marker("ray")]
    if stray := [item.nodeid for item in with_ray if item.path.parent not in RAY_FOLDERS]:
        raise pytest.UsageError(f"tests that start Ray, outside of their folders: {stray}")
    items.sort(key=lambda item: item.get_closest_marker("ray") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """After the last test of a file, look for garbage once, and not again among what stays."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and never among what was collected, which stays."""
    gc.freeze()
    gc.enable()
    # to each logger that hands nothing on, half a hundred of torch's, pytest adds its handlers one
    # by one, six times a test
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a machine that must run everything say so."""
    parser.addoption("--no-skip", action="store_true", help="a skipped test is a failed one")
    parser.addoption("--golden", help="file for what tests/test_golden.py sees")
    parser.addoption("--write-golden", action="store_true", help="renew tests/golden")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skipped itself."""
    return refuse_skip(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that skipped itself whole."""
    return refuse_skip(collector.config, (yield))


def refuse_skip(config: pytest.Config, report: Report) -> Report:
    """Turn a skip into a failure that carries its reason, if the run was told so.

    What another processor alone can do is no package that was forgotten.
    """
    refused = report.skipped and not hasattr(report, "wasxfail") and config.getoption("--no-skip")
    if refused and "processor" not in str(report.longrepr):
        report.outcome, report.longrepr = "failed", f"skipped under --no-skip: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def rows() -> dict[str, list[Any]]:
    """The bad inputs that are requests, by what is wrong."""
    found: dict[str, list[Any]] = runpy.run_path(str(BAD_INPUTS))["ROWS"]
    return found


@pytest.fixture(scope="session")
def wires() -> list[Any]:
    """The bad inputs that only a connection can carry."""
    found: list[Any] = runpy.run_path(str(BAD_INPUTS))["WIRE"]
    return found


@pytest_asyncio.fixture(scope="session")
async def replica() -> AsyncIterator[Replica]:
    """The bundled model behind its queue, two lanes."""
    replica = await Replica.start(Settings(device="cpu", threads=2), "replica-1")
    yield replica
    await replica.close()


@pytest_asyncio.fixture(scope="session")
async def base() -> AsyncIterator[Replica]:
    """The source texts' encoder, random weights, behind its queue, one lane."""
    settings = Settings(model="preset:transformer-base", device="cpu", threads=1)
    replica = await Replica.start(settings, "base-1")
    yield replica
    await replica.close()


@pytest_asyncio.fixture(scope="session")
async def traced(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replica]:
    """A replica of its own, every request of which is traced into a file, one lane."""
    spans = tmp_path_factory.mktemp("traced") / "spans.jsonl"
    settings = Settings(device="cpu", threads=1, tracing=f"file:{spans}", tracing_ratio=1.0)
    replica = await Replica.start(settings, "traced-1")
    yield replica
    await replica.close()


@pytest.fixture
def spans(traced: Replica) -> Callable[[], list[dict[str, Any]]]:
    """What that replica has traced so far."""
    path = Path((traced.settings.tracing or "").removeprefix("file:"))

    def read() -> list[dict[str, Any]]:
        traced.observer.report()
        if traced.tracing:
            traced.tracing.flush()
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    return read


@pytest_asyncio.fixture
async def log(replica: Replica, traced: Replica) -> AsyncIterator[Callable[[], str]]:
    """What has been logged since a test began, as a replica writes it."""
    ours, written = logging.getLogger("service"), io.StringIO()
    observers = (replica.observer, traced.observer)

    def read() -> str:
        for observer in observers:
            observer.report()
        return written.getvalue()

    async with asyncio.timeout(PATIENCE_SECONDS):  # for requests that earlier tests gave up
        while any(map(in_flight, (replica, traced))):
            await asyncio.sleep(0)
    read()
    handler, level = logging.StreamHandler(written), ours.level
    handler.setFormatter(logs.JsonFormatter("replica-1"))
    begun = time.time()  # other replicas tell later of what ended before
    handler.addFilter(lambda line: line.created >= begun)
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield read
    ours.removeHandler(handler)
    ours.setLevel(level)


@pytest_asyncio.fixture
async def traced_client(traced: Replica) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the replica that is traced."""
    async with connected(application(traced)) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    """Where Ray has put the routes; a file whose tests are to run below a prefix too says so."""
    return ""


@pytest_asyncio.fixture
async def app(replica: Replica, prefix: str) -> ASGIApp:
    """The replica's ASGI application, as connections reach it."""
    return application(replica, prefix)


@pytest_asyncio.fixture
async def client(app: ASGIApp, prefix: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that application."""
    async with connected(app, prefix) as client:
        yield client


@pytest.fixture
def served(replica: Replica, prefix: str) -> Callable[..., Connected]:
    """A client of the same replica under other settings."""

    def serve(**settings: object) -> Connected:
        return connected(application(under(replica, **settings), prefix), prefix)

    return serve


@pytest_asyncio.fixture
async def base_client(base: Replica) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the source texts' encoder."""
    async with connected(application(base)) as client:
        yield client


@asynccontextmanager
async def listening(
    app: ASGIApp,
    port: int = 0,
    http: Literal["h11"] | type[asyncio.Protocol] = "h11",
    tls: tuple[Path, Path] | None = None,
) -> AsyncIterator[str]:
    """An application behind real HTTP on this machine; the address.

    Args:
        tls: its certificate and key, for HTTPS.
    """
    cert, key = tls or (None, None)
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign]  # they are pytest's
    with socket.create_server(("127.0.0.1", port)) as bound:
        # a head and its body are sent at once: else the second waits 40 ms to be acknowledged
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serving = asyncio.create_task(server.serve([bound]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield f"http{'s' * bool(tls)}://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@pytest.fixture(scope="session")
def listen() -> Callable[..., AbstractAsyncContextManager[str]]:
    """Serve an application over real HTTP, on a port of its own or a given one."""
    return listening


@pytest.fixture(scope="session")
def outer() -> Callable[[Replica], ASGIApp]:
    """A replica's ASGI application, as connections reach it."""
    return application


@pytest_asyncio.fixture(scope="session")
async def address(replica: Replica) -> AsyncIterator[str]:
    """Where the bundled model answers over real HTTP."""
    async with listening(application(replica)) as url:
        yield url


@pytest.fixture
def alone(client: httpx.AsyncClient) -> Callable[..., Awaitable[NDArray[np.float32]]]:
    """What POST /v1/encode answers to one input alone, sent without our client, exactly."""

    async def ask(given: Any, **options: Any) -> NDArray[np.float32]:
        body = {"inputs": [given], "encoding": "base64", **options}
        told = (await client.post("/v1/encode", json=body)).json()["data"][0]["pooled"]
        return np.frombuffer(base64.b64decode(told["data"]), "<f4").reshape(told["shape"])

    return ask


@pytest.fixture
def failing(app: ASGIApp) -> Callable[..., Any]:
    """The replica behind a layer that fails first."""
    layer = runpy.run_path(str(FAILING_SERVICE))["FailingService"]
    return lambda *failures, **how: layer(app, list(failures), **how)


async def posted(
    client: httpx.AsyncClient, path: str, json: Any, status: int = 200, **how: Any
) -> Any:
    """The JSON of an answer that must have this status."""
    answer = await client.post(path, json=json, **how)
    assert answer.status_code == status, answer.text
    return answer.json()


def post_of(path: str, model: str = BUNDLED_MODEL, **headers: str) -> Request:
    """A POST as parsers see it, whose body is apart."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"method": "POST", "path": path, "headers": raw}, Hold(Memory(), 1))
    request.path_params = {"model": model}
    return request


def application(replica: Replica, prefix: str = "") -> ASGIApp:
    """A replica as connections reach it; where there is a prefix, below it and past Ray's app."""

    async def scrape(openmetrics: bool, every_model: bool) -> bytes:
        return join_pages([replica.freeze_metrics(openmetrics)()], False, openmetrics, expected=1)

    async def targets(every_model: bool) -> dict[str, list[str]]:
        return {prefix: ["10.0.0.2:30000", "10.0.0.3:30000"]}

    door = Door(replica, scrape, targets)
    return mounted(door, prefix) if prefix else door


def connected(app: ASGIApp, prefix: str = "") -> Connected:
    """A client of an application in this process."""
    return Connected(app, prefix)
