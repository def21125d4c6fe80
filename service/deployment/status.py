"""`headlight status`: what a cluster serves, by Ray's REST interface, for people and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from service.commands.terminal import plain
from service.deployment import outcome
from service.deployment.dashboard import Dashboard


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
    return [_serving(cluster, name, found[name]) for name in sorted(found)]


def _serving(cluster: Dashboard, name: str, said: dict[str, Any]) -> Serving:
    deployments = list(said["deployments"].values())
    states = [one["state"] for each in deployments for one in each["replicas"]]
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
        error=outcome.message(said),
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
