"""`make audit` finds what is known of a lock, and says so where nothing can be asked."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
FLAWED = "jinja2"
ADVISORY = {
    "id": "PYSEC-0000-1",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "details": "A flaw.",
    "affected": [{"package": {"name": FLAWED, "ecosystem": "PyPI"}, "versions": []}],
}

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl (Debian: curl)")


class Service(BaseHTTPRequestHandler):
    """Stands where OSV would: it knows an advisory of one package."""

    asked: list[dict[str, Any]]
    flawed: str

    def do_GET(self) -> None:
        """Answer a look at whether it can be reached."""
        self.send_response(404)
        self.end_headers()

    def do_POST(self) -> None:
        """Answer about one version of a package."""
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(query)
        found = [ADVISORY] if query["package"]["name"] == self.flawed else []
        body = json.dumps({"vulns": found} if found else {}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def osv() -> Iterator[ThreadingHTTPServer]:
    """That service, as it runs."""
    Service.asked, Service.flawed = [], ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def audit(port: int) -> subprocess.CompletedProcess[str]:
    """What `make audit` says where that service is OSV."""
    command = ["make", "--silent", "--assume-old=.venv/installed", "audit"]
    command.append(f"OSV=http://127.0.0.1:{port}")
    there = {**os.environ, "PIP_AUDIT_OSV_URL": f"http://127.0.0.1:{port}/v1/query"}
    return subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True, timeout=100)


def test_where_nothing_answers_it_says_that_nothing_was_checked(unused_tcp_port: int) -> None:
    """And does not fail: a machine without a network has nothing to find."""
    done = audit(unused_tcp_port)

    line = f"audit: no package was checked, http://127.0.0.1:{unused_tcp_port} cannot be reached\n"
    assert (done.returncode, done.stdout) == (0, line)


@pytest.mark.parametrize("flawed", [FLAWED, pytest.param("", marks=pytest.mark.prove)])
def test_every_package_of_the_locks_is_asked_about_and_what_is_known_of_one_fails_it(
    osv: ThreadingHTTPServer, flawed: str
) -> None:
    """With the package and the number of the advisory; `make prove` sees one that finds nothing."""
    Service.flawed = flawed

    done = audit(osv.server_port)

    names = {query["package"]["name"] for query in Service.asked}
    assert len(names) > 150 and {"ray", "torch", "pytest", "numpy"} <= names
    assert (done.returncode == 0) == (not flawed), done.stderr
    assert not flawed or {FLAWED, ADVISORY["id"]} <= {*done.stdout.split()}
