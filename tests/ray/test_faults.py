"""A replica that knows itself wrong, under clients that know exactly what they sent."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

CLIENTS = 16


def test_a_replica_that_knows_itself_wrong_answers_nothing_more(
    start: "Start", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two, the other answers; none is lost, the wrong one leaves, and another comes."""
    file = tmp_path / "fault"
    flags = ("--replicas", "2", "--device", "cpu")
    with start(*flags, program=("tests.faults", str(file))) as service:
        before = {pid for pid, name in service.family().items() if name == "ServeReplica"}
        seen: dict[str, float] = {}

        def break_one() -> None:
            time.sleep(2)
            new = file.with_suffix(".new")
            new.write_text("sticky")
            new.replace(file)
            broke = time.monotonic()
            drill.wait(lambda: not before <= set(service.family()), "one leaves")
            seen["gone"] = time.monotonic() - broke
            drill.wait(lambda: _replicas(service) == 2, "two serve")
            seen["two again"] = time.monotonic() - broke
            time.sleep(3)

        journal = drill.during(break_one, service.port, kept=CLIENTS)
        with capsys.disabled():
            print(f"\nsticky: {journal.codes}, {len(journal.data)} answers, {journal.refusals},")
            print(f"lost {journal.lost}, replicas {journal.replicas}, seconds {seen}")

        assert journal.lost == [] and set(journal.codes) <= {200, 503}
        assert len(journal.data) == 1


def _replicas(service: "Service") -> int:
    family = service.family().values()
    return sum(name == "ServeReplica" for name in family)
