"""What one key feels of another, and a small request of large ones of its own key.

On a machine with nothing else to do; tests/service/test_sharing.py has the same with a clock of
its own.
"""

import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray.tenants import LARGE, ask, flooded, speed

if TYPE_CHECKING:
    from tests.ray.conftest import Start

pytestmark = pytest.mark.ray

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
CONNECTIONS = 600
BUSY, QUIET_SECONDS = 16, 3.0
LARGE_CONNECTIONS, MOST_LATER_MS = 6, 150.0


def busy(start: "Start", file: Path, rounds: int, seconds: float) -> float:
    """What a busy key keeps of its speed beside one that asks every few seconds.

    In turns, since other work on the machine comes and goes.
    """
    file.write_text(f"a:{A} metrics\nb:{B} metrics\n")
    kept, taken, codes = list[float](), list[float](), Counter[int]()

    def beside() -> None:
        asked = ask(service, B, seconds, QUIET_SECONDS)
        taken.extend(asked[0])
        codes.update(asked[1])

    with start("--api-keys-file", str(file)) as service:
        with flooded(service, A, BUSY, begun="200"):
            for _ in range(rounds):
                alone = speed(service, "a", B, lambda: time.sleep(seconds))
                kept.append(speed(service, "a", B, beside) / alone)
                print(f"{alone:.0f} a second alone, beside the other {kept[-1]:.2f} of that")
    figures = f"kept {sorted(kept)}; the other's {codes}, median {statistics.median(taken)} ms"
    print(figures)
    assert codes.keys() == {200}
    return statistics.median(kept)


@pytest.mark.prove
def test_a_busy_key_keeps_its_speed_beside_a_quiet_one(start: "Start", tmp_path: Path) -> None:
    """Sixteen connections, beside a request every three seconds."""
    assert busy(start, tmp_path / "keys", rounds=6, seconds=9) >= 0.9


@pytest.mark.prove
def test_a_key_that_floods_delays_no_other_much_and_has_none_refused(
    start: "Start", tmp_path: Path
) -> None:
    """Six hundred connections beside ten requests a second, in one run with the idle service."""
    file = tmp_path / "keys"
    file.write_text(f"a:{A} metrics\nb:{B} metrics\n")
    with start("--api-keys-file", str(file)) as service:
        ask(service, B, 5)
        idle, _ = ask(service, B, 30)
        with flooded(service, A, CONNECTIONS) as theirs:
            beside, codes = ask(service, B, 60)
        after, _ = ask(service, B, 30)

    figures = told(idle=idle, flooded=beside, after=after)
    print(f"median, p99 in ms: {figures}; B {dict(codes)}, A {dict(theirs)}")
    assert codes.keys() == {200}
    assert figures["flooded"][1] <= 4 * figures["idle"][1], figures


def told(**taken: list[float]) -> dict[str, tuple[float, float]]:
    """The median and the 99th percentile of each."""
    return {
        name: (statistics.median(some), statistics.quantiles(some, n=100)[98])
        for name, some in taken.items()
    }


@pytest.mark.prove
@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "of one key"])
def test_a_small_request_passes_large_ones_and_a_large_one_small_ones(
    start: "Start", tmp_path: Path, keyed: bool
) -> None:
    """Six connections that always have seconds of work under way; then one, beside a crowd."""
    file = tmp_path / "keys"
    file.write_text(f"a:{A} metrics\nb:{B} metrics\n")
    flags = ("--api-keys-file", str(file)) if keyed else ()
    with start(*flags) as service:
        ask(service, A, 5)
        idle, _ = ask(service, A, 30)
        with flooded(service, A, LARGE_CONNECTIONS, begun="200", size="large") as theirs:
            beside, codes = ask(service, A, 60)
        with flooded(service, A, 64, begun="200"):
            begun = time.monotonic()
            bearer = {"authorization": f"Bearer {A}"}
            url = f"{service.url}/v1/encode"
            large = httpx.post(url, json=LARGE, headers=bearer, timeout=60)
            seconds = time.monotonic() - begun

    figures = told(idle=idle, flooded=beside)
    print(f"median, p99 in ms: {figures}; {dict(codes)}, large ones {dict(theirs)}")
    print(f"a large one beside 64 connections: {large.status_code} after {seconds:.1f} s")
    assert codes.keys() == {200} and theirs["200"] >= LARGE_CONNECTIONS
    assert large.status_code == 200
    assert figures["flooded"][1] <= figures["idle"][1] + MOST_LATER_MS, figures
