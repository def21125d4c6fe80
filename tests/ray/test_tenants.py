"""One key's flood, and what another key feels of it."""

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray import tenants

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
CONNECTIONS, SECONDS, EVERY_SECONDS = 600, 60.0, 0.1
ASKED = {"inputs": ["All is well"]}


@contextmanager
def flooded(service: "Service", connections: int) -> Iterator[Counter[str]]:
    """A flood with key A, under way; what it was answered is known at its end."""
    command = [sys.executable, tenants.__file__, str(service.port), A, str(connections)]
    codes: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # a hundred answers
        yield codes
        process.kill()
        codes.update(json.loads(process.stdout.read().splitlines()[-1]))


def ask(service: "Service", seconds: float) -> tuple[list[float], Counter[int]]:
    """Ask ten times a second with key B; milliseconds of each, and the statuses."""
    taken, codes = list[float](), Counter[int]()
    bearer = {"authorization": f"Bearer {B}"}
    until = time.monotonic() + seconds
    with httpx.Client(base_url=service.url, headers=bearer, timeout=60) as client:
        while (begun := time.monotonic()) < until:
            codes[client.post("/v1/encode", json=ASKED).status_code] += 1
            taken.append((time.monotonic() - begun) * 1000)
            time.sleep(max(0.0, begun + EVERY_SECONDS - time.monotonic()))
    return taken, codes


@pytest.mark.prove
def test_a_key_that_floods_delays_no_other_much_and_has_none_refused(
    start: "Start", tmp_path: Path
) -> None:
    """Six hundred connections beside ten requests a second, in one run with the idle service."""
    file = tmp_path / "keys"
    file.write_text(f"a:{A}\nb:{B}\n")
    with start("--api-keys-file", str(file)) as service:
        ask(service, 5)
        idle, _ = ask(service, SECONDS / 2)
        with flooded(service, CONNECTIONS) as theirs:
            beside, codes = ask(service, SECONDS)
        quiet, _ = ask(service, SECONDS / 2)

    p99 = {
        name: statistics.quantiles(taken, n=100)[98]
        for name, taken in (("idle", idle), ("flooded", beside), ("after", quiet))
    }
    print(
        f"p99 {p99} ms, median {statistics.median(idle):.1f} and "
        f"{statistics.median(beside):.1f} ms, B {dict(codes)}, A {dict(theirs)}"
    )
    assert theirs["429"] > 0 and codes.keys() == {200}
    assert p99["flooded"] <= 3 * p99["idle"], p99
