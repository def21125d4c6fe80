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
    from tests.ray.conftest import Service, Start

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
    """Send a request of the largest size, and of half as many until it is answered.

    Print each status and the least of the longest waits of up to TRIES: a stop of the loop's own
    making comes again, one of the machine's does not. Return the last status and the worst wait.
    """
    count, worst = each.most, 0.0
    while True:
        body, headers = each.content(count)
        waits = list[float]()
        while not waits or waits[-1] >= WAIT_SECONDS and len(waits) < TRIES:
            listener.worst()
            answer = client.request(each.method, each.target, content=body, headers=headers)
            waits.append(listener.worst())
        worst = max(worst, min(waits))
        print(
            f"{min(waits) * 1000:6.0f} ms  {answer.status_code}  {count:6}  {each.name}", flush=True
        )
        if answer.is_success or count < 2:
            return answer.status_code, worst
        count //= 2


@pytest.mark.parametrize("model", MODELS)
def test_no_largest_request_makes_others_wait(start: "Start", model: str, tmp_path: Path) -> None:
    """Of any route and form that this model answers, and each is answered at some size."""
    keys = tmp_path / "keys"
    keys.write_text(f"me:{KEY} metrics\n")
    flags = ["--api-keys-file", str(keys), "--served-model-name", MODEL]
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
    refused = [name for name, (status, _) in measured.items() if status >= 400]
    assert not refused, refused
