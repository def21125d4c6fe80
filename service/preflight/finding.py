"""One thing that a check finds, how it is worded, and which checks an entry point runs.

doctor    `headlight doctor`: all of this machine, right or wrong
serve     `headlight serve`: what Ray would wait for in vain
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
from typing import Literal

from service.cluster.progress import StartFailed

Entry = Literal["doctor", "serve", "join", "build", "node", "replica"]
Grade = Literal["ok", "note", "FAIL"]
Checks = dict[Callable[..., Iterable["Finding"]], Collection[Entry]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    Args:
        place: the part of the machine, or the key of a file; empty where `what` says it.
        what: what is wrong there, or what is there.
        mend: what to do about it; empty if nothing.
        grade: FAIL: nothing starts with it; note: right in some places, or slower.
    """

    place: str
    what: str
    mend: str = ""
    grade: Grade = "FAIL"

    @property
    def wrong(self) -> bool:
        """Tell whether it keeps everything from starting."""
        return self.grade == "FAIL"

    def __str__(self) -> str:
        text = f"{self.what}; {self.mend}" if self.mend else self.what
        return f"{self.place}: {text}" if self.place else text


def run(entry: Entry, checks: Checks, *subject: object) -> Iterator[Finding]:
    """Run those of some checks that apply to an entry point."""
    for check, entries in checks.items():
        if entry in entries:
            yield from check(*subject)


def require(findings: Iterable[Finding]) -> None:
    """Ensure that nothing is wrong.

    Raises:
        StartFailed: something is; names all of it in one line.
    """
    if wrong := "; ".join(str(each) for each in findings if each.wrong):
        raise StartFailed(wrong)
