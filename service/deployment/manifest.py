"""A RayService of Kubernetes: the Serve file in it, its pods' variables and their room."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.cluster import ingress, reach
from service.deployment.applications import Application
from service.deployment.capacity import Resources
from service.deployment.document import Document
from service.deployment.faults import Fault
from service.deployment.variables import DRAIN, Variables
from service.wording.fault import Loc
from service.wording.words import place

CONFIG: Loc = ("spec", "serveConfigV2")
CLUSTER: Loc = ("spec", "rayClusterConfig")
SUFFIXES = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SUFFIXES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)(m|[kMGT]|[KMGT]i|)$")
GPU = "nvidia.com/gpu"
MOST_NODES = 10_000  # of a group that are counted, which is more than Ray itself carries


def pods(document: Document) -> list[Loc]:
    """Return the places of the pods: the head's, and those of each group of workers."""
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
        yield _variables(document, loc, fields(document.value, loc[:-1]), maps)


def _variables(
    document: Document, loc: Loc, container: Mapping[str, Any], maps: Mapping[str, Any]
) -> Variables:
    values, lines = dict[str, str](), dict[str, int]()
    for source in entries(container, ("envFrom",)):
        named = str(get(source, ("configMapRef", "name")))
        values |= {name: str(value) for name, value in fields(maps, (named,)).items()}
    for index, each in enumerate(entries(container, ("env",))):
        name = str(get(each, ("name",)))
        values[name] = str(get(each, ("value",)) or "")
        lines[name] = document.line((*loc, index))
    values |= ingress.AUTHENTICATED  # KubeRay's own part, see check
    return Variables(document.file, values, lines, document.line(loc), place(loc))


def nodes(document: Document) -> list[Resources]:
    """Return what each pod has that there may be, as Ray counts it."""
    found = []
    for group in pods(document):
        spec = fields(document.value, group)
        count = 1 if "headGroupSpec" in group else quantity(spec.get("maxReplicas"))
        found += [_resources(spec)] * int(min(count, MOST_NODES))
    return found


def _resources(group: Mapping[str, Any]) -> Resources:
    """What a pod has: by rayStartParams, or else by its container's limits."""
    limits = fields(group, ("template", "spec", "containers", 0, "resources", "limits"))
    starts = fields(group, ("rayStartParams",))
    told = {"CPU": starts.get("num-cpus"), "GPU": starts.get("num-gpus")}
    told |= {"memory": starts.get("memory")}
    named = {"CPU": "cpu", "GPU": GPU, "memory": "memory"}
    return {
        name: quantity(limits.get(named[name]) if value is None else value)
        for name, value in told.items()
    }


def quantity(value: Any, otherwise: float = 0) -> float:
    """Return a quantity of Kubernetes' as a number: 250m, 8Gi; another where it is none."""
    match = QUANTITY.match(str(value))
    return float(match[1]) * SUFFIXES[match[2]] if match else otherwise


def check(
    document: Document, serve: Mapping[str, Any], ours: Sequence[Application]
) -> Iterator[Fault]:
    """Find what is wrong between the Serve file and the pods around it.

    Args:
        serve: the file in it as schema.plain has it.
    """
    options = serve.get("http_options", {})
    if reach.loopback(str(options.get("host", ""))):
        yield Fault(CONFIG, f"host {options['host']}: no other pod reaches it; write 0.0.0.0")
    if serve.get("proxy_location") == "HeadOnly" and get(
        document.value, ("spec", "excludeHeadPodFromServeSvc")
    ):
        yield Fault(CONFIG, "proxy_location HeadOnly: the Service leaves the head out")
    for group in pods(document):
        yield from _ports(document, group, options.get("port", 8000))
        yield from _grace(document, group)
    if get(document.value, (*CLUSTER, "authOptions", "mode")) != "token" and not all(
        each.settings.insecure_cluster for each in ours
    ):
        text = "whoever reaches Ray could run code; write authOptions: {mode: token}"
        yield Fault((*CLUSTER, "authOptions"), text)


def _ports(document: Document, group: Loc, port: int) -> Iterator[Fault]:
    """KubeRay asks the port named serve whether a pod serves."""
    loc: Loc = (*group, "template", "spec", "containers", 0, "ports")
    for index, each in enumerate(entries(document.value, loc)):
        named, number = get(each, ("name",)), get(each, ("containerPort",))
        if named == "serve" and number != port:
            text = f"{number} is not http_options.port; write {port}"
            yield Fault((*loc, index, "containerPort"), text)
        elif named != "serve" and number == port:
            yield Fault((*loc, index, "containerPort"), f"{port} is http_options.port already")


def _grace(document: Document, group: Loc) -> Iterator[Fault]:
    """A cluster outlives its pods, and a pod its node's drain."""
    loc: Loc = (*group, "template", "spec", "terminationGracePeriodSeconds")
    grace = quantity(get(document.value, loc), 30)  # Kubernetes' own
    env = entries(document.value, (*loc[:-1], "containers", 0, "env"))
    drain = next((get(each, ("value",)) for each in env if get(each, ("name",)) == DRAIN), 0)
    least = max(quantity(drain), ingress.NODE_DRAIN_SECONDS)
    if grace <= least:
        yield Fault(loc, f"{grace:g} s is not more than {DRAIN}, {least:g}; write {least + 30:g}")
    outlives: Loc = ("spec", "rayClusterDeletionDelaySeconds")
    if quantity(get(document.value, outlives), 60) <= grace:  # KubeRay's own
        text = f"a pod may take {grace:g} s to leave; write {grace + 60:g}"
        yield Fault(outlives, text)


def get(value: Any, loc: Loc) -> Any:
    """Return what stands at a place, None where nothing does."""
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def fields(value: Any, loc: Loc) -> dict[str, Any]:
    """Return the mapping at a place, empty where there is none."""
    found = get(value, loc)
    return found if isinstance(found, dict) else {}


def entries(value: Any, loc: Loc) -> list[Any]:
    """Return the list at a place, empty where there is none."""
    found = get(value, loc)
    return found if isinstance(found, list) else []
