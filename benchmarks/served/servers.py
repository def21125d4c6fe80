"""The servers that are compared: their environments, processes, processor time and memory.

Each peer is a file of benchmarks/peers/, and what it needs a list there, at pinned versions. Every
list has an environment of its own under build/peers/, which is kept while the list is the same. A
server's processes are found by a variable of their environment, so that none is missed that left
its parent.

While one server works the others are stopped (SIGSTOP): Ray's processes and some peers' poll, and
would take their share of the cores from the one that is measured.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from served.processes import cpu_seconds, find_marked, free_port, peak_mib, send_signal
from served.texts import LONG, Workload, embed_body, openai_body

ROOT = Path(__file__).parent.parent.parent
PEERS, BUILT = ROOT / "benchmarks" / "peers", ROOT / "build" / "peers"
MODEL = BUILT / "model"  # the bundled model's files, and the ONNX graph made of them
MARK = "BENCHMARKED_SERVER"
START_SECONDS, STOP_SECONDS, QUIET_SECONDS = 180.0, 60.0, 15.0
QUIET = 0.1  # of one core, over a quarter of a second: a server with nothing left to do
OURS, BARE = "Headlight", "Starlette + ONNX Runtime"
HALF = f"{OURS}, bfloat16"


class PeerAbsent(Exception):
    """A peer that cannot be installed or started here, with the reason."""


@dataclass(frozen=True)
class Server:
    """How a server is started and asked."""

    name: str
    file: str = ""  # of benchmarks/peers/; empty: this checkout
    needs: str = ""  # the list there of what it needs
    options: tuple[str, ...] = ()
    torch: bool = True
    path: str = "/embed"
    body: Callable[[list[str]], bytes] = embed_body
    paced: bool = True  # it gets the open loop, too
    warm_seconds: float = 1.0  # of load after it was stopped, before it is measured

    @property
    def home(self) -> Path:
        """Return where its environment is."""
        return BUILT / self.needs

    def is_measured_with(self, load: Workload) -> bool:
        """Tell whether it is measured with a workload."""
        return self.paced or load.connections > 0

    def command(self, port: int) -> list[str]:
        """Return the command."""
        if not self.file:
            serve = ["-m", "service.cli", "serve", "--port", str(port)]
            longest = ["--max-tokens", str(LONG[1])]  # its own is shorter
            return [sys.executable, *serve, *longest, *self.options]
        script = str(PEERS / f"{self.file}.py")
        return [str(self.home / "bin" / "python"), script, str(MODEL), str(port), *self.options]


def openvino_server(number_format: str = "float32") -> Server:
    """Return the bare server around OpenVINO, which computes in this format."""
    name = "Starlette + OpenVINO"
    return Server(
        name if number_format == "float32" else f"{name}, {number_format}",
        "starlette_openvino",
        "starlette_openvino",
        ("--format", number_format),
        torch=False,
    )


# What was stopped catches up first: an HAProxy that missed a check takes our replica for dead, and
# answers 503 for up to 4 s
SERVERS = {
    "headlight": Server(OURS, warm_seconds=5.0),
    "headlight-bfloat16": Server(HALF, options=("--dtype", "bfloat16"), warm_seconds=5.0),
    "onnx": Server(BARE, "starlette_onnx", "starlette_onnx", torch=False),
    "onnx-int8": Server(
        f"{BARE}, int8", "starlette_onnx", "starlette_onnx", ("--int8",), torch=False
    ),
    "openvino": openvino_server(),
    "openvino-bfloat16": openvino_server("bfloat16"),
    "openvino-int8": openvino_server("int8"),
    "infinity": Server(
        "infinity-emb", "infinity", "infinity", path="/embeddings", body=openai_body
    ),
    "fastapi": Server(
        "FastAPI + sentence-transformers", "fastapi_st", "sentence_transformers", paced=False
    ),
    "litserve": Server(
        "LitServe + sentence-transformers", "litserve_st", "sentence_transformers", paced=False
    ),
}


def install(server: Server, index: str) -> None:
    """Make a peer's environment, unless it is there; torch is the project's own version."""
    home, requirements = server.home, PEERS / f"{server.needs}.txt"
    done, torch = home / "installed", (ROOT / "deploy" / "torch.lock").read_bytes()
    if not server.file:
        return
    wanted = hashlib.sha256(requirements.read_bytes() + server.torch * torch).hexdigest()
    if done.exists() and done.read_text() == wanted:
        return
    python = home / "bin" / "python"
    log = BUILT / f"{server.needs}.log"
    pip = [str(python), "-m", "pip", "install", "--no-compile"]
    own = ["--constraint", str(ROOT / "constraints.txt"), "pip"]  # venv's is too old for torch.sh
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [*pip, *own],
        [*pip, "--no-deps", "--requirement", str(requirements)],
    ]
    if server.torch:  # after what it needs, as in the Makefile
        commands.append(["sh", str(ROOT / "deploy" / "torch.sh"), str(python), *index.split()])
    BUILT.mkdir(parents=True, exist_ok=True)
    print(f"installing what {server.name} needs", file=sys.stderr)
    with log.open("wb") as output:
        for command in commands:
            if subprocess.run(command, stdout=output, stderr=output).returncode:
                raise PeerAbsent(f"not installed: {last_line(log)}")
    done.write_text(wanted)


def last_line(log: Path) -> str:
    """Return what a program said at its end."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def export_model(folder: Path) -> None:
    """Lay out the model for the peers, and make its ONNX graph, once."""
    if not (MODEL / "onnx" / "model.onnx").exists():
        command = [sys.executable, str(PEERS / "export.py"), str(folder), str(MODEL)]
        subprocess.run(command, check=True)


