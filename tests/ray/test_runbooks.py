"""The commands and queries of the runbooks, as they stand, on a service with keys that runs."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests import runbooks
from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Prometheus, Service, Start, Watching

pytestmark = [pytest.mark.ray, pytest.mark.prove]

# What this service has not: a GPU, and agents of a cluster whose pages Prometheus reads
ABSENT = re.compile("headlight_gpu|ray_|haproxy_|pod:")


@pytest.fixture(scope="module")
def keyed(start: "Start", tmp_path_factory: pytest.TempPathFactory) -> Iterator["Service"]:
    """Two replicas that ask for keys."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(runbooks.KEYS)
    with start("--replicas", "2", "--api-keys-file", str(file)) as service:
        yield service


@pytest.fixture(scope="module")
def prometheus(keyed: "Service", watching: "Watching") -> Iterator["Prometheus"]:
    """One that has the marked key, as prometheus.yml says."""

    def authorize(folder: Path) -> None:
        file = folder / "prometheus.yml"
        (folder / "key").write_text(runbooks.MARKED)
        settings = yaml.safe_load(file.read_text())
        settings["scrape_configs"][0]["authorization"] = {"credentials_file": str(folder / "key")}
        file.write_text(yaml.safe_dump(settings))

    with watching(keyed, authorize) as watched:
        drill.wait(lambda: watched.ask("rate(headlight_ready[1m])") != [], "two scrapes")
        yield watched


def test_every_command_of_a_runbook_finds_what_it_is_to_find(keyed: "Service") -> None:
    """Where it asks for a fault's line, any line."""
    if not shutil.which("wget"):
        pytest.skip("no wget, which the image has (Debian: apt-get install wget)")
    commands = runbooks.commands()
    said = {line: runbooks.run(line, keyed.port) for line in commands}

    assert len(commands) >= 5
    for line, text in said.items():
        assert text and " 401 " not in text, (line, text)


def test_every_query_of_a_runbook_finds_what_it_is_to_find(prometheus: "Prometheus") -> None:
    """Where it asks for a fault alone, nothing."""
    queries = runbooks.queries()
    found = {query: prometheus.ask(query) for query in queries}

    assert len(queries) > 20
    for query, series in found.items():
        wants_fault = re.search(r"(> 0\)?|== [01])$", query)
        assert series or wants_fault or ABSENT.search(query), query
