"""`headlight deploy`: a Serve file checked, held against the cluster, sent and awaited.

check      as `headlight config check`
cluster    its token, its nodes' room, what it cannot change in place
plan       what is added, changed and removed; nothing is removed unasked
send       by Ray's REST interface, as `serve deploy`
await      until Ray has done with it, well or not
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from service.cluster import network, progress
from service.deployment import check, status
from service.deployment.dashboard import Dashboard, Ended, Silent, Unreachable
from service.deployment.plan import Plan, plan
from service.preflight import schema, serve_file
from service.preflight.applications import Application
from service.preflight.cluster import lacking
from service.preflight.document import Document, Unreadable, documents, get
from service.preflight.finding import Finding
from service.wording.words import listed

POLL_SECONDS = 0.5
START_SECONDS = 15  # from `ray start` to its dashboard's first answer
# What stops Serve, from a shell without ray.env
AGAIN = "run `RAY_AUTH_MODE=token serve shutdown`, then deploy again"


def prepare(path: Path, address: str, wait: float, say: Callable[[str], None]) -> "Prepared":
    """Check a Serve file and compare it with a cluster; send nothing.

    Args:
        address: of Ray's dashboard.
        wait: seconds until the dashboard has to answer, at most START_SECONDS.
        say: takes a line on what is waited for, every few seconds.

    Raises:
        Ended: the file is not correct, or does not fit this cluster, or that cannot be asked.
        OSError: the file cannot be read.
    """
    document, ours = _read(path)
    cluster = Dashboard(address)
    with progress.reported(say, lambda: f"Ray's dashboard at {address} does not answer yet"):
        before = _first(cluster, time.monotonic() + min(wait, START_SECONDS))
    if faults := _unfit(document, ours, cluster, before):
        raise Ended("refused", "\n".join(str(document.locate(fault)) for fault in faults))
    body = schema.plain(document.value)
    alive = {each.name: cluster.replicas(each.name) for each in ours}
    return Prepared(cluster, body, ours, before["applications"], alive)


@dataclass
class Prepared:
    """A correct file for a cluster, until Ray is done with it.

    Args:
        body: the file as Ray reads it.
        now: what Ray says of each application.
        alive: ids of the replicas of each application in the file that live before it is sent.
    """

    cluster: Dashboard
    body: dict[str, Any]
    ours: list[Application]
    now: dict[str, Any]
    alive: dict[str, set[str]]

    @cached_property
    def plan(self) -> Plan:
        """Return what would become of each application."""
        return plan(self.body, self.now)

    def keep(self) -> None:
        """Ensure that nothing is removed.

        Raises:
            Ended: the file does not name an application that is deployed.
        """
        if gone := list(self.plan.removed):
            names, them = listed(gone, "and"), "it" if len(gone) == 1 else "them"
            raise Ended(
                "refused",
                f"headlight: the file does not name {names}, so Ray would remove {them}; "
                f"add {them} to the file, or remove {them} with --prune",
            )

    def send(self, wait: float, say: Callable[[str], None]) -> str:
        """Deploy the file; returns in a line what runs.

        Args:
            wait: seconds until the outcome has to be known.
            say: takes a line on what is waited for, every few seconds.

        Raises:
            Ended: Ray does not accept it, it does not run or not yet, or the user ended the wait.
        """
        removed, began = list(self.plan.removed), time.monotonic()
        try:
            self.cluster.deploy(self.body)
            with progress.reported(say, self._progress):
                text = self._done(removed, began + wait)
        except Unreachable as error:
            raise Ended("failed", f"{error}; the cluster may have taken the file") from error
        except KeyboardInterrupt as error:
            line = "the cluster goes on; the same command waits for it again"
            raise Ended("interrupted", line) from error
        return f"{text}, ready after {time.monotonic() - began:.0f} s"

    def _progress(self) -> str:
        """Say what is waited for."""
        return "; ".join(
            status.progress(each, self._of(each), self.alive[each.name]) for each in self.ours
        )

    def _done(self, removed: list[str], until: float) -> str:
        """Wait for the outcome of every application; returns what runs.

        Raises:
            Ended: one does not run.
        """
        ends = self._ended()
        while not ends and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            ends = self._ended()
        text = "; ".join([*map(self._tell_outcome, self.ours), *self._gone(removed)])
        if all(status.runs(self._of(each)) for each in self.ours):
            return text
        raise Ended("failed", text if ends else f"{text}; the cluster goes on with it")

    def _of(self, ours: Application) -> dict[str, Any]:
        return self.now.get(ours.name, {})  # type: ignore[no-any-return]  # as JSON has it

    def _ended(self) -> bool:
        """Tell whether Ray is done with every application; unknown while it does not answer."""
        with suppress(Unreachable):
            self.now = self.cluster.served()["applications"]
            return all(status.ended(self._of(each)) for each in self.ours)
        return False

    def _tell_outcome(self, ours: Application) -> str:
        """Say what became of one application."""
        if status.runs(self._of(ours)):
            return status.running(ours, self._of(ours))
        alive = self.cluster.replicas(ours.name)
        return status.failed(ours, self._of(ours), self.alive[ours.name], alive)

    def _gone(self, removed: list[str]) -> Iterator[str]:
        """Yield the applications that Ray deletes because the file does not name them."""
        for name in removed:
            if self.now.get(name, {}).get("status", "DELETING") == "DELETING":
                yield f"{name} is removed"


def _read(path: Path) -> tuple[Document, list[Application]]:
    """Return the one Serve file of a file, and its applications."""
    file = str(path)
    try:
        found = documents(file, check.read(path))
    except Unreadable as error:
        raise Ended("refused", f"{file}:{error.line}: {error.text}") from error
    if any(get(each.value, ("kind",)) for each in found):
        raise Ended("refused", f"{file} is for Kubernetes: kubectl apply --filename {file}")
    if len(found) != 1:
        raise Ended("refused", f"{file} holds {len(found)} documents, and a Serve file is one")
    ours, findings = serve_file.read(found[0], {})
    if wrong := [str(finding) for finding in findings if finding.wrong]:
        raise Ended("refused", "\n".join(wrong))
    return found[0], ours


def _first(cluster: Dashboard, until: float) -> dict[str, Any]:
    """Return what Ray says of Serve once its dashboard is up."""
    while True:
        try:
            return cluster.served()
        except Silent:
            if time.monotonic() > until:
                raise
        time.sleep(POLL_SECONDS)


def _unfit(
    document: Document, ours: list[Application], cluster: Dashboard, before: dict[str, Any]
) -> list[Finding]:
    """Find what is wrong with a file on this cluster."""
    nodes, managed = cluster.nodes()
    serve = schema.plain(document.value)
    host, wrong = serve["http_options"]["host"], [*_fixed(serve, before), *_taken(serve, before)]
    if network.loopback(host) and len(nodes) > 1:
        text = f"{host} is reached from its own node alone, and there are {len(nodes)}"
        wrong.append(Finding(("http_options", "host"), text, "write 0.0.0.0"))
    if not managed:
        wrong += lacking(ours, nodes)
    return wrong


def _taken(value: dict[str, Any], before: dict[str, Any]) -> Iterator[Finding]:
    """Find prefixes of applications that stay: Ray would route their requests elsewhere."""
    stay = {
        said.get("route_prefix"): name
        for name, said in before["applications"].items()
        if said.get("source") == "imperative"
    }
    for i, application in enumerate(value["applications"]):
        prefix = application.get("route_prefix", "/")
        if stay.get(prefix, application.get("name")) != application.get("name"):
            text = f"{prefix} leads to {stay[prefix]}, which a program deployed"
            yield Finding(("applications", i, "route_prefix"), text, "write another")


def _fixed(value: dict[str, Any], before: dict[str, Any]) -> list[Finding]:
    """Find changes to what Ray sets when Serve starts and ignores afterwards."""
    running = before.get("http_options")
    if not running:
        return []
    wrong = [
        Finding(("http_options", name), f"{new!r} cannot replace {running[name]!r} in place", AGAIN)
        for name, new in schema.listener(value).items()
        if name in running and running[name] != new
    ]
    new, old = value.get("proxy_location", "EveryNode"), before.get("proxy_location")
    if old and new != old:
        wrong.append(Finding(("proxy_location",), f"{new} cannot replace {old} in place", AGAIN))
    return wrong
