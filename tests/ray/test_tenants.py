"""What one key feels of another: of its flood, and of its being there."""

import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.edge.gate import LATELY_SECONDS
from tests.ray.tenants import ask, flooded, speed

if TYPE_CHECKING:
    from tests.ray.conftest import Start

pytestmark = pytest.mark.ray

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
CONNECTIONS = 600
BUSY, QUIET_SECONDS = 16, 3.0
FORGOTTEN_SECONDS = LATELY_SECONDS + 1


def busy(start: "Start", file: Path, rounds: int, seconds: float) -> float:
    """What a busy key keeps of its speed beside one that asks every few seconds.

    In turns, since other work on the machine comes and goes; alone, the other is forgotten.
    """
    file.write_text(f"a:{A}\nb:{B}\n")
    kept, taken, codes = list[float](), list[float](), Counter[int]()

    def beside() -> None:
        asked = ask(service, B, seconds, QUIET_SECONDS)
        taken.extend(asked[0])
        codes.update(asked[1])

    with start("--api-keys-file", str(file)) as service:
        with flooded(service, A, BUSY, begun="200"):
            for _ in range(rounds):
                time.sleep(FORGOTTEN_SECONDS)
                alone = speed(service, "a", B, lambda: time.sleep(seconds))
                kept.append(speed(service, "a", B, beside) / alone)
                print(f"{alone:.0f} a second alone, beside the other {kept[-1]:.2f} of that")
    figures = f"kept {sorted(kept)}; the other's {codes}, median {statistics.median(taken)} ms"
    print(figures)
    assert codes.keys() == {200}
    return statistics.median(kept)


@pytest.mark.prove
def test_a_busy_key_keeps_its_speed_beside_a_quiet_one(start: "Start", tmp_path: Path) -> None:
    """Sixteen connections, beside a request every three seconds; test_turns.py simulates it."""
    assert busy(start, tmp_path / "keys", rounds=6, seconds=9) >= 0.9


@pytest.mark.prove
def test_a_key_that_floods_delays_no_other_much_and_has_none_refused(
    start: "Start", tmp_path: Path
) -> None:
    """Six hundred connections beside ten requests a second, in one run with the idle service."""
    file = tmp_path / "keys"
    file.write_text(f"a:{A}\nb:{B}\n")
    with start("--api-keys-file", str(file)) as service:
        ask(service, B, 5)
        idle, _ = ask(service, B, 30)
        with flooded(service, A, CONNECTIONS) as theirs:
            beside, codes = ask(service, B, 60)
        after, _ = ask(service, B, 30)

    figures = {
        name: (statistics.median(taken), statistics.quantiles(taken, n=100)[98])
        for name, taken in (("idle", idle), ("flooded", beside), ("after", after))
    }
    print(f"median, p99 in ms: {figures}; B {dict(codes)}, A {dict(theirs)}")
    assert codes.keys() == {200}
    assert figures["flooded"][1] <= 3 * figures["idle"][1], figures
