"""`headlight config check`: Serve files, RayServices and env files, before anything is sent.

Serve file    Ray's schema, strictly; our settings; options that must agree
RayService    the Serve file in it, and the pods around it: variables, time-outs
env file      the variables of a cluster's nodes, for the Serve files checked with it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cluster import ingress
from service.preflight import manifest, schema, serve_file, variables
from service.preflight.applications import Application
from service.preflight.document import Document, Unreadable, documents, fields, get
from service.preflight.finding import Finding
from service.preflight.variables import Variables
from service.wording.words import counted, listed

YAML = (".yaml", ".yml", ".json")
NOTHING = "nothing to check here: no `applications`, no RayService"


@dataclass(frozen=True)
class Looked:
    """The parts of a file that were checked, in words, and the findings."""

    what: list[str]
    findings: list[Finding]


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
    for each in (finding for file in files for finding in file.findings):
        unique.setdefault((each.file, each.line, each.text), each)
    findings = sorted(unique.values(), key=lambda each: (each.file, each.line))
    wrong = {each.file for each in findings if each.wrong}
    right = [what for file in files for what in file.what if what.partition(": ")[0] not in wrong]
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


def is_serve(document: Document) -> bool:
    """Tell whether a document is meant as a Serve file: it is not a Kubernetes object."""
    return isinstance(document.value, dict) and "kind" not in document.value


def _yaml(path: Path) -> bool:
    return path.suffix in YAML


def _file(path: Path, nodes: Sequence[Variables]) -> Looked:
    """Check the Serve files and RayServices of a file."""
    try:
        found = documents(str(path), read(path))
    except Unreadable as error:
        return Looked([], [_unread(str(path), error)])
    services = [each for each in found if get(each.value, ("kind",)) == "RayService"]
    maps = {
        str(get(each.value, ("metadata", "name"))): fields(each.value, ("data",))
        for each in found
        if get(each.value, ("kind",)) == "ConfigMap"
    }
    looked = [_service(each, maps) for each in services]
    looked += [_alone(each, nodes) for each in found if is_serve(each)]
    if not looked:
        return Looked([], [Finding("", NOTHING, file=str(path), line=1)])
    what = [what for each in looked for what in each.what]
    return Looked(what, [finding for each in looked for finding in each.findings])


def _alone(document: Document, nodes: Sequence[Variables]) -> Looked:
    """Check a Serve file, for a cluster of each env file."""
    ours, findings = serve_file.read(document, {})
    for here in nodes:
        ours, findings = serve_file.read(document, here.values)
        if not any(finding.wrong for finding in findings):
            findings += variables.check(here, ours)
    return Looked([f"{document.file}: ok: {_said(ours)}"], findings)


def _service(document: Document, maps: Mapping[str, Any]) -> Looked:
    """Check a RayService."""
    if not isinstance(get(document.value, manifest.CONFIG), str):
        found = Finding(manifest.CONFIG, "is missing: it holds the Serve file")
        return Looked([], [document.locate(found)])
    try:
        inside = document.within(manifest.CONFIG)
    except Unreadable as error:
        return Looked([], [_unread(document.file, error)])
    pods = list(manifest.variables(document, maps))
    ours, findings = serve_file.read(inside, pods[0].values if pods else {})
    if not any(finding.wrong for finding in findings):
        around = manifest.check(document, schema.plain(inside.value), ours)
        findings += map(document.locate, around)
        findings += [finding for here in pods for finding in variables.check(here, ours)]
    return Looked([f"{document.file}: ok: {_said(ours)}; its pods"], findings)


def _env(here: Variables, wrong: list[Finding], alone: bool) -> Looked:
    """Check an env file; the Serve files checked with it say what its nodes have to carry."""
    findings = [*wrong, *(variables.check(here, []) if alone else ())]
    room = here.values.get(ingress.CONNECTIONS, "no bound on")
    what = f"{counted(len(here.values), 'variable')}, {room} connections"
    return Looked([f"{here.file}: ok: {what}"], findings)


def row(found: Finding) -> dict[str, Any]:
    """Write a finding for programs."""
    note = not found.wrong
    said = {"file": found.file, "line": found.line, "path": found.path, "text": found.text}
    return said | {"note": note}


def _unread(file: str, error: Unreadable) -> Finding:
    return Finding("", error.text, file=file, line=error.line)


def _said(ours: Sequence[Application]) -> str:
    """Say what was checked in a Serve file, and what it needs from its nodes."""
    served = [f"{each.name} ({_replicas(each)} of {each.settings.model})" for each in ours]
    room = f"{ingress.CONNECTIONS} at least {variables.room(ours)}"
    checked = "keys, settings, time-outs, ports and replicas"
    return f"{checked} of {listed(served, 'and')}; {room}" if served else checked


def _replicas(ours: Application) -> str:
    few, most = ours.replicas
    return counted(most, "replica") if few == most else f"{few} to {counted(most, 'replica')}"
