"""The variables of a node: what its processes were started with, an env file or a pod has.

HAProxy must not fill before the queues behind it:

    MAXCONN >= (max_waiting_requests + 256) x replicas, of each application, + 256
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from service import settings
from service.cluster import ingress
from service.cluster.ingress import NODE_DRAIN
from service.cluster.progress import StartFailed
from service.preflight import applications
from service.preflight.applications import Application
from service.preflight.finding import Finding
from service.settings import PREFIX, Settings

ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
WHERE_IT_LIES = re.compile(r"\$\(command -v ([\w./-]+)\)")  # a program by the shell's search
# What follows from the settings of what is served, which an env file alone does not say
FOLLOWS = {ingress.SERVER_TIMEOUT, ingress.HARD_STOP, ingress.REPLICA_DRAIN}


def hold(settings: Settings, actual: Mapping[str, str], node: str = "this cluster") -> None:
    """Ensure that Ray's processes on a node were started with what the promise needs.

    Raises:
        StartFailed: they were not, or the cluster is open to anyone who reaches it.
    """
    if found := "; ".join(map(str, differences(promised(settings), actual))):
        raise StartFailed(f"{node} cannot serve: {found}")


def promised(settings: Settings) -> dict[str, str]:
    """Return what a cluster's variables must be for some settings."""
    closed = {} if settings.insecure_cluster else ingress.AUTHENTICATED
    return ingress.promised(settings) | closed


def differences(promised: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[Finding]:
    """Find each variable that breaks the promise."""
    for name, must in promised.items():
        if not _keeps(name, must, actual.get(name, "")):
            what = f"is {actual[name]!r}" if name in actual else "is not set"
            mend = f"must be {'at least ' * (name == ingress.CONNECTIONS)}{must}"
            if name in ingress.AUTHENTICATED:
                mend = f"anyone who reaches Ray could run code: {mend}, or set insecure_cluster"
            yield Finding(name, what, mend)


def _keeps(name: str, must: str, actual: str) -> bool:
    """Tell whether a variable, empty where it is not set, keeps the promise."""
    if name == ingress.PROGRAM:
        return Path(actual).name == must  # where it lies is the image's business
    if name == ingress.CONNECTIONS:
        return actual.isdecimal() and int(actual) >= int(must)  # other models have their share
    return actual == must


@dataclass(frozen=True)
class Variables:
    """The variables with which a node starts.

    Args:
        file: where they stand.
        values: each as a process reads it; a shell's expansions are left as they are.
        lines: of each.
        line: of all.
        base: the path in the file that leads to them.
    """

    file: str
    values: dict[str, str]
    lines: dict[str, int]
    line: int = 1
    base: str = ""

    def locate(self, found: Finding) -> Finding:
        """Return a finding of a variable with its line."""
        line = self.lines.get(found.path, self.line)
        path = ".".join(filter(None, (self.base, found.path)))
        return replace(found, place=path, file=self.file, line=line)


def parse(file: str, text: str) -> tuple[Variables, list[Finding]]:
    """Read an env file, as a shell and docker read it: one NAME=value a line."""
    found, wrong = Variables(file, {}, {}), list[Finding]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = ASSIGNMENT.match(line.strip())
        try:
            value = "".join(shlex.split(match[2])) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            mend = "write NAME=value"
            wrong.append(Finding("", "not a variable", mend, file=file, line=number))
            continue
        found.values[match[1]] = WHERE_IT_LIES.sub(r"\1", value)
        found.lines[match[1]] = number
    return found, wrong


def check(here: Variables, ours: Sequence[Application]) -> Iterator[Finding]:
    """Find what is wrong with a node's variables, by the applications that it may serve."""
    yield from map(here.locate, _wrong(here.values, ours))


def _wrong(values: Mapping[str, str], ours: Sequence[Application]) -> Iterator[Finding]:
    served = [each.settings for each in ours]
    if not ours:
        named = {name: value for name, value in values.items() if name.startswith(PREFIX)}
        try:
            served = [settings.load({}, named)]
        except ValidationError as error:
            wrong = [applications.fault(each) for each in error.errors()]
            yield from (Finding(f"{PREFIX}{name.upper()}", text) for name, text in wrong)
            return
        except ValueError as error:
            yield Finding("", str(error))
            return
    must = {name: value for each in served for name, value in promised(each).items()}
    must[ingress.CONNECTIONS] = str(room(ours))
    for name in FOLLOWS if not ours else ():
        del must[name]
    yield from differences(must, values)
    least = max(map(ingress.shutdown_seconds, served))
    if not values.get(NODE_DRAIN, "").isdecimal() or int(values[NODE_DRAIN]) < least:
        has = f"is {values.get(NODE_DRAIN, 'not set')}, but a replica may take {least:g} s to leave"
        yield Finding(NODE_DRAIN, has, f"write {ingress.NODE_DRAIN_SECONDS:g}")
    every = ingress.clustered(served[0])
    for name in sorted(every.keys() - promised(served[0]).keys() - values.keys() - {NODE_DRAIN}):
        mend = f"deploy/serve/ray.env has {every[name]}"
        yield Finding(name, "is not set", mend, "note")


def room(ours: Sequence[Application]) -> int:
    """Return the connections that HAProxy needs, on each node, for all that is served."""
    queues = (ingress.ongoing(each.settings) * each.replicas[1] for each in ours)
    return (sum(queues) or ingress.ongoing(Settings())) + ingress.SPARE_REQUESTS
