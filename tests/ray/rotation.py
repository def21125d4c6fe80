"""Clients with keys that come and go, and what they may see of it."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx

from service.tables.keyring import STALE_SECONDS
from tests.ray.drill import wait

if TYPE_CHECKING:
    from tests.ray.conftest import Service

PAUSE_SECONDS = 0.05
KEY, OTHER = "canary-Key_123456789", "the-key-of-another-1"


class Seen(NamedTuple):
    """What one request saw, in seconds of one clock."""

    key: str
    sent: float
    ended: float
    status: int
    right: bool


@dataclass
class Keys:
    """A file of keys as Kubernetes keeps one, and since when which key was in it.

    Args:
        folder: keys -> ..data/keys, and ..data -> the folder of one version.
    """

    folder: Path
    lines: dict[str, str] = field(default_factory=dict)
    came: dict[str, float] = field(default_factory=dict)
    went: dict[str, float] = field(default_factory=dict)
    version: int = 0

    @property
    def file(self) -> Path:
        """What a service is told of."""
        return self.folder / "keys"

    def write(self, lines: Mapping[str, str], also: str = "") -> None:
        """Put other keys in the place of all, each with what stands before and after it.

        Args:
            lines: of each key `name:{} limits`.
            also: what else the file holds, which may make it wrong.
        """
        self.version += 1
        version = self.folder / f"..{self.version}"
        version.mkdir()
        text = "".join(f"{line.format(key)}\n" for key, line in lines.items())
        (version / "keys").write_text(text + also)
        new = self.folder / "..new"
        new.symlink_to(version.name)
        new.replace(self.folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/keys")
        if also:
            return
        now = time.monotonic()
        self.came |= {key: now for key in lines.keys() - self.lines.keys()}
        self.went |= {key: now for key in self.lines.keys() - lines.keys()}
        self.lines = dict(lines)

    def wrong(self, seen: Seen) -> str | None:
        """What a request must not have seen."""
        known = self.came.get(seen.key, seen.ended) + STALE_SECONDS <= seen.sent
        stays = self.went.get(seen.key, seen.ended) >= seen.ended
        gone = self.went.get(seen.key, seen.ended) + STALE_SECONDS <= seen.sent
        if seen.status == 401 and known and stays:
            return "a key that lets in was refused"
        if seen.status == 200 and gone:
            return "a key that is gone let in"
        if seen.status == 200 and not seen.right:
            return "the answer is another's"
        return None if seen.status in (200, 401) else f"{seen.status}"


@contextmanager
def asked(
    service: "Service", texts: Mapping[str, str], answers: Mapping[str, object]
) -> Iterator[list[Seen]]:
    """Have a client of each key ask for its own text, again and again; what they saw.

    Args:
        texts: by key; asked for while the block runs, the keys that are added too.
        answers: the data of each text.
    """
    over, seen, clients = threading.Event(), list[Seen](), list[threading.Thread]()

    def client(key: str, text: str) -> None:
        bearer = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=service.url, headers=bearer, timeout=60) as http:
            while not over.is_set():
                sent = time.monotonic()
                try:
                    answer = http.post("/v1/encode", json=body(text))
                    right = answer.status_code == 200 and answer.json()["data"] == answers[text]
                    status = answer.status_code
                except httpx.TransportError:
                    status, right = 0, False
                seen.append(Seen(key, sent, time.monotonic(), status, right))
                over.wait(PAUSE_SECONDS)

    for key, text in texts.items():
        clients.append(threading.Thread(target=client, args=(key, text), daemon=True))
        clients[-1].start()
    try:
        yield seen
    finally:
        over.set()
        for each in clients:
            each.join()


def body(text: str) -> dict[str, object]:
    """A request for a text, exactly."""
    return {"inputs": [text], "encoding": "base64"}


def answered(service: "Service", key: str, text: str) -> object:
    """What a text's data are."""
    bearer = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{service.url}/v1/encode", json=body(text), headers=bearer, timeout=60)
    return answer.raise_for_status().json()["data"]


def turned(seen: list[Seen], key: str, status: int) -> Callable[[], bool]:
    """Whether a key's last twenty requests, after as many replicas, all ended so."""

    def so() -> bool:
        of_key = [each.status for each in list(seen) if each.key == key][-20:]
        return len(of_key) == 20 and set(of_key) == {status}

    return so


def turn(keys: Keys, seen: list[Seen], lines: Mapping[str, str], key: str, status: int) -> float:
    """Write other keys; seconds until a key's requests all end so."""
    keys.write(lines)
    began = time.monotonic()
    wait(turned(seen, key, status), f"{status} for a key that came or went", STALE_SECONDS + 10)
    last = [each for each in list(seen) if each.key == key and each.status != status]
    return max([each.sent - began for each in last if each.sent > began], default=0.0)


def verdict(keys: Keys, seen: list[Seen]) -> Counter[str]:
    """What of all was wrong, and how often."""
    return Counter(filter(None, map(keys.wrong, seen)))
