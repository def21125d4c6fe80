"""What the deployment says of itself, asked where no Ray runs."""

import json
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.files import weights
from service.pipeline.replica import Replica
from service.tables.settings import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from ray.serve._private.constants import REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD

    from service import app
    from service.cluster.ingress import DEPLOYMENT
    from tests import faults


class State(StrEnum):
    """As Ray's."""

    STARTING = "STARTING"


@pytest.mark.parametrize("state", [State.STARTING, "STARTING"], ids=["a member", "a name"])
def test_states_of_replicas_are_named_however_ray_gives_them(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some come as Ray's enumeration, some as its names."""
    deployment = SimpleNamespace(replica_states={state: 2}, message="not yet")
    application = SimpleNamespace(deployments={DEPLOYMENT: deployment})
    status = SimpleNamespace(applications={app.APPLICATION: application})
    monkeypatch.setattr(app.serve, "status", lambda: status)

    states, message = app.deployment_status()

    assert (dict(states), message) == ({"STARTING": 2}, "not yet")
    assert type(next(iter(states))) is str


def test_ray_is_not_told_of_a_fault_that_the_metrics_are_to_show() -> None:
    """A replica with a fault leaves by itself, once it was scraped."""

    def check() -> None:
        raise RuntimeError("the canary's answer changed")

    replica = SimpleNamespace(health=SimpleNamespace(fault=None), check_health=check)
    encoder = SimpleNamespace(_started_replica=lambda: replica)
    told = app.EncoderDeployment.func_or_class.check_health

    with pytest.raises(RuntimeError, match="canary"):
        told(encoder)
    replica.health.fault = "the canary's answer changed"
    told(encoder)


@pytest.mark.parametrize(
    ("fault", "drain_seconds", "stay"),
    [("", 60, True), ("", 0, False), ("a batch hangs", 60, False)],
)
def test_a_replica_that_is_taken_out_stays_while_it_is_reachable_and_well(
    fault: str, drain_seconds: float, stay: bool
) -> None:
    """Half of the time that it stays reachable; not at all where that is none."""

    def check() -> None:
        if fault:
            raise RuntimeError(fault)

    replica = SimpleNamespace(health=SimpleNamespace(raise_if_faulty=check))
    encoder = SimpleNamespace(
        _started_replica=lambda: replica,
        settings=SimpleNamespace(drain_seconds=drain_seconds),
        leaving=float("inf"),
    )
    stays = app.EncoderDeployment.func_or_class.stays

    assert stays(encoder) is stay
    encoder.leaving -= 31 if encoder.leaving < float("inf") else 0
    assert stays(encoder) is False


def test_a_replica_that_was_unwell_for_a_moment_stays_as_long_as_any_other() -> None:
    """Ray's probe fails then, too, and Ray keeps it."""
    well = [False, True, True]

    def check() -> None:
        if not well.pop(0):
            raise RuntimeError("a batch hangs")

    health = SimpleNamespace(raise_if_faulty=check, fault=None)
    replica = SimpleNamespace(health=health, check_health=check)
    encoder = SimpleNamespace(
        _started_replica=lambda: replica,
        settings=SimpleNamespace(drain_seconds=60),
        leaving=float("inf"),
    )
    methods = app.EncoderDeployment.func_or_class

    assert not methods.stays(encoder)
    encoder.leaving -= 31
    methods.check_health(encoder)
    assert methods.stays(encoder)


@pytest.mark.parametrize("failed", [True, False])
async def test_the_log_says_why_a_replica_in_a_lost_ones_place_does_not_start(
    failed: bool, log: Callable[[], str], tmp_path: Path
) -> None:
    """As where the folder has gone; a first start that fails is told to who started it."""
    gone = tmp_path / "gone"

    async def replaces_failed() -> bool:
        return failed

    async def start() -> Replica:
        return await Replica.start(Settings(model=str(gone)), "r", tmp_path)

    pages = SimpleNamespace(replaces_failed=replaces_failed)
    encoder = SimpleNamespace(pages=pages, _start_replica=start)

    with pytest.raises(weights.ModelNotFound, match="gone"):
        await app.EncoderDeployment.func_or_class.__serve_build_asgi_app__(encoder)

    lines = [json.loads(line) for line in log().splitlines()]
    said = [line["reason"] for line in lines if line["event"] == "replica not started"]
    assert len(said) == failed and all(str(gone) in reason for reason in said)


def test_drills_with_faults_start_a_faulty_replica_in_place_of_the_deployments() -> None:
    """The short form of those that start a service: the method that they replace is there."""
    deployed = app.EncoderDeployment.func_or_class
    right = deployed._start_replica

    with faults.own_ray(right=partial(nullcontext, Path())):
        assert deployed._start_replica is faults.start_replica

    assert deployed._start_replica is right


def test_ray_ends_a_replica_that_hangs_only_once_haproxy_has_left_it() -> None:
    """Ray then renews HAProxy's configuration, and what the old one waits for is never left."""
    rules = (Path(app.__file__).parent / "cluster" / "haproxy.cfg.tmpl").read_text()
    found = re.search(
        r"timeout check (\d+)s\n.* fall (\d+) .* inter (\d+)s fastinter (\d+)ms", rules
    )
    assert found
    check, fall, inter, again = map(int, found.groups())

    left = inter + fall * check + (fall - 1) * again / 1000

    assert REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD * app.HEALTH_TIMEOUT_SECONDS > left
