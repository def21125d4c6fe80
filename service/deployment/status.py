"""What Ray says of applications: in a line each while one is deployed, in a table for `status`.

A line also says whether the previous version serves.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from service.cluster.progress import last_line
from service.commands.terminal import plain
from service.deployment.dashboard import Dashboard
from service.keys import STALE_SECONDS
from service.preflight.applications import Application
from service.preflight.cluster import Resources, in_words
from service.wording.words import counted

# Ray's sentence about a replica for which no node has room
PENDING = re.compile(r"required for each replica: (\{.*?\}), total resources available: (\{.*?\})")
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


def ended(application: dict[str, Any]) -> bool:
    """Tell whether Ray is done with an application, for better or worse."""
    return runs(application) or application.get("status") in FAILED


def runs(application: dict[str, Any]) -> bool:
    """Tell whether an application runs as its file says."""
    return application.get("status") == "RUNNING"


def running(ours: Application, application: dict[str, Any]) -> str:
    """Say what an application runs."""
    count = list(_states(application).values()).count("RUNNING")
    verb = "runs" if count == 1 else "run"
    replicas, file = counted(count, "replica"), ours.settings.api_keys_file
    keys = f" (within {STALE_SECONDS:g} s of a change, each takes up the keys in {file} by itself)"
    return f"{replicas} of {ours.settings.model} {verb} as {ours.name}{keys if file else ''}"


def failed(
    ours: Application, application: dict[str, Any], before: set[str], alive: set[str]
) -> str:
    """Say why an application does not run, and what serves instead.

    Args:
        before: ids of its replicas that lived before the file was sent.
        alive: ids of those that live now.
    """
    serving = before & alive
    if states := _states(application):  # an application not built has none: none is touched
        serving &= {one for one, state in states.items() if state == "RUNNING"}
    verb = "not changed" if ended(application) else "not changed yet"
    reason = message(application) or str(application.get("status", "Ray does not know it")).lower()
    return f"{ours.name} {verb}: {reason}; {_serving(before, serving)}"


def progress(ours: Application, application: dict[str, Any], before: set[str]) -> str:
    """Say what an application waits for.

    Args:
        before: ids of its replicas that lived before the file was sent.
    """
    states = list(_states(application).values())
    counts = [f"{states.count(state)} {state.lower()}" for state in sorted(set(states))]
    waits = message(application)
    return f"{ours.name}: {', '.join(counts) or _built(before)}{f'; {waits}' if waits else ''}"


def _built(before: set[str]) -> str:
    """Say what happens before Ray reports replicas: it builds the application and asks nodes."""
    if not before:
        return "the nodes are asked whether they can run it; no replica yet"
    old = counted(len(before), "replica")
    return f"the nodes are asked whether they can run it; the version before serves with {old}"


def message(application: dict[str, Any]) -> str:
    """Return the line that says why: the deployment's, which the application's summarizes."""
    deployments = application.get("deployments", {}).values()
    for text in [*(each["message"] for each in deployments), application.get("message", "")]:
        if match := PENDING.search(text):
            updating = any(each["status"] == "UPDATING" for each in deployments)
            return _no_room(json.loads(match[1]), json.loads(match[2]), updating)
        if text:
            return last_line(text)
    return ""


def _no_room(wants: Resources, free: Resources, updating: bool) -> str:
    """Say why a replica waits, and how an update proceeds without room for one more."""
    left = f"{in_words(free)} is free" if free else "nothing is free"
    text = f"no node has room for a replica of {in_words(wants)}; {left}"
    how = "; max_surge_percent: 0 in its deployment stops an old one first"
    return text + how * updating


def _states(application: dict[str, Any]) -> dict[str, str]:
    """Return the state of each replica, by its id."""
    deployments = application.get("deployments", {}).values()
    return {one["replica_id"]: one["state"] for each in deployments for one in each["replicas"]}


def _serving(before: set[str], serving: set[str]) -> str:
    """Say what of the previous version still serves."""
    if not before:
        return "nothing served before"
    if not serving:
        return "the version before has stopped, so nothing serves: deploy a right file"
    part = "" if len(serving) == len(before) else f" with {len(serving)} of {len(before)} replicas"
    return f"the version before still serves{part}"


@dataclass(frozen=True, slots=True)
class Serving:
    """One application.

    Args:
        path: below which it answers; None while Ray does not know it.
        model: as its file names it; None where the cluster's variables or a program do.
        status: in Ray's word.
        ready: replicas that run.
        target: replicas that there should be; None while Ray does not know.
        since: when it was last deployed, as ISO 8601 has it.
        error: the last thing that Ray says of it; empty if nothing.
    """

    name: str
    path: str | None
    model: str | None
    status: str
    ready: int
    target: int | None
    since: str
    error: str

    @property
    def right(self) -> bool:
        """Tell whether all that was deployed runs."""
        return self.status == "RUNNING" and self.target is not None and self.ready >= self.target


def serving(cluster: Dashboard) -> list[Serving]:
    """Ask a cluster what it serves.

    Raises:
        Unreachable: it cannot be asked.
    """
    found = cluster.served()["applications"]
    return [_row(cluster, name, found[name]) for name in sorted(found)]


def _row(cluster: Dashboard, name: str, said: dict[str, Any]) -> Serving:
    deployments = list(said["deployments"].values())
    states = list(_states(said).values())
    # Ray reports no deployment while it builds the application or when it could not: replicas may
    # still serve
    ready = states.count("RUNNING") if deployments else len(cluster.replicas(name))
    targets = [each["target_num_replicas"] for each in deployments]
    at = datetime.fromtimestamp(said["last_deployed_time_s"], UTC)
    return Serving(
        name=name,
        path=said["route_prefix"],
        model=_model(said.get("deployed_app_config")),
        status=said["status"],
        ready=ready,
        target=sum(targets) if deployments else None,
        since=at.isoformat(timespec="seconds"),
        error=message(said),
    )


def _model(deployed: dict[str, Any] | None) -> str | None:
    """Return what clients call the model of an application that a file deployed."""
    args = (deployed or {}).get("args") or {}
    return args.get("served_model_name") or args.get("model")


def table(rows: Sequence[Serving]) -> Table:
    """Draw the status for people, an application per line."""
    drawn = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name in ("application", "at", "model", "status", "replicas", "since"):
        drawn.add_column(name, overflow="fold")
    for row in rows:
        target = "-" if row.target is None else row.target
        cells = (row.name, row.path, row.model, row.status, f"{row.ready}/{target}", row.since)
        drawn.add_row(*(plain(cell or "-") for cell in cells))
    return drawn


def errors(rows: Sequence[Serving]) -> Iterator[str]:
    """Yield the last thing that Ray says of each application, where it says anything."""
    yield from (f"{row.name}: {row.error}" for row in rows if row.error)
