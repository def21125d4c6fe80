"""`headlight config check`: Serve files, RayServices and env files, before anything is sent.

Serve file    Ray's schema, strictly; our settings; options that must agree
RayService    the Serve file in it, and the pods around it: variables, time-outs
env file      the variables of a cluster's nodes, for the Serve files checked with it

Room in a RayService's pods is not counted here: Ray says in the application's status which
resources a replica waits for.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from service.cluster import ingress, network
from service.cluster.ingress import NODE_DRAIN
from service.preflight import schema, serve_file, variables
from service.preflight.applications import Application
from service.preflight.document import Document, Unreadable, documents, get
from service.preflight.finding import Finding
from service.preflight.variables import Variables
from service.wording.words import Loc, counted, listed, place

YAML = (".yaml", ".yml", ".json")
CONFIG: Loc = ("spec", "serveConfigV2")
CLUSTER: Loc = ("spec", "rayClusterConfig")
GRACE, OUTLIVES = 30, 60  # Kubernetes' own, and KubeRay's
# What was checked of a file, in words, and what was found
Looked = tuple[list[str], list[Finding]]
NOTHING = "nothing to check here: no `applications`, no RayService"


def check(paths: Sequence[Path]) -> tuple[list[Finding], list[str]]:
    """Check files together: Serve files against the variables of the env files among them.

    Returns:
        The findings, and for each correct file a line on what was checked.

    Raises:
        OSError: a file cannot be read.
    """
    nodes = {path: variables.parse(str(path), read(path)) for path in paths if not _yaml(path)}
    files = [_file(path, [here for here, _ in nodes.values()]) for path in paths if _yaml(path)]
    files += [_env(here, wrong, alone=not files) for here, wrong in nodes.values()]
    unique = dict[tuple[str, int, str], Finding]()  # pods may share a list of variables
    for each in (finding for _, findings in files for finding in findings):
        unique.setdefault((each.file, each.line, each.text), each)
    findings = sorted(unique.values(), key=lambda each: (each.file, each.line))
    wrong = {each.file for each in findings if each.wrong}
    right = [one for what, _ in files for one in what if one.partition(": ")[0] not in wrong]
    return findings, right


def read(path: Path) -> str:
    """Read a file's text.

    Raises:
        OSError: it cannot be read, or is not text.
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(f"{path} is not a text in UTF-8") from error


def _yaml(path: Path) -> bool:
    return path.suffix in YAML


def _file(path: Path, nodes: Sequence[Variables]) -> Looked:
    """Check the Serve files and RayServices of a file."""
    try:
        found = documents(str(path), read(path))
    except Unreadable as error:
        return [], [_unread(str(path), error)]
    services = [each for each in found if get(each.value, ("kind",)) == "RayService"]
    maps = {
        str(get(each.value, ("metadata", "name"))): get(each.value, ("data",), {})
        for each in found
        if get(each.value, ("kind",)) == "ConfigMap"
    }
    looked = [_service(each, maps) for each in services]
    looked += [  # what is no object of Kubernetes' is meant as a Serve file
        _alone(each, nodes)
        for each in found
        if isinstance(each.value, dict) and "kind" not in each.value
    ]
    if not looked:
        return [], [Finding("", NOTHING, file=str(path), line=1)]
    whats, findings = zip(*looked, strict=True)
    return [*chain(*whats)], [*chain(*findings)]


def _alone(document: Document, nodes: Sequence[Variables]) -> Looked:
    """Check a Serve file, for a cluster of each env file."""
    ours, findings = serve_file.read(document, {})
    for here in nodes:
        ours, findings = serve_file.read(document, here.values)
        if not any(finding.wrong for finding in findings):
            findings += variables.check(here, ours)
    return [f"{document.file}: ok: {_describe(ours)}"], findings


