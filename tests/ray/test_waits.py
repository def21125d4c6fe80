"""What the largest request of every route costs others: how long GET /live waits meanwhile.

Asked in a process of its own, of a replica that answers nothing else, and of another connection:
the wait is what the request holds the event loop. The table is printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.largest import MODEL, Largest, every, write_model
from tests.ray.rotation import KEY
from tests.ray.test_door import TRIES, Listener, replica_ports

if TYPE_CHECKING:
    from tests.ray.conftest import Keys, Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

WAIT_SECONDS = 0.06  # on an idle machine
LARGEST = every()
MODELS = list(dict.fromkeys(each.model for each in LARGEST))


@contextmanager
def listening(service: "Service") -> Iterator[Listener]:
    """Listen to the one replica of a service."""
    (port,) = replica_ports(service)
    listener = Listener(port)
    try:
        yield listener
    finally:
        listener.end()


def measure(client: httpx.Client, listener: Listener, each: Largest) -> tuple[int, float]:
    """Send a request up to TRIES times; print its status and the least of the longest waits.

    A stop of the loop's own making comes again, one of the machine's does not.
    """
    body, headers = each.content()
    waits = list[float]()
    while not waits or waits[-1] >= WAIT_SECONDS and len(waits) < TRIES:
        listener.worst()
        answer = client.request(each.method, each.target, content=body, headers=headers)
        waits.append(listener.worst())
    print(f"{min(waits) * 1000:6.0f} ms  {answer.status_code}  {each.name}", flush=True)
    return answer.status_code, min(waits)


@pytest.mark.parametrize("model", MODELS)
def test_no_largest_request_makes_others_wait(
    start: "Start", keys: "Keys", model: str, tmp_path: Path
) -> None:
    """Of any route and form that this model answers."""
    flags = ["--api-keys-file", str(keys.file), "--served-model-name", MODEL]
    if model != "bundled":
        flags += ["--model", str(write_model(model, tmp_path / "model"))]
    with start(*flags) as service, listening(service) as listener:
        sent = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=service.url, headers=sent, timeout=120) as client:
            measured = {
                each.name: measure(client, listener, each)
                for each in LARGEST
                if each.model == model
            }

    late = [name for name, (status, wait) in measured.items() if wait >= WAIT_SECONDS]
    assert not late, late
    assert all(status < 500 for status, _ in measured.values()), measured
