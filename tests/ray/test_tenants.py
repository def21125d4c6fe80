"""One key's flood, and what another key feels of it."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ray.tenants import ask, flooded

if TYPE_CHECKING:
    from tests.ray.conftest import Start

pytestmark = pytest.mark.ray

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
CONNECTIONS = 600


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
