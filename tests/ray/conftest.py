"""Services started as users start them: two for most tests, others by `start`."""

import ast
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from tests.ray import drill
from tests.ray.rotation import KEY, OTHER, Keys
from tests.test_tls import certificate

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 60
MOST_BYTES = 100_000  # of a body, where there are keys
HEADLIGHT = str(Path(sys.executable).with_name("headlight"))
# a user's own files, named like our packages, a library of ours and modules of Python's
TRAPS = ("model.py", "service.py", "headlight_client.py", "numpy.py", "queue.py", "token.py")
NO_VARIABLES: Mapping[str, str] = {}

Start = Callable[..., AbstractContextManager["Service"]]
Watching = Callable[..., AbstractContextManager["Prometheus"]]


@dataclass
class Service:
    """A running `headlight serve`."""

    process: subprocess.Popen[str]
    port: int
    greeting: str
    errors: Path
    scheme: str = "http"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def encode(self, *texts: str, timeout: float = 30) -> httpx.Response:
        """Ask for the encodings of texts."""
        return httpx.post(f"{self.url}/v1/encode", json={"inputs": texts}, timeout=timeout)

    def metrics(self) -> str:
        """The metrics page."""
        return httpx.get(f"{self.url}/metrics").text

    def ready(self) -> set[str]:
        """The replicas that say they are ready."""
        return set(re.findall(r'^headlight_ready\{.*replica="(.+)"\} 1', self.metrics(), re.M))

    def replaced(self, replicas: int) -> None:
        """Wait until so many replicas are ready again."""
        drill.wait(lambda: len(self.ready()) >= replicas, "the replica is replaced")

    def family(self) -> dict[int, str]:
        """The names of the command's process and all below it, by id."""
        return {self.process.pid: "headlight", **below(self.process.pid)}

    def directory(self) -> Path:
        """Its private directory."""
        sweeper = next(pid for pid in self.family() if b"ray_directory.py" in command(pid))
        _, _, arguments = command(sweeper).partition(b"ray_directory.py\0")
        return Path(arguments.split(b"\0")[0].decode())

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the command alone; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return httpx.get(f"{self.url}/-/ready").is_success
        except httpx.TransportError:
            return False

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What a query gives now."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def counts(self, metric: str, *labels: str) -> Counter[tuple[str, ...]]:
        """A counter as it stands, by labels."""
        found = self.ask(f"sum by ({', '.join(labels)}) ({metric})")
        return Counter(
            {
                tuple(one["metric"][label] for label in labels): int(float(one["value"][1]))
                for one in found
            }
        )

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = httpx.get(f"{self.url}/api/v1/alerts").json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


def processes() -> Iterator[tuple[int, int, str]]:
    """Id, parent and name of each process that runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            yield int(stat.parent.name), int(parent), title(int(stat.parent.name)) or head
    return


def below(pid: int) -> dict[int, str]:
    """The names of all processes that a process has started, and those have, by id."""
    parents = {each: (parent, name) for each, parent, name in processes()}
    found: dict[int, str] = {}
    while grown := {
        each: name
        for each, (parent, name) in parents.items()
        if (parent == pid or parent in found) and each not in found
    }:
        found |= grown
    return found


def title(pid: int) -> str:
    """What a process is, in a word: Ray's title for it, or its program or script."""
    words = command(pid).split(b"\0")[0:3]
    if words[0].startswith(b"ray::"):
        return words[0].decode().removeprefix("ray::").partition(":")[0].partition(".")[0]
    script = next((word for word in words if word.endswith(b".py")), words[0])
    return Path(script.decode()).stem


def command(pid: int) -> bytes:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def users_own() -> dict[str, str]:
    """The environment that a service has from a user: without ours, and threads wait as ever."""
    ours = re.compile("HEADLIGHT|OMP_WAIT_POLICY")
    return {name: value for name, value in os.environ.items() if not ours.search(name)}


