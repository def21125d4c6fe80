"""What became of a deployment, by what Ray says of it."""

from typing import Any

import pytest

from service.deployment import outcome
from service.preflight.applications import Application
from service.settings import Settings

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


def application(
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
    said = outcome.running(OURS, application("RUNNING", a="RUNNING", b="STOPPING", c="RUNNING"))

    assert said == "2 replicas of org/name run as headlight"


@pytest.mark.parametrize(
    ("found", "alive", "serves"),
    [
        (application("DEPLOY_FAILED", TRACEBACK, a="RUNNING"), {"a", "b"}, "with 1 of 2 replicas"),
        (application("DEPLOY_FAILED", TRACEBACK, a="STOPPING"), {"a"}, "so nothing serves"),
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
    said = outcome.failed(OURS, found, before={"a", "b"}, alive=alive)

    assert said.startswith("headlight not changed: no folder /nowhere; ") and serves in said
    assert outcome.ended(found) and "\n" not in said


def test_a_failure_without_a_version_before_says_so() -> None:
    """As with the first deployment of a cluster."""
    said = outcome.failed(OURS, application("DEPLOY_FAILED", TRACEBACK), set(), set())

    assert said.endswith("; nothing served before")


def test_a_replica_without_room_names_the_resource() -> None:
    """What it takes, and what is free."""
    found = application("DEPLOYING", STUCK, a="RUNNING", b="STARTING")

    said = outcome.progress(OURS, found, set())

    room = "no node has room for a replica of CPU 2; CPU 1 is free"
    assert said == f"headlight: 1 running, 1 starting; {room}"
    assert f"headlight not changed yet: {room}; " in outcome.failed(OURS, found, {"a"}, {"a"})
    assert not outcome.ended(found)


def test_an_update_without_room_for_one_more_says_how_it_goes() -> None:
    """A new replica starts beside the old."""
    found = application("DEPLOYING", STUCK, kind="UPDATING", a="RUNNING", b="STARTING")

    assert "max_surge_percent: 0 in its deployment stops" in outcome.progress(OURS, found, set())


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

    line = outcome.progress(OURS, found, before)

    assert line == f"headlight: the nodes are asked whether they can run it; {said}"
