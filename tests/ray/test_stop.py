"""How services end: last of all by this file's name, since others are tested on these two."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service

pytestmark = pytest.mark.ray

CLIENTS = 16
PAUSE_SECONDS = 0.2  # of each
LONG = " ".join(["word"] * 250)  # a sequence of the bundled model's full length
ENDED = '"event": "replica ended"'

Traceless = Callable[[set[int], int, Path], None]


def test_nothing_survives_a_sigkill_of_the_command(
    keyed: "Service", running: "Service", traceless: Traceless
) -> None:
    """No process, port or directory of it; the service beside it does not notice."""
    pids, directory = set(keyed.family()), keyed.directory()

    keyed.end(signal.SIGKILL)

    traceless(pids, keyed.port, directory)
    assert running.encode("All is well").status_code == 200


def test_a_service_that_is_told_to_stop_answers_what_it_admitted_and_leaves_no_trace(
    running: "Service", traceless: Traceless
) -> None:
    """SIGTERM: a client that comes is told 503 or not let in. Then only what it logged is left."""
    pids, directory = set(running.family()), running.directory()
    ended = running.errors.read_text().count(ENDED)  # where tests killed one
    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(running.encode(*[LONG] * 24).status_code)
    )

    def stop() -> None:
        drill.wait(lambda: drill.under_way(running) > 1, "the long request and others")
        assert running.end(signal.SIGTERM) == 0

    asking.start()
    drill.wait(lambda: drill.under_way(running) == 1, "the long request")
    half = CLIENTS // 2
    journal = drill.during(stop, running.port, kept=half, fresh=half, pause=PAUSE_SECONDS)
    asking.join()

    assert answers == [200]
    drill.hold(journal)
    traceless(pids, running.port, directory)
    assert running.errors.read_text().count(ENDED) == ended
    (kept,) = (running.errors.parent / "state" / "headlight" / "logs").glob("*/*")
    assert kept.name == directory.name
    written = "".join(path.read_text() for path in kept.glob("worker-*.out"))
    assert '"event": "request"' in written
