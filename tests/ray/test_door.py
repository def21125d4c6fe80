"""Attacks on the door of a running service: who else asks is heard, and nothing is left behind."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.attacks import Attack, every

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

MIB = 1024 * 1024
TRIES = 5
STOP_SECONDS, LEGAL_STOP_SECONDS, GROWTH_BYTES = 0.05, 0.1, 128 * MIB
GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
# one of each kind, for every change
SHORT = (
    "/v2/models/all-MiniLM-L6-v2/infer of objects",
    "/v1/embeddings of ones",
    "/v1/encode as fields",
    "shape of strings",
    "binary of lists",
    "both as json",
    "every token of TEI",
    "cut dots",
    "/tokenize dots",
)


class Listener:
    """Knows the longest wait of whoever asks a replica whether it lives."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("liveness_waits.py")), str(port)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def worst(self) -> float:
        """Since it was last asked, seconds."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Stop listening."""
        self.process.communicate()


@dataclass
class Door:
    """A service under attack."""

    service: "Service"
    client: httpx.Client
    replicas: set[int]
    listeners: list[Listener]
    golden: object

    def attack(self, attack: Attack) -> str:
        """Send one, up to TRIES times; what is wrong with what it did each time, or nothing.

        A stop of the loop's own making comes again, one of the machine's does not.
        """
        wrong = [self.once(attack)]
        while wrong[-1] and len(wrong) < TRIES:
            wrong.append(self.once(attack))
        return "; ".join(wrong) if wrong[-1] else ""

    def once(self, attack: Attack) -> str:
        """Send one; what is wrong with what it did, or nothing."""
        body, before = attack.body(), {pid: _reset(pid) for pid in self.replicas}
        for listener in self.listeners:
            listener.worst()
        with self.client.stream(
            "POST", attack.path, content=body, headers=attack.headers
        ) as answer:
            length = sum(map(len, answer.iter_raw()))
        worst = max(listener.worst() for listener in self.listeners)
        grown = max(_peak(pid) - before[pid] for pid in self.replicas)
        figures = (
            f"{attack.name}: {answer.status_code}, {length} bytes, "
            f"stop {worst * 1000:.0f} ms, growth {grown // MIB} MiB"
        )
        print(figures)
        stop = LEGAL_STOP_SECONDS if attack.legal else STOP_SECONDS
        fine = answer.status_code in attack.statuses and worst < stop and grown < GROWTH_BYTES
        return "" if fine else figures

    def unchanged(self) -> bool:
        """The same processes, the same bits."""
        answer = self.client.post("/v1/encode", json=GOLDEN).json()["data"]
        return answer == self.golden and _replicas(self.service) == self.replicas


def _replicas(service: "Service") -> set[int]:
    return {pid for pid, name in service.family().items() if name == "ServeReplica"}


def replica_ports(service: "Service") -> list[int]:
    """The ports of a service's replicas, as HAProxy has them."""
    (config,) = service.directory().glob("haproxy/*/haproxy.cfg")
    ports = re.findall(r"server SERVE_REPLICA\S* 127.0.0.1:(\d+)", config.read_text())
    return list(map(int, ports))


def _reset(pid: int) -> int:
    """Forget a process's peak; its resident bytes now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _peak(pid)


def _peak(pid: int) -> int:
    """Most bytes a process had resident since."""
    found = PEAK.search(Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.fixture
def besiege() -> Iterator[Callable[["Service"], Door]]:
    """Watch a service's replicas while it is attacked."""
    listeners: list[Listener] = []
    with httpx.Client(timeout=120) as client:

        def watch(service: "Service") -> Door:
            client.base_url = httpx.URL(service.url)
            listeners.extend(map(Listener, replica_ports(service)))
            golden = client.post("/v1/encode", json=GOLDEN).json()["data"]
            return Door(service, client, _replicas(service), listeners, golden)

        yield watch
        for listener in listeners:
            listener.end()


def test_no_attack_stops_others_or_leaves_a_trace(
    running: "Service", besiege: Callable[["Service"], Door]
) -> None:
    """One of each kind, through the ingress; the loop, the memory, the bits, the processes."""
    door = besiege(running)

    wrong = [door.attack(each) for each in every() if each.name in SHORT]

    assert len(wrong) == len(SHORT) and not any(wrong), wrong
    assert door.unchanged()


@pytest.mark.prove
def test_no_attack_of_any_kind_on_any_route_stops_others(
    start: "Start", besiege: Callable[["Service"], Door]
) -> None:
    """All of tests/attacks.py."""
    with start() as service:
        door = besiege(service)

        wrong = [said for each in every() if (said := door.attack(each))]

        assert door.unchanged()
        assert not wrong, "\n".join(wrong)
