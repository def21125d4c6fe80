"""The audit asks about every package, and passes only on right answers."""

import json
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).parent.parent.parent
LOCK = ROOT / "deploy" / "torch.lock"
KNOWN = "jinja2"  # the service is asked for it first
FOUND = {"id": "PYSEC-2026-1", "summary": "Reads what it should not."}
WITHDRAWN = {**FOUND, "withdrawn": "2026-01-01T00:00:00Z"}

Answers = Callable[[str], tuple[int, object]]


def says(of_torch: object, of_known: object = {"vulns": [FOUND]}, status: int = 200) -> Answers:
    """A service's answers: about torch, about the package asked for first, {} about all others."""

    def answer(name: str) -> tuple[int, object]:
        if name == KNOWN:
            return 200, of_known
        return (status, of_torch) if name == "torch" else (200, {})

    return answer


@contextmanager
def advisories(answers: Answers) -> Iterator[tuple[str, set[str]]]:
    """An advisory service: its address, and the names that it was asked for."""
    names: set[str] = set()

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = question["package"]["name"]
            names.add(name)
            status, answer = answers(name)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, format: str, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/query", names
        finally:
            server.shutdown()
            thread.join()


MAIN = runpy.run_path(str(ROOT / "deploy" / "audit.py"))["main"]


def audit(service: str, lock: Path = LOCK) -> Result:
    """What `make audit` does, of one lock."""
    return CliRunner().invoke(MAIN, ["--service", service, str(lock)])


@pytest.mark.parametrize("text", ["", "# nothing\n", " torch==2.13.0\n", "torch @ https://x/y\n"])
def test_a_lock_that_is_not_understood_fails_the_audit(text: str, tmp_path: Path) -> None:
    """A package that is not asked about would pass."""
    lock = tmp_path / "odd.lock"
    lock.write_text(text)

    with advisories(says({})) as (service, names):
        result = audit(service, lock)

    assert result.exit_code == 1 and not names


def test_a_known_vulnerability_fails_the_audit() -> None:
    """By its number, and with the package that has it."""
    with advisories(says({"vulns": [WITHDRAWN, FOUND]})) as (service, _):
        done = audit(service)

    assert done.exit_code == 1
    assert "torch 2.13.0: PYSEC-2026-1\n" in done.stdout


def test_the_audit_asks_about_every_package_of_a_lock() -> None:
    """Where nothing is known of any but what was withdrawn, it passes."""
    locked = {line.partition("==")[0] for line in LOCK.read_text().splitlines() if "==" in line}

    with advisories(says({"vulns": [WITHDRAWN]})) as (service, names):
        done = audit(service)

    assert done.exit_code == 0, done.output
    assert names == locked | {KNOWN}
    assert f"{len(locked)} packages checked, 0 with" in done.stdout


WRONG: dict[str, Answers] = {
    "refused": lambda _: (403, {}),
    "broken": lambda _: (500, {}),
    "a page": lambda _: (200, b"<html>Please sign in</html>"),
    "a number": lambda _: (200, 0),
    "a list": says([]),
    "no advisories of what has some": lambda _: (200, {}),
    "another form": says({"vulns": ["PYSEC-2026-1"]}),
    "without a number": says({"vulns": [{"summary": "?"}]}),
    "an error": says({"code": 5, "message": "busy"}),
    "half of the advisories": says({"vulns": [], "next_page_token": "2"}),
    "refused later": says({}, status=429),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_service_that_answers_wrongly_fails_the_audit(wrong: str) -> None:
    """In one line: what it says of the other packages may be wrong too."""
    with advisories(WRONG[wrong]) as (service, _):
        done = audit(service)

    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {service} did not answer as it should: ")
    assert done.stderr.count("\n") == 1


def test_a_service_that_cannot_prove_who_it_is_fails_the_audit() -> None:
    """It was asked by TLS, and something else answered."""
    with advisories(says({})) as (service, _):
        done = audit(service.replace("http:", "https:"))

    assert done.exit_code == 1 and "did not answer as it should: [SSL" in done.stderr


def test_a_service_that_cannot_be_reached_is_told_in_one_line() -> None:
    """Nothing was checked, which is neither a pass nor a fault."""
    with advisories(says({})) as (service, _):
        pass

    done = audit(service)

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1 and "no package was checked" in done.stdout