def _service(document: Document, maps: Mapping[str, Any]) -> Looked:
    """Check a RayService."""
    if not isinstance(get(document.value, CONFIG), str):
        found = Finding(CONFIG, "is missing: it holds the Serve file")
        return [], [document.locate(found)]
    try:
        inside = document.within(CONFIG)
    except Unreadable as error:
        return [], [_unread(document.file, error)]
    pods = list(_variables(document, maps))
    ours, findings = serve_file.read(inside, pods[0].values if pods else {})
    if not any(finding.wrong for finding in findings):
        around = _around(document, schema.plain(inside.value), ours)
        findings += map(document.locate, around)
        findings += [finding for here in pods for finding in variables.check(here, ours)]
    return [f"{document.file}: ok: {_describe(ours)}; its pods"], findings


def _env(here: Variables, wrong: list[Finding], alone: bool) -> Looked:
    """Check an env file; the Serve files checked with it say what its nodes have to carry."""
    findings = [*wrong, *(variables.check(here, []) if alone else ())]
    room = here.values.get(ingress.CONNECTIONS, "no bound on")
    what = f"{counted(len(here.values), 'variable')}, {room} connections"
    return [f"{here.file}: ok: {what}"], findings


def _pods(document: Document) -> list[Loc]:
    """Return the places of the pods: the head node's, and those of each group of workers."""
    workers = get(document.value, (*CLUSTER, "workerGroupSpecs"), [])
    groups: list[Loc] = [(*CLUSTER, "workerGroupSpecs", i) for i in range(len(workers))]
    return [(*CLUSTER, "headGroupSpec"), *groups]


def _variables(document: Document, maps: Mapping[str, Any]) -> Iterator[Variables]:
    """Read the variables of each pod.

    Args:
        maps: the ConfigMaps of the same file, by name.
    """
    for group in _pods(document):
        loc: Loc = (*group, "template", "spec", "containers", 0, "env")
        values, lines = dict[str, str](), dict[str, int]()
        for source in get(document.value, (*loc[:-1], "envFrom"), []):
            named = str(get(source, ("configMapRef", "name")))
            values |= {name: str(value) for name, value in get(maps, (named,), {}).items()}
        for index, each in enumerate(get(document.value, loc, [])):
            name = str(get(each, ("name",)))
            values[name] = str(get(each, ("value",)) or "")
            lines[name] = document.line((*loc, index))
        values |= ingress.AUTHENTICATED  # KubeRay's own part, see _around
        yield Variables(document.file, values, lines, document.line(loc), place(loc))


def _around(
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
    for group in _pods(document):
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
    for index, each in enumerate(get(document.value, loc, [])):
        number = get(each, ("containerPort",))
        if get(each, ("name",)) == "serve" and number != port:
            at = (*loc, index, "containerPort")
            yield Finding(at, f"{number} is not http_options.port", f"write {port}")


def _grace(document: Document, group: Loc) -> Iterator[Finding]:
    """Compare a pod's time to leave with its node's drain, and the cluster's with the pod's."""
    loc: Loc = (*group, "template", "spec", "terminationGracePeriodSeconds")
    grace = _seconds(get(document.value, loc), GRACE)
    env = get(document.value, (*loc[:-1], "containers", 0, "env"), [])
    drain = next((get(each, ("value",)) for each in env if get(each, ("name",)) == NODE_DRAIN), 0)
    least = max(_seconds(drain, 0), ingress.NODE_DRAIN_SECONDS)
    if grace <= least:
        text = f"{grace:g} s is not more than {NODE_DRAIN}, {least:g}"
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


def row(found: Finding) -> dict[str, Any]:
    """Write a finding for programs."""
    note = not found.wrong
    said = {"file": found.file, "line": found.line, "path": found.path, "text": found.text}
    return said | {"note": note}


def _unread(file: str, error: Unreadable) -> Finding:
    return Finding("", error.text, file=file, line=error.line)


def _describe(ours: Sequence[Application]) -> str:
    """Say what was checked in a Serve file, and what it needs from its nodes."""
    served = [f"{each.name} ({_replicas(each)} of {each.settings.model})" for each in ours]
    room = f"{ingress.CONNECTIONS} at least {variables.room(ours)}"
    checked = "keys, settings, time-outs, ports and replicas"
    return f"{checked} of {listed(served, 'and')}; {room}" if served else checked


def _replicas(ours: Application) -> str:
    few, most = ours.replicas
    return counted(most, "replica") if few == most else f"{few} to {counted(most, 'replica')}"
