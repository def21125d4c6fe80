"""The variables of a cluster's nodes, from an env file or a pod, against what is served there.

HAProxy must not fill before the queues behind it:

    MAXCONN >= (max_waiting_requests + 256) x replicas, of each application, + 256
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from service import settings
from service.cluster import ingress
from service.deployment import faults
from service.deployment.applications import Application
from service.deployment.faults import Finding
from service.settings import PREFIX, Settings
from service.wording.words import meant

ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
WHERE_IT_LIES = re.compile(r"\$\(command -v ([\w./-]+)\)")  # a program by the shell's search
SERVE = re.compile(r"\bRAY_SERVE_[A-Z0-9_]+")  # a variable of Ray Serve's
# A node's own time to leave, which covers a replica's
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
HAPROXY, THROUGHPUT = "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"


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

    def finding(self, name: str, text: str, note: bool = False) -> Finding:
        """Say something of one variable."""
        path = ".".join(filter(None, (self.base, name)))
        return Finding(self.file, self.lines.get(name, self.line), path, text, note)


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
            wrong.append(Finding(file, number, "", "not a variable; write NAME=value"))
            continue
        found.values[match[1]] = WHERE_IT_LIES.sub(r"\1", value)
        found.lines[match[1]] = number
    return found, wrong


def check(here: Variables, ours: Sequence[Application]) -> Iterator[Finding]:
    """Find what is wrong with a node's variables, by the applications that it may serve.

    Without any, what they say of deadline and drain is taken at its word.
    """
    yield from _unknown(here)
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
            yield here.finding(name, _different(name, must, here, ours))
    yield from _open(here, served)
    yield from _node(here, served)


def room(ours: Sequence[Application]) -> int:
    """Return the connections that HAProxy needs, on each node, for all that is served."""
    queues = sum(each.connections for each in ours) or ingress.ongoing(Settings())
    return queues + ingress.SPARE_REQUESTS


def formula(ours: Sequence[Application]) -> str:
    """Return how that is worked out."""
    terms = [f"{ingress.ongoing(each.settings)} x {each.replicas[1]}" for each in ours]
    return " + ".join([*(terms or [f"{ingress.ongoing(Settings())} x 1"]), "256"])


def _served(here: Variables, ours: Sequence[Application]) -> tuple[list[Settings], list[Finding]]:
    """The settings of what is served, or those that the variables themselves imply."""
    if ours:
        return [each.settings for each in ours], []
    named = {name: value for name, value in here.values.items() if name.startswith(PREFIX)}
    try:
        return [settings.load(_implied(here), named)], []
    except ValidationError as error:
        wrong = [faults.setting(each) for each in error.errors()]
        return [], [here.finding(f"{PREFIX}{name.upper()}", text) for name, text in wrong]
    except ValueError as error:
        return [], [here.finding("", str(error))]


def _implied(here: Variables) -> dict[str, object]:
    """The settings that a cluster's variables are made for."""
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


def _different(name: str, must: str, here: Variables, ours: Sequence[Application]) -> str:
    """How a variable breaks the promise."""
    actual = here.values.get(name)
    has = "is not set" if actual is None else f"is {actual!r}"
    if name == ingress.CONNECTIONS:
        return f"{has}, but HAProxy must not fill first; write at least {must} = {formula(ours)}"
    if name == HAPROXY and here.values.get(THROUGHPUT) == "1":
        return f"{has} beside {THROUGHPUT}=1, which sends all through the head; write {must}"
    if name == ingress.PROGRAM:
        return f"{has}, but must be the path of {must}"
    like = "" if actual is not None else meant(name, _strangers(here))
    return f"{has}; write {must!r}{like.replace('did you mean', 'is it')}"


def _strangers(here: Variables) -> list[str]:
    """Variables of Ray's that we do not set ourselves."""
    ours = ingress.clustered(Settings())
    return [name for name in here.values if name.startswith("RAY_") and name not in ours]


def _unknown(here: Variables) -> Iterator[Finding]:
    """Variables of Ray Serve's that there are not: a typo, which Ray ignores."""
    others = [name for name in _strangers(here) if SERVE.fullmatch(name)]
    known = names() if others else frozenset()
    for name in others:
        if name not in known:
            near = max(known, key=lambda one: _alike(name, one))
            yield here.finding(name, f"Ray knows no such variable; did you mean {near}?")


def _alike(name: str, other: str) -> int:
    """Words that two names share."""
    return len({*name.split("_")} & {*other.split("_")})


def names() -> frozenset[str]:
    """Return the variables that Ray Serve reads, which its constants name."""
    spec = find_spec("ray.serve._private")
    folder = Path((spec.submodule_search_locations or [""])[0]) if spec else Path()
    texts = (path.read_text() for path in folder.rglob("*.py"))
    return frozenset(name for text in texts for name in SERVE.findall(text))


def _open(here: Variables, served: Sequence[Settings]) -> Iterator[Finding]:
    """A cluster that anybody may command."""
    if all(each.insecure_cluster for each in served):
        return
    for name, must in ingress.AUTHENTICATED.items():
        if here.values.get(name) != must:
            text = "whoever reaches Ray could run code; write"
            yield here.finding(name, f"is not {must!r}: {text} {name}={must}")


def _node(here: Variables, served: Sequence[Settings]) -> Iterator[Finding]:
    """A node leaves after its replicas; and what else ray.env sets is worth having."""
    least = max(map(ingress.shutdown_seconds, served))
    if _number(here, DRAIN, 0) < least:
        has = here.values.get(DRAIN, "not set")
        text = f"a replica may take {least:g} s to leave; write {ingress.NODE_DRAIN_SECONDS:g}"
        yield here.finding(DRAIN, f"is {has}, but {text}")
    useful = ingress.clustered(served[0]).keys() - ingress.promised(served[0]).keys()
    for name in sorted(useful - {DRAIN, *ingress.AUTHENTICATED} - here.values.keys()):
        value = ingress.clustered(served[0])[name]
        yield here.finding(name, f"is not set; deploy/serve/ray.env has {value}", note=True)
