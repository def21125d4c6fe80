"""A service that asks for keys, started as a user starts it, until a SIGKILL."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray.drill import total
from tests.ray.tenants import ask, flooded

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

KEY, OTHER = "canary-Key_123456789", "the-key-of-another-1"
ASKED = {"inputs": ["All is well"]}


@pytest.fixture(scope="module")
def keyed(
    start: "Start", left: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Service"]:
    """A service with two keys and a small limit, on a port that was just left."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"me:{KEY}\nother:{OTHER}\n")
    flags = ("--api-keys-file", str(file), "--max-body-bytes", "1000", "--public-metrics", "true")
    with start(*flags, port=left) as service:
        yield service


def test_a_key_lets_in_and_no_process_shows_it(keyed: "Service") -> None:
    """Not in a command line, an environment or a log; flags reach the outermost layer too."""
    bearer = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=keyed.url) as client:
        ready = client.get("/ready")
        refused = client.post("/v1/encode", json=ASKED)
        admitted = client.post("/v1/encode", json=ASKED, headers=bearer)
        large = client.post("/v1/encode", content=b" " * 1001, headers=bearer)
        unknown = client.post("/v1/encode", content=b" " * 1001)
    shown = [
        (pid, what)
        for pid in keyed.family()
        for what in ("cmdline", "environ")
        if KEY.encode() in Path(f"/proc/{pid}/{what}").read_bytes()
    ]
    logs = [path for path in keyed.directory().rglob("*") if path.is_file()]
    logged = [path for path in logs if KEY.encode() in path.read_bytes()]

    assert [ready.status_code, refused.status_code, admitted.status_code] == [200, 401, 200]
    assert [large.status_code, unknown.status_code] == [413, 401]
    assert shown == [] and logged == [] and logs


def test_a_key_that_floods_has_no_other_refused(keyed: "Service") -> None:
    """Its own requests are, and each key's are counted as its own."""
    with flooded(keyed, OTHER, 600):
        _, codes = ask(keyed, KEY, 2)

    assert codes.keys() == {200}
    assert total(keyed, "headlight_shed_total", key="other") > 0
    assert total(keyed, "headlight_shed_total", key="me") == 0


def test_at_last_nothing_survives_a_sigkill_of_the_command(
    keyed: "Service", running: "Service", traceless: Callable[[set[int], int, Path], None]
) -> None:
    """No process, port or directory of it; the service beside it does not notice."""
    pids, directory = set(keyed.family()), keyed.directory()

    keyed.end(signal.SIGKILL)

    traceless(pids, keyed.port, directory)
    assert running.encode("All is well").status_code == 200
