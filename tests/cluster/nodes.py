"""A Ray cluster on machines of their own, started and deployed as docs/deploy.md says."""

import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.cluster.machines import Machine, Machines, network
from tests.ray.test_deploy import BIN, ROOT, START, VARIABLES

HOME = "/tmp/home"  # of each machine
PORT, DASHBOARD = 8000, 8265
HEAD, WORKERS, REDIS = 2, (3, 4), 9  # their numbers in the network
PATIENCE_SECONDS = 90
STORE_BYTES = 80 << 20  # Ray's least is 75 MiB
JOIN = "ray start --address={head}:6379"
# What a supervisor does that starts again whatever ended: systemd's Restart=always
FOR_EVER = "while sleep 1; do ({}); done"

Applications = dict[str, Any]


@dataclass
class Cluster:
    """A head without processors for replicas, and workers with one each."""

    machine: Machines
    token: str
    environment: dict[str, str]
    variables: str = VARIABLES  # run before each `ray start`, as docs/deploy.md has it
    nodes: dict[int, Machine] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def head(self) -> Machine:
        """Where Ray's own state is."""
        return self.nodes[HEAD]

    @property
    def workers(self) -> list[Machine]:
        """Where replicas are."""
        return [self.nodes[number] for number in WORKERS if number in self.nodes]

    def shell(self, variables: str | None = None) -> str:
        """The start of every script: the checkout, a home with the token, Ray's variables."""
        pairs = " ".join(f"{name}={value!r}" for name, value in self.environment.items())
        return f"cd {ROOT} && export {pairs} && {variables or self.variables}"

    def add(self, number: int) -> Machine:
        """One more machine, which has the token."""
        made = self.machine(number)
        made.run(f"mkdir -p {HOME}/.ray && printf %s {self.token} > {HOME}/.ray/auth_token")
        self.nodes[number] = made
        return made

    def start(
        self, number: int, *options: str, variables: str | None = None, again: bool = False
    ) -> Machine:
        """Start Ray on a machine; without waiting.

        Args:
            variables: what is run before, where it is not as docs/deploy.md has it.
            again: start it whenever it has ended, as a supervisor does.
        """
        made = self.nodes.get(number) or self.add(number)
        command = START if number == HEAD else JOIN.format(head=self.head.address)
        command = command.replace("--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0")
        cores = 0 if number == HEAD else 1
        line = (
            f"{command} --block --num-cpus={cores} --node-ip-address={made.address}"
            f" --object-store-memory={STORE_BYTES} {' '.join(options)} >> /tmp/ray.log 2>&1"
        )
        script = f"{self.shell(variables)}; {FOR_EVER.format(line) if again else line}"
        self.started.append(subprocess.Popen(made.enter(script), stdin=subprocess.DEVNULL))
        return made

    def forget(self) -> None:
        """End all that Serve runs; what listens may differ next time."""
        self._serve("DELETE")

    def deploy(self, name: str, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """Do what `serve deploy` does with a file of deploy/serve, for every interface."""
        configuration = yaml.safe_load((ROOT / "deploy" / "serve" / name).read_text())
        configuration["http_options"]["host"] = "0.0.0.0"
        change(configuration)
        self._serve("PUT", configuration)

    def serve_deploy(self, name: str) -> None:
        """Run the command itself on the head, with a file whose host is every interface."""
        configuration = (ROOT / "deploy" / "serve" / name).read_text()
        copy = Path(f"/proc/{self.head.first}/root/tmp/{name}")
        copy.write_text(configuration.replace("host: 127.0.0.1", "host: 0.0.0.0"))
        self.head.run(f"{self.shell()}; serve deploy /tmp/{name}")

    def _serve(self, method: str, configuration: Any = None) -> None:
        httpx.request(
            method,
            f"http://{self.head.address}:{DASHBOARD}/api/serve/applications/",
            headers={"Authorization": f"Bearer {self.token}"},
            json=configuration,
            timeout=60,
        ).raise_for_status()

    def ask(self, path: str) -> Any:
        """What Ray's dashboard answers."""
        answer = httpx.get(
            f"http://{self.head.address}:{DASHBOARD}{path}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
        )
        return answer.raise_for_status().json()

    def applications(self) -> Applications:
        """What Ray says of each application; nothing while it says nothing."""
        with suppress(httpx.HTTPError):
            found: Applications = self.ask("/api/serve/applications/")["applications"]
            return found
        return {}

    def wait(self, said: Callable[[Applications], bool], seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait until Ray says so of its applications."""
        until = time.monotonic() + seconds
        while not said(found := self.applications()):
            assert time.monotonic() < until, (found, self.logs())
            time.sleep(0.2)
        return found

    def alive(self) -> set[str]:
        """The addresses of Ray's nodes, of each as soon as its agent has said it."""
        with suppress(httpx.HTTPError):
            nodes = self.ask("/nodes?view=summary")["data"]["summary"]
            return {node.get("ip", "") for node in nodes if node["raylet"]["state"] == "ALIVE"}
        return set()

    def joined(self) -> None:
        """Wait until every machine that was started is a node."""
        until = time.monotonic() + PATIENCE_SECONDS
        members = {self.nodes[number].address for number in (HEAD, *WORKERS)}
        while not members <= self.alive():
            assert time.monotonic() < until, self.logs()
            time.sleep(0.2)

    def ready(self) -> None:
        """Wait until every one answers clients."""
        until = time.monotonic() + PATIENCE_SECONDS
        for node in (self.head, *self.workers):
            while not answers(f"http://{node.address}:{PORT}"):
                assert time.monotonic() < until, self.logs()
                time.sleep(0.2)

    def logs(self) -> str:
        """The last that each `ray start` said."""
        texts = [path.read_text() for node in self.nodes.values() for path in node.files("ray.log")]
        return "\n".join(text[-2000:] for text in texts)


def redis() -> bool:
    """Whether Redis is installed here."""
    return shutil.which("redis-server") is not None


def replicated(count: int) -> Callable[[dict[str, Any]], None]:
    """A configuration with so many replicas of its first model."""

    def change(configuration: dict[str, Any]) -> None:
        configuration["applications"][0]["deployments"][0]["num_replicas"] = count

    return change


def answers(url: str) -> bool:
    """Whether a service is ready."""
    try:
        return httpx.get(f"{url}/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def replicas(found: Applications) -> list[tuple[str, str]]:
    """State and address of each replica; no address where it has no place yet."""
    return [
        (replica["state"], replica.get("node_ip") or "")
        for application in found.values()
        for deployment in application["deployments"].values()
        for replica in deployment["replicas"]
    ]


def serving(count: int) -> Callable[[Applications], bool]:
    """Whether every application runs with so many replicas in all, and none comes or goes."""

    def said(found: Applications) -> bool:
        return (
            bool(found)
            and all(application["status"] == "RUNNING" for application in found.values())
            and [state for state, _ in replicas(found)] == ["RUNNING"] * count
        )

    return said


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A network for a cluster; at the end its machines go with all that runs on them."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if re.fullmatch(r"LANG|LC_\w+|CUDA_VISIBLE_DEVICES", name)
    }
    own = {"HOME": HOME, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with network() as machines:
        made = Cluster(machines, secrets.token_hex(32), kept | own)
        yield made
    for process in made.started:
        process.wait(PATIENCE_SECONDS)