@dataclass
class RunningServer:
    """A server that was started."""

    server: Server
    port: int
    process: "subprocess.Popen[bytes]"
    mark: bytes
    log: Path
    paused: list[int] = field(default_factory=list)

    @classmethod
    def start(cls, server: Server) -> "RunningServer":
        """Start a server, in a session of its own; it is not waited for.

        Raises:
            Absent: the program is not there.
        """
        port, mark = free_port(), f"{MARK}={os.getpid()}-{server.name}"
        log = BUILT / f"{server.name}.serve.log"
        environment = dict(os.environ)
        environment[MARK] = mark.partition("=")[2]
        environment["HF_HUB_OFFLINE"] = "1"
        with log.open("wb") as output:
            process = subprocess.Popen(
                server.command(port), env=environment, stdout=output, stderr=output
            )
        return cls(server, port, process, mark.encode(), log)

    def wait_until_ready(self) -> None:
        """Wait until it answers a first text.

        Raises:
            Absent: it ended, or did not come up in time.
        """
        until = time.monotonic() + START_SECONDS
        while (said := self.answer_first()) != "200":
            if self.process.poll() is not None:
                raise PeerAbsent(f"ended at its start: {last_line(self.log)}")
            if time.monotonic() > until:
                raise PeerAbsent(
                    f"not up after {START_SECONDS:.0f} s: {said}; {last_line(self.log)}"
                )
            time.sleep(0.2)

    def answer_first(self) -> str:
        """Return the status it answers a text with, or why there is none."""
        headers = {"Content-Type": "application/json"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", self.server.path, self.server.body(["yes"]), headers)
            return str(connection.getresponse().status)
        except (OSError, HTTPException) as error:
            return repr(error)
        finally:
            connection.close()

    def pids(self) -> list[int]:
        """Return its processes."""
        return find_marked(self.mark)

    def cpu_seconds(self) -> float:
        """Return processor time of its processes so far."""
        return sum(cpu_seconds(pid) for pid in self.pids())

    def forget_peak(self) -> None:
        """Reset the peak of memory."""
        for pid in self.pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """Return the most memory since: shared pages by their share."""
        return sum(peak_mib(pid) for pid in self.pids())

    def pause(self) -> None:
        """Stop all of it where it stands."""
        self.paused = self.pids()
        for pid in self.paused:
            send_signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it."""
        for pid in self.paused:
            send_signal(pid, signal.SIGCONT)
        self.paused = []

    def settle(self) -> None:
        """Wait until it has nothing left to do, or for long enough."""
        until, before = time.monotonic() + QUIET_SECONDS, self.cpu_seconds()
        while time.monotonic() < until:
            time.sleep(0.25)
            now = self.cpu_seconds()
            if now - before < 0.25 * QUIET:
                return
            before = now

    def stop_all(self) -> None:
        """End it: ours as its users do, which clears up after Ray; a peer at once."""
        self.resume()
        if not self.server.file:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        for pid in self.pids():
            send_signal(pid, signal.SIGKILL)
        self.process.wait()