def serve(
    *arguments: str,
    errors: Path,
    program: Sequence[str] = (),
    variables: Mapping[str, str] = NO_VARIABLES,
) -> subprocess.Popen[str]:
    """Run `headlight serve` among TRAPS, or another program that does, its stderr into a file."""
    for trap in TRAPS:
        (errors.parent / trap).write_text("raise ImportError('of the current folder')\n")
    ours = [sys.executable, "-m", *program] if program else [HEADLIGHT]
    with errors.open("w") as file:
        return subprocess.Popen(
            [*ours, "serve", *arguments],
            cwd=ROOT if program else errors.parent,
            env=users_own() | {"XDG_STATE_HOME": str(errors.parent / "state"), **variables},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a service with flags, wait until it serves, end it when the block does."""

    @contextmanager
    def started(
        *arguments: str,
        port: int | None = None,
        program: Sequence[str] = (),
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> Iterator[Service]:
        port = port or free_port()
        errors = tmp_path_factory.mktemp("service") / "stderr"
        own = "--port", str(port)
        process = serve(*own, *arguments, errors=errors, program=program, variables=variables)
        stdout = process.stdout
        assert stdout is not None
        with process, stdout:
            try:
                greeting = stdout.readline()  # or empty, when it ended instead
                assert greeting, errors.read_text()
                scheme = "https" if "--tls-cert" in arguments else "http"
                yield Service(process, port, greeting, errors, scheme)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(PATIENCE_SECONDS)

    return started


@pytest.fixture(scope="session")
def running(start: Start) -> Iterator[Service]:
    """A service with two replicas behind HAProxy, for every test that leaves it as it was."""
    with start("--replicas", "2") as service:
        yield service


class Way(NamedTuple):
    """One way of starting a service that others can reach."""

    arguments: list[str]
    variables: dict[str, str]


def container() -> Way:
    """As the image starts it."""
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    said = dict(re.findall(r"^(ENV|CMD|ENTRYPOINT) (.*)", text, re.M))  # the last stage's
    variables = dict(pair.split("=", 1) for pair in said["ENV"].split())
    del variables["PATH"]  # of the image's folders
    assert ast.literal_eval(said["ENTRYPOINT"]) == ["headlight"]
    return Way(ast.literal_eval(said["CMD"])[1:], variables)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A file of two keys."""
    made = Keys(tmp_path_factory.mktemp("keys"))
    made.write({KEY: "me:{}", OTHER: "other:{}"})
    return made


@pytest.fixture(scope="session")
def keyed(
    start: Start, left: int, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A container's service on a port that was just left, with two keys, TLS and a small limit."""
    folder, (arguments, variables) = tmp_path_factory.mktemp("tls"), container()
    certificate(folder)
    secured = "--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key"
    flags = "--api-keys-file", str(keys.file), "--max-body-bytes", str(MOST_BYTES)
    with (
        start(
            *arguments, *secured, *flags, "--public-metrics", "true", port=left, variables=variables
        ) as service,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SSL_CERT_FILE", f"{folder}/tls.crt")  # what clients trust from here on
        yield service


@pytest.fixture(scope="session")
def left() -> int:
    """A port that nobody holds, of whose connections one is still closing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            server.accept()[0].close()  # the side that closes first waits
            assert client.recv(1) == b""
        return int(server.getsockname()[1])


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run `headlight serve` with what it must refuse; its exit status and what it said."""

    def refuse(*arguments: str) -> tuple[int, str]:
        errors = tmp_path / "stderr"
        with serve(*arguments, errors=errors) as process:
            status = process.wait(PATIENCE_SECONDS)
        return status, errors.read_text()

    return refuse


@pytest.fixture(scope="session")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Watching:
    """Start Prometheus as shipped, but for the ports and what `change` does to its folder."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian has it)")

    @contextmanager
    def watch(
        service: Service, change: Callable[[Path], None] = lambda folder: None
    ) -> Iterator[Prometheus]:
        tmp_path = tmp_path_factory.mktemp("watch")
        folder = shutil.copytree(ROOT / "deploy" / "prometheus", tmp_path / "prometheus")
        change(folder)
        file = folder / "prometheus.yml"
        settings = yaml.safe_load(file.read_text())
        ours, _of_a_cluster = settings["scrape_configs"]
        for one in ours.get("static_configs", ()):
            one["targets"] = [f"127.0.0.1:{service.port}"]
        for one in ours.get("http_sd_configs", ()):
            one["url"] = one["url"].replace(":8000/", f":{service.port}/")
        settings["scrape_configs"] = [ours]  # a Ray of its own has no agents
        file.write_text(yaml.safe_dump(settings))
        address = f"127.0.0.1:{free_port()}"
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ]
        with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                prometheus = Prometheus(f"http://{address}")
                drill.wait(prometheus.ready, "Prometheus")
                yield prometheus
            finally:
                process.terminate()

    return watch


@pytest.fixture(scope="session")
def traceless() -> Callable[[set[int], int, Path], None]:
    """Check that soon no process, port or directory of a service is left."""

    def check(pids: set[int], port: int, directory: Path) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            left = [name for pid, _, name in processes() if pid in pids]
            with socket.socket() as client:
                held = client.connect_ex(("127.0.0.1", port)) == 0
            if not (left or held or directory.exists()):
                return
            time.sleep(0.1)
        raise AssertionError(f"left: {left}, port held: {held}, directory: {directory.exists()}")

    return check
