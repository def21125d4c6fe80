"""`headlight status`: what a cluster serves, as its dashboard says it."""

import json

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from tests.service.deployment.clusters import Cluster, application, dashboard_of

FILE = {"args": {"model": "org/name@v2"}}
RIGHT = application("RUNNING", "a", "b", file=FILE, route_prefix="/a")


def status(cluster: Cluster, *flags: str) -> Result:
    """Run `headlight status`."""
    with dashboard_of(cluster) as address:
        return CliRunner().invoke(main, ["status", "--address", address, *flags])


def test_what_serves_is_a_line_an_application() -> None:
    """Name, path, model, status, replicas, and since when; nothing else, where all is right."""
    result = status(Cluster({"first": RIGHT}))

    head, line = result.stdout.splitlines()
    assert head.split() == ["application", "at", "model", "status", "replicas", "since"]
    assert line.split() == ["first", "/a", "org/name@v2", "RUNNING", "2/2", line.split()[-1]]
    assert line.split()[-1] == "2025-11-24T16:00:00+00:00"
    assert result.exit_code == 0


def test_json_has_the_same_of_every_application() -> None:
    """Sorted by name; what is not known is null."""
    failed = application("DEPLOY_FAILED", message="Error\nValueError: no room", deployments={})
    cluster = Cluster({"second": failed, "first": RIGHT}, replicas=())

    result = status(cluster, "--json")

    first, second = json.loads(result.stdout)["applications"]
    assert result.exit_code == 1
    assert first == {
        "name": "first",
        "path": "/a",
        "model": "org/name@v2",
        "status": "RUNNING",
        "ready": 2,
        "target": 2,
        "since": "2025-11-24T16:00:00+00:00",
        "error": "",
    }
    assert (second["model"], second["target"], second["error"]) == (None, None, "no room")


def test_the_model_has_the_name_that_clients_use() -> None:
    """Which its file may set."""
    named = application("RUNNING", "a", file={"args": {"model": "org/a", "served_model_name": "b"}})

    (found,) = json.loads(status(Cluster({"a": named}), "--json").stdout)["applications"]

    assert found["model"] == "b"


def test_replicas_of_an_update_that_was_not_built_still_count() -> None:
    """Ray tells of no deployment then; those of the version before serve."""
    failed = application("DEPLOY_FAILED", message="no folder /nowhere", deployments={})

    result = status(Cluster({"headlight": failed}, replicas=["a"]))

    assert result.exit_code == 1
    assert " 1/- " in result.stdout and "headlight: no folder /nowhere" in result.stdout


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a": application("DEPLOYING", "a")},
        {"a": application("UNHEALTHY", "a")},
        {"a": RIGHT, "b": application("RUNNING", deployments={})},
    ],
    ids=["nothing", "deploying", "unhealthy", "one of two"],
)
def test_the_exit_status_says_whether_all_runs(found: dict[str, object]) -> None:
    """1, if something that was deployed does not, or nothing is."""
    assert status(Cluster(found)).exit_code == 1


def test_a_cluster_that_cannot_be_asked_is_exit_2() -> None:
    """In one line, which says how one is started."""
    result = CliRunner().invoke(main, ["status", "--address", "http://127.0.0.1:9"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headlight: no Ray dashboard at http://127.0.0.1:9")
