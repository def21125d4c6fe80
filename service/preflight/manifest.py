"""A RayService of Kubernetes: the Serve file in it, its pods' variables and time-outs.

Room in its pods is not counted here: Ray says in the application's status which resources a
replica waits for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.cluster import ingress, network
from service.preflight.applications import Application
from service.preflight.document import Document, entries, fields, get
from service.preflight.finding import Finding
from service.preflight.variables import DRAIN, Variables
from service.wording.words import Loc, place

CONFIG: Loc = ("spec", "serveConfigV2")
CLUSTER: Loc = ("spec", "rayClusterConfig")
GRACE, OUTLIVES = 30, 60  # Kubernetes' own, and KubeRay's


def pods(document: Document) -> list[Loc]:
    """Return the places of the pods: the head node's, and those of each group of workers."""
    workers = entries(document.value, (*CLUSTER, "workerGroupSpecs"))
    groups: list[Loc] = [(*CLUSTER, "workerGroupSpecs", i) for i in range(len(workers))]
    return [(*CLUSTER, "headGroupSpec"), *groups]


def variables(document: Document, maps: Mapping[str, Any]) -> Iterator[Variables]:
    """Read the variables of each pod.

    Args:
        maps: the ConfigMaps of the same file, by name.
    """
    for group in pods(document):
        loc: Loc = (*group, "template", "spec", "containers", 0, "env")
        values, lines = dict[str, str](), dict[str, int]()
        for source in entries(document.value, (*loc[:-1], "envFrom")):
            named = str(get(source, ("configMapRef", "name")))
            values |= {name: str(value) for name, value in fields(maps, (named,)).items()}
        for index, each in enumerate(entries(document.value, loc)):
            name = str(get(each, ("name",)))
            values[name] = str(get(each, ("value",)) or "")
            lines[name] = document.line((*loc, index))
        values |= ingress.AUTHENTICATED  # KubeRay's own part, see check
        yield Variables(document.file, values, lines, document.line(loc), place(loc))


def check(
    document: Document, serve: Mapping[str, Any], ours: Sequence[Application]
) -> Iterator[Finding]:
    """Find what is wrong between the Serve file and the pods around it.

    Args:
        serve: the file in it as schema.plain has it.
    """
    options = serve.get("http_options", {})
    if network.loopback(str(options.get("host", ""))):
        text = f"host {options['host']}: no other pod reaches it"
        yield Finding(CONFIG, text, "write 0.0.0.0")
    hidden = get(document.value, ("spec", "excludeHeadPodFromServeSvc"))
    if serve.get("proxy_location") == "HeadOnly" and hidden:
        yield Finding(CONFIG, "proxy_location HeadOnly: the Service leaves the head out")
    for group in pods(document):
        yield from _ports(document, group, options.get("port", 8000))
        yield from _grace(document, group)
    if get(document.value, (*CLUSTER, "authOptions", "mode")) != "token" and not all(
        each.settings.insecure_cluster for each in ours
    ):
        mend = "write authOptions: {mode: token}"
        yield Finding((*CLUSTER, "authOptions"), "anyone who reaches Ray could run code", mend)


def _ports(document: Document, group: Loc, port: int) -> Iterator[Finding]:
    """Compare the port named serve, where KubeRay probes whether a pod serves, with the file's."""
    loc: Loc = (*group, "template", "spec", "containers", 0, "ports")
    for index, each in enumerate(entries(document.value, loc)):
        number = get(each, ("containerPort",))
        if get(each, ("name",)) == "serve" and number != port:
            at = (*loc, index, "containerPort")
            yield Finding(at, f"{number} is not http_options.port", f"write {port}")


def _grace(document: Document, group: Loc) -> Iterator[Finding]:
    """Compare a pod's time to leave with its node's drain, and the cluster's with the pod's."""
    loc: Loc = (*group, "template", "spec", "terminationGracePeriodSeconds")
    grace = _seconds(get(document.value, loc), GRACE)
    env = entries(document.value, (*loc[:-1], "containers", 0, "env"))
    drain = next((get(each, ("value",)) for each in env if get(each, ("name",)) == DRAIN), 0)
    least = max(_seconds(drain, 0), ingress.NODE_DRAIN_SECONDS)
    if grace <= least:
        text = f"{grace:g} s is not more than {DRAIN}, {least:g}"
        yield Finding(loc, text, f"write {least + 30:g}")
    outlives: Loc = ("spec", "rayClusterDeletionDelaySeconds")
    if _seconds(get(document.value, outlives), OUTLIVES) <= grace:
        yield Finding(outlives, f"a pod may take {grace:g} s to leave", f"write {grace + 60:g}")


def _seconds(value: Any, otherwise: float) -> float:
    """Return a number of seconds; the other where the value is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return otherwise
