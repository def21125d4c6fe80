"""Faults in a real service, watched by a real Prometheus with the alerts that we ship."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

if TYPE_CHECKING:
    from tests.ray.conftest import Prometheus, Service, Start, Watching

pytestmark = [pytest.mark.ray, pytest.mark.prove]

FOR_SECONDS, LOOK_BACK = 10, "30s"  # where the rules have minutes
FIRE_SECONDS, RESOLVE_SECONDS = 75, 75
PAUSE_SECONDS = 0.2
GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}
LONG = {"inputs": [{"token_ids": [2035] * 250}]}
FLAGS = "--device cpu --threads 1 --batch-tokens 256".split()


def hasten(folder: Path) -> None:
    """Let every rule look each second, wait less and forget sooner.

    What it asks stays, and so does the scrape interval of the service: a replica that is wrong
    is replaced within seconds, and must have been scraped before.
    """
    file = folder / "prometheus.yml"
    settings = yaml.safe_load(file.read_text())
    settings["global"]["evaluation_interval"] = "1s"
    file.write_text(yaml.safe_dump(settings))
    for rules in (folder / "rules").iterdir():
        written = yaml.safe_load(rules.read_text())
        for rule in (rule for group in written["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = f"{FOR_SECONDS}s"
            rule["expr"] = rule["expr"].replace("[15m]", f"[{LOOK_BACK}]")
        rules.write_text(yaml.safe_dump(written))


@dataclass
class Drill:
    """A service whose faults are switched, and who watches it."""

    service: "Service"
    prometheus: "Prometheus"
    file: Path
    golden: Any

    def switch(self, fault: str) -> None:
        """Turn a fault on; all off where it is empty. Whoever looks sees either, whole."""
        new = self.file.with_suffix(".new")
        new.write_text(fault)
        new.replace(self.file)

    def well(self) -> bool:
        """Whether it is ready and answers as at the start, bit for bit."""
        with httpx.Client(base_url=self.service.url, timeout=5) as client:
            try:
                ready = client.get("/ready").status_code == 200
                answer = client.post("/v1/encode", json=GOLDEN)
            except httpx.TransportError:
                return False
        return ready and answer.is_success and answer.json()["data"] == self.golden


@pytest.fixture(scope="module")
def drill(
    start: "Start", watching: "Watching", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drill]:
    """One replica, well, and no alert."""
    file = tmp_path_factory.mktemp("faults") / "fault"
    program = ("tests.faults", str(file))
    with start(*FLAGS, program=program) as service, watching(service, hasten) as prometheus:
        golden = httpx.post(f"{service.url}/v1/encode", json=GOLDEN).json()["data"]
        drill = Drill(service, prometheus, file, golden)
        time.sleep(2)  # Prometheus's own start
        until(lambda: prometheus.ask("headlight_ready") != [], 20)
        yield drill
        drill.switch("")


def until(true: Callable[[], bool], seconds: float) -> float:
    """Wait for something to become true; how long that took."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < seconds
        time.sleep(PAUSE_SECONDS)
    return time.monotonic() - begun


@contextmanager
def client(service: "Service") -> Iterator[None]:
    """Ask over and over, whatever comes back."""
    leave = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=5) as http:
            while not leave.wait(PAUSE_SECONDS):
                with suppress(httpx.TransportError):
                    http.post("/v1/encode", json=LONG)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        leave.set()
        asking.join()


@pytest.mark.parametrize(
    ("fault", "alert"),
    [
        ("nan", "HeadlightNonFiniteOutput"),
        ("flip", "HeadlightCanaryWrong"),
        ("hang", "HeadlightNotReady"),
    ],
)
def test_the_alert_fires_while_the_fault_is_on_and_resolves_once_it_is_off(
    drill: Drill, fault: str, alert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service then is ready and answers with the bits of before."""
    until(lambda: drill.well() and alert not in drill.prometheus.firing(), RESOLVE_SECONDS)

    drill.switch(fault)
    with client(drill.service):
        fired = until(lambda: alert in drill.prometheus.firing(), FIRE_SECONDS)
        others = drill.prometheus.firing() - {alert}
        drill.switch("")
        off = time.monotonic()
    until(drill.well, RESOLVE_SECONDS)
    well = time.monotonic() - off
    until(lambda: alert not in drill.prometheus.firing(), RESOLVE_SECONDS)
    resolved = time.monotonic() - off

    with capsys.disabled():
        print(
            f"\n{fault}: {alert} fired after {fired:.1f} s, resolved {resolved:.1f} s after "
            f"its end, the service well after {well:.1f} s; also fired: {sorted(others)}"
        )
    assert drill.well()
