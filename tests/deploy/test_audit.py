"""The audit asks about every package, and never calls unasked what it could not ask."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LOCK = ROOT / "deploy" / "torch.lock"
FOUND = {
    "id": "PYSEC-2026-1",
    "summary": "Reads what it should not.",
    "affected": [{"package": {"name": "torch", "ecosystem": "PyPI"}, "ranges": []}],
}


@contextmanager
def advisories(vulnerable: str | None, status: int = 200) -> Iterator[tuple[str, set[str]]]:
    """A service that knows a vulnerability of one package: its address, and who was asked for."""
    names: set[str] = set()

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = question["package"]["name"]
            names.add(name)
            answer = {"vulns": [FOUND]} if name == vulnerable else {}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *words: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/query", names
        finally:
            server.shutdown()
            thread.join()


def audit(service: str) -> "subprocess.CompletedProcess[str]":
    """What `make audit` does, of one lock."""
    command = [sys.executable, ROOT / "deploy" / "audit.py", "--service", service, LOCK]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_known_vulnerability_fails_the_audit() -> None:
    """By its number, and with the package that has it."""
    with advisories("torch") as (service, _):
        done = audit(service)

    assert done.returncode == 1
    assert "PYSEC-2026-1" in done.stdout and "torch" in done.stdout


def test_the_audit_asks_about_every_package_of_a_lock() -> None:
    """Where nothing is known of any, it passes."""
    locked = {line.partition("==")[0] for line in LOCK.read_text().splitlines() if "==" in line}

    with advisories(None) as (service, names):
        done = audit(service)

    assert done.returncode == 0, done.stderr
    assert names == locked | {"pip"}  # which asks whether anybody is there


def test_a_service_that_cannot_be_asked_is_told_in_one_line() -> None:
    """No answer, or somebody else's: nothing was checked, which is neither a pass nor a fault."""
    with advisories(None, status=403) as (service, _):
        refused = audit(service)
    gone = audit(service)

    for done in (refused, gone):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1 and "no package was checked" in done.stdout
