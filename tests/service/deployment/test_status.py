"""What Ray says of applications: in lines while one is deployed, and by `headlight status`."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from service.deployment import status
from service.preflight.applications import Application
from service.settings import Settings
from tests.service.deployment.clusters import Cluster, application, dashboard_of

FILE = {"args": {"model": "org/name@v2"}}
RIGHT = application("RUNNING", "a", "b", file=FILE, route_prefix="/a")


def shown(cluster: Cluster, *flags: str) -> Result:
    """Run `headlight status`."""
    with dashboard_of(cluster) as address:
        return CliRunner().invoke(main, ["status", "--address", address, *flags])


def test_what_serves_is_a_line_an_application() -> None:
    """Name, path, model, status, replicas, and since when; nothing else, where all is right."""
    result = shown(Cluster({"first": RIGHT}))

    head, line = result.stdout.splitlines()
    assert head.split() == ["application", "at", "model", "status", "replicas", "since"]
    assert line.split() == ["first", "/a", "org/name@v2", "RUNNING", "2/2", line.split()[-1]]
    assert line.split()[-1] == "2025-11-24T16:00:00+00:00"
    assert result.exit_code == 0


def test_json_has_the_same_of_every_application() -> None:
    """Sorted by name; what is not known is null."""
    failed = application("DEPLOY_FAILED", message="Error\nValueError: no room", deployments={})
    cluster = Cluster({"second": failed, "first": RIGHT}, replicas=())

    result = shown(cluster, "--json")

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

    (found,) = json.loads(shown(Cluster({"a": named}), "--json").stdout)["applications"]

    assert found["model"] == "b"


def test_replicas_of_an_update_that_was_not_built_still_count() -> None:
    """Ray tells of no deployment then; those of the version before serve."""
    failed = application("DEPLOY_FAILED", message="no folder /nowhere", deployments={})

    result = shown(Cluster({"headlight": failed}, replicas=["a"]))

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
    assert shown(Cluster(found)).exit_code == 1


def test_a_cluster_that_cannot_be_asked_is_exit_2() -> None:
    """In one line, which says how one is started."""
    result = CliRunner().invoke(main, ["status", "--address", "http://127.0.0.1:9"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headlight: no Ray dashboard at http://127.0.0.1:9")


OURS = Application(("applications", 0), "headlight", {}, Settings(model="org/name"))
STUCK = (
    "Deployment 'Encoder' in application 'headlight' has 1 replicas that have taken more than 30s "
    "to be scheduled. This may be due to waiting for the cluster to auto-scale or for a runtime "
    'environment to be installed. Resources required for each replica: {"CPU": 2.0}, total '
    'resources available: {"CPU": 1.0}. Use `ray status` for more details.'
)
TRACEBACK = (
    "The deployment failed to start 3 times in a row. Error:\n\x1b[36mray::ServeReplica\x1b[39m\n"
    '  File "service/engine/weights.py", line 103, in _hub\n'
    "service.engine.weights.ModelNotFound: no folder /nowhere"
)


def deployed(
    status: str, message: str = "", kind: str = "UPSCALING", **replicas: str
) -> dict[str, Any]:
    """What Ray's REST interface says of an application with replicas in these states."""
    listed = [{"replica_id": name, "state": state} for name, state in replicas.items()]
    return {
        "status": status,
        "message": "",
        "deployments": {"Encoder": {"status": kind, "message": message, "replicas": listed}},
    }


def test_what_runs_is_counted() -> None:
    """Those that leave are not."""
    said = status.running(OURS, deployed("RUNNING", a="RUNNING", b="STOPPING", c="RUNNING"))

    assert said == "2 replicas of org/name run as headlight"


@pytest.mark.parametrize(
    ("found", "alive", "serves"),
    [
        (deployed("DEPLOY_FAILED", TRACEBACK, a="RUNNING"), {"a", "b"}, "with 1 of 2 replicas"),
        (deployed("DEPLOY_FAILED", TRACEBACK, a="STOPPING"), {"a"}, "so nothing serves"),
        (
            {"status": "DEPLOY_FAILED", "message": TRACEBACK, "deployments": {}},
            {"a", "b"},
            "the version before still serves",
        ),
    ],
    ids=["in part", "stopping", "not built"],
)
def test_a_failure_says_why_and_what_still_serves(
    found: dict[str, Any], alive: set[str], serves: str
) -> None:
    """A replica that leaves does not count, one of which Ray says nothing does."""
    said = status.failed(OURS, found, before={"a", "b"}, alive=alive)

    assert said.startswith("headlight not changed: no folder /nowhere; ") and serves in said
    assert status.ended(found) and "\n" not in said


def test_a_failure_without_a_version_before_says_so() -> None:
    """As with the first deployment of a cluster."""
    said = status.failed(OURS, deployed("DEPLOY_FAILED", TRACEBACK), set(), set())

    assert said.endswith("; nothing served before")


def test_a_replica_without_room_names_the_resource() -> None:
    """What it takes, and what is free."""
    found = deployed("DEPLOYING", STUCK, a="RUNNING", b="STARTING")

    said = status.progress(OURS, found, set())

    room = "no node has room for a replica of CPU 2; CPU 1 is free"
    assert said == f"headlight: 1 running, 1 starting; {room}"
    assert f"headlight not changed yet: {room}; " in status.failed(OURS, found, {"a"}, {"a"})
    assert not status.ended(found)


def test_an_update_without_room_for_one_more_says_how_it_goes() -> None:
    """A new replica starts next to the old."""
    found = deployed("DEPLOYING", STUCK, kind="UPDATING", a="RUNNING", b="STARTING")

    assert "max_surge_percent: 0 in its deployment stops" in status.progress(OURS, found, set())


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (set(), "no replica yet"),
        ({"a"}, "the version before serves with 1 replica"),
        ({"a", "b"}, "the version before serves with 2 replicas"),
    ],
    ids=["first", "one", "two"],
)
def test_while_ray_builds_it_is_said_what_serves(before: set[str], said: str) -> None:
    """Ray tells of no replica then, whether or not there are some."""
    found = {"status": "DEPLOYING", "message": "", "deployments": {}}

    line = status.progress(OURS, found, before)

    assert line == f"headlight: the nodes are asked whether they can run it; {said}"
