"""What a check finds, what a node reports, and which checks an entry point runs.

doctor    `headlight doctor`: all of this machine, right or wrong
serve     `headlight serve`: what Ray would wait for without end
join      `headlight serve --address`: the cluster that is joined
build     service.app:build, in a task of Ray's, before an old replica is touched
node      each node that may host a new replica, asked by build
replica   a replica on its own node, before it loads anything

machine.py      doctor serve            node
model.py        doctor serve            node
cluster.py             serve join build replica
serve_file.py   doctor
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.cluster.start_report import StartFailed

Entry = Literal["doctor", "serve", "join", "build", "node", "replica"]  # see above
Grade = Literal["ok", "note", "FAIL"]  # of a finding; see there
# Checks, which yield findings, and the entry points that run each
Checks = dict[Callable[..., Iterable["Finding"]], Collection[Entry]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Args:
        place: the part of the machine, or the key of a file; empty where `what` says it.
        what: what is wrong there, or what is there.
        mend: what to do about it; empty if there is nothing to do.
        grade: FAIL: nothing starts with it; note: right in some places, or slower.
    """

    place: str
    what: str
    mend: str = ""
    grade: Grade = "FAIL"

    @property
    def is_wrong(self) -> bool:
        """Tell whether it keeps everything from starting."""
        return self.grade == "FAIL"

    def __str__(self) -> str:
        text = f"{self.what}; {self.mend}" if self.mend else self.what
        return f"{self.place}: {text}" if self.place else text


class NodeReport(NamedTuple):
    """What a node says of itself before a replica starts there.

    Args:
        fault: why no replica can start there, in a sentence; None: one can.
        short: why there is no memory for one more, if there is none.
        digest: of the weights, where they were read whole.
    """

    fault: str | None = None
    short: str | None = None
    digest: str | None = None


def run(entry: Entry, checks: Checks, *subject: object) -> Iterator[Finding]:
    """Run the checks that apply to an entry point on a subject, and yield their findings."""
    for check, entries in checks.items():
        if entry in entries:
            yield from check(*subject)


def require(findings: Iterable[Finding]) -> None:
    """Check that no finding keeps the service from starting.

    Raises:
        StartFailed: some do; names them all in one line.
    """
    if faults := "; ".join(str(finding) for finding in findings if finding.is_wrong):
        raise StartFailed(faults)
