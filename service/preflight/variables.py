"""The variables of a cluster's nodes, from an env file or a pod, against what is served there.

HAProxy must not fill before the queues behind it:

    MAXCONN >= (max_waiting_requests + 256) x replicas, of each application, + 256
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from service import settings
from service.cluster import ingress
from service.preflight import applications
from service.preflight.applications import Application
from service.preflight.finding import Finding, Grade
from service.settings import PREFIX, Settings
from service.wording.words import meant

ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
WHERE_IT_LIES = re.compile(r"\$\(command -v ([\w./-]+)\)")  # a program by the shell's search
# A node's own time to leave, which covers a replica's
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
THROUGHPUT = "RAY_SERVE_THROUGHPUT_OPTIMIZED"


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

    def finding(self, name: str, what: str, mend: str = "", grade: Grade = "FAIL") -> Finding:
        """Say something of one variable."""
        path = ".".join(filter(None, (self.base, name)))
        return Finding(path, what, mend, grade, self.file, self.lines.get(name, self.line))


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
    """Find what is wrong with a node's variables, by the applications that it may serve.

    Without any, what they say of deadline and drain is taken at its word.
    """
    served, wrong = _served(here, ours)
    if wrong:
        yield from wrong
        return
    promised: dict[str, str] = {}
    for each in served:
        promised |= ingress.promised(each)
    promised[ingress.CONNECTIONS] = str(room(ours))
    for name, must in promised.items():
        if not ingress.keeps(name, must, here.values.get(name, "")):
            yield _different(name, must, here, ours)
    yield from _open(here, served)
    yield from _node(here, served)


def room(ours: Sequence[Application]) -> int:
    """Return the connections that HAProxy needs, on each node, for all that is served."""
    queues = sum(map(applications.connections, ours)) or ingress.ongoing(Settings())
    return queues + ingress.SPARE_REQUESTS


def formula(ours: Sequence[Application]) -> str:
    """Return how that is worked out."""
    terms = [f"{ingress.ongoing(each.settings)} x {each.replicas[1]}" for each in ours]
    return " + ".join([*(terms or [f"{ingress.ongoing(Settings())} x 1"]), "256"])


def _served(here: Variables, ours: Sequence[Application]) -> tuple[list[Settings], list[Finding]]:
    """Return the settings of what is served, or those that the variables themselves imply."""
    if ours:
        return [each.settings for each in ours], []
    named = {name: value for name, value in here.values.items() if name.startswith(PREFIX)}
    try:
        return [settings.load(_implied(here), named)], []
    except ValidationError as error:
        wrong = [applications.fault(each) for each in error.errors()]
        return [], [here.finding(f"{PREFIX}{name.upper()}", text) for name, text in wrong]
    except ValueError as error:
        return [], [here.finding("", str(error))]


def _implied(here: Variables) -> dict[str, object]:
    """Work out the settings that a cluster's variables are made for."""
    deadline = _number(here, "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S", 35) - 5
    drain = _number(here, "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", 0)
    return {
        "deadline_seconds": min(max(deadline, 1), 600),
        "drain_seconds": min(max(drain, 0), 600),
    }


def _number(here: Variables, name: str, otherwise: float) -> float:
    try:
        return float(here.values.get(name, otherwise))
    except ValueError:
        return otherwise


def _different(name: str, must: str, here: Variables, ours: Sequence[Application]) -> Finding:
    """Say how a variable breaks the promise."""
    actual = here.values.get(name)
    has = "is not set" if actual is None else f"is {actual!r}"
    if name == ingress.CONNECTIONS:
        mend = f"write at least {must} = {formula(ours)}"
        return here.finding(name, f"{has}, but HAProxy must not fill first", mend)
    if name == ingress.FRONTED and here.values.get(THROUGHPUT) == "1":
        has = f"{has} beside {THROUGHPUT}=1, which sends all through the head"
        return here.finding(name, has, f"write {must}")
    if name == ingress.PROGRAM:
        return here.finding(name, f"{has}, but must be the path of {must}")
    others = here.values.keys() - ingress.clustered(Settings()).keys()
    strangers = [each for each in others if each.startswith("RAY_")]
    like = "" if actual is not None else meant(name, strangers).replace("did you mean", "is it")
    return here.finding(name, has, f"write {must!r}{like}")


def _open(here: Variables, served: Sequence[Settings]) -> Iterator[Finding]:
    """Find a cluster that anybody may command."""
    for name, must in ingress.AUTHENTICATED.items():
        closed = here.values.get(name) == must
        if not closed and not all(each.insecure_cluster for each in served):
            text = f"is not {must!r}: anyone who reaches Ray could run code"
            yield here.finding(name, text, f"write {name}={must}")


def _node(here: Variables, served: Sequence[Settings]) -> Iterator[Finding]:
    """Hold a node's time to leave against its replicas'; name what else ray.env sets."""
    least = max(map(ingress.shutdown_seconds, served))
    if _number(here, DRAIN, 0) < least:
        has = f"is {here.values.get(DRAIN, 'not set')}, but a replica may take {least:g} s to leave"
        yield here.finding(DRAIN, has, f"write {ingress.NODE_DRAIN_SECONDS:g}")
    every = ingress.clustered(served[0])
    useful = every.keys() - ingress.promised(served[0]).keys() - {DRAIN, *ingress.AUTHENTICATED}
    for name in sorted(useful - here.values.keys()):
        has = f"deploy/serve/ray.env has {every[name]}"
        yield here.finding(name, "is not set", has, "note")
