"""`headlight serve`: start, stop, what it says, what it leaves."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from safetensors.torch import load_file, save_file

from service.files import weights
from service.observe import logs
from tests.ray import drill
from tests.ray.conftest import TRAPS, free_port, serve

if TYPE_CHECKING:
    from tests.ray.conftest import Service

pytestmark = pytest.mark.ray

DOCS = Path(__file__).parent.parent.parent / "docs"
OPERATIONS = DOCS / "operations.md"
RAYS_MARKS = (":job_id:", ":actor_name:")  # how Ray's own log monitor knows a file
CLIENTS = 16
STOP_SECONDS = 15
LONG = " ".join(["word"] * 250)  # a sequence of the bundled model's full length

Refused = Callable[..., tuple[int, str]]
Traceless = Callable[[set[int], int, Path], None]


def test_it_says_where_it_serves_and_nothing_else(running: "Service") -> None:
    """Progress and one line with the address; none of Ray's or HAProxy's own noise."""
    assert running.greeting == (
        f"Headlight serves all-MiniLM-L6-v2 on {running.url} (2 replicas)\n"
    )
    said = running.errors.read_text().splitlines()
    theirs = '"replica ended"', '"ids without this model'  # of other tests, which want them
    own = [line for line in said if not any(each in line for each in theirs)]
    place, *progress = [line for line in own if not line.startswith(("waiting ", "bfloat16: "))]
    assert progress == ["starting Ray", "loading all-MiniLM-L6-v2"]
    assert re.fullmatch(r"logs: /tmp/headlight-\w+/ray/.*; after the service stops: in /.*", place)
    assert running.encode("All is well").status_code == 200


def test_no_process_of_ray_takes_a_module_from_the_current_folder(running: "Service") -> None:
    """Not the controller or a replica either, whose path Ray would begin with that folder."""
    here = Path(f"/proc/{running.process.pid}/cwd")

    assert set(TRAPS) <= {path.name for path in here.iterdir()}
    assert running.encode("All is well").status_code == 200


def test_one_page_shows_the_metrics_of_every_replica(running: "Service") -> None:
    """Whichever replica is asked, both are there, each family once."""
    for _ in range(4):
        page = running.metrics()

        ready = re.findall(r'^headlight_ready\{.*replica="(.+?)".*\} 1', page, re.MULTILINE)
        assert len(set(ready)) == 2
        assert page.count("# TYPE headlight_ready ") == 1
        assert "\nheadlight_scrape_incomplete 0\n" in page
        assert "\nheadlight_replicas_expected 2\n" in page


def test_what_a_replica_prints_is_one_json_object_a_line(running: "Service") -> None:
    """Ray marks the first lines of each file as its own; all others are ours, by their schema."""
    schema = json.loads(Path(logs.__file__).with_name("log.schema.json").read_text())
    valid = jsonschema.Draft202012Validator(schema)
    answer = running.encode("All is well")
    written: dict[str, dict[str, Any]] = {}
    running.metrics()  # every replica tells of its requests first

    for path in (running.directory() / "ray").glob("session_2*/logs/worker-*.out"):
        lines = path.read_text().splitlines()
        if ":actor_name:ServeReplica:headlight:Encoder" in lines:
            for line in lines:
                if not line.startswith(RAYS_MARKS):
                    told = json.loads(line)
                    valid.validate(told)
                    written[told.get("request_id", "")] = told

    told = written[answer.headers["x-request-id"]]
    assert (told["event"], told["code"]) == ("request", 200)
    assert told["replica"] == answer.headers["x-headlight-replica"]


def test_its_processes_are_those_that_the_docs_list(running: "Service") -> None:
    """docs/operations.md names each with its cost; Ray's that nothing here uses are not started."""
    rows = set(re.findall(r"^\| `(\w+)` \|", OPERATIONS.read_text(), re.M))

    drill.wait(lambda: set(running.family().values()) <= rows, f"no process but {rows}")
    assert set(running.family().values()) == rows


def test_haproxy_runs_on_our_configuration(running: "Service") -> None:
    """The wrapper ran: the file HAProxy was given, and the permissions of its socket."""
    directory = running.directory()
    (config,) = directory.glob("haproxy/*/headlight.cfg")
    (admin,) = directory.glob("haproxy/*/admin")

    words = {
        str(config).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for pid, name in running.family().items()
        if name == "haproxy"
    }
    assert words == {True}
    assert admin.stat().st_mode & 0o077 == 0
    assert directory.stat().st_mode & 0o077 == 0


def test_a_taken_port_is_refused_in_one_line(running: "Service", refused: Refused) -> None:
    """Ray would share the port with the service that has it."""
    status, said = refused("--port", str(running.port))

    assert status == 2
    assert said == (
        f"headlight: cannot listen on 127.0.0.1 port {running.port}: Address already in use;"
        " choose another with --port or HEADLIGHT_PORT\n"
    )


@pytest.mark.prove
def test_a_model_that_a_replica_refuses_ends_the_start_in_one_line(
    running: "Service", refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said, without its stack, of what only a pass shows; other services do not notice."""
    monkeypatch.setenv("RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT", "1")  # Ray tries it thrice
    source = weights.locate_model(weights.BUNDLED_MODEL).folder
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, tmp_path)
    tensors = load_file(source / "model.safetensors")
    nothing = {name: tensor * 0 for name, tensor in tensors.items()}
    save_file(nothing, tmp_path / "model.safetensors", {"format": "pt"})

    status, said = refused("--port", "18999", "--model", str(tmp_path))

    assert status == 1
    *_, loading, cause = [line for line in said.splitlines() if not line.startswith("waiting ")]
    assert loading == f"loading {tmp_path}"
    assert cause.startswith("headlight: ") and "vectors of 8 texts are all zero" in cause
    assert "NotTrustworthy" not in cause
    assert running.encode("All is well").status_code == 200


@pytest.mark.prove
@pytest.mark.parametrize("line", ["starting Ray", "loading"])
def test_ctrl_c_ends_a_start_within_seconds(tmp_path: Path, line: str) -> None:
    """Whatever it waits for just then: Ray would take most of a minute."""
    errors = tmp_path / "stderr"
    with serve("--port", str(free_port()), errors=errors) as process:
        drill.wait(lambda: line in errors.read_text(), line)
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 0

    assert "Traceback" not in errors.read_text()
