"""`headlight doctor`: everything that a start needs of this machine, a line each.

ok    as it must be
note  the service starts, and would be faster or safer otherwise; says what to do
FAIL  the service cannot start; says what to do
"""

from collections.abc import Iterator

from service.preflight import machine
from service.preflight.finding import Finding, run
from service.settings import Settings


def findings(settings: Settings) -> Iterator[Finding]:
    """Look at one thing after the other; end with what `headlight serve` would refuse."""
    found = list(run("doctor", machine.CHECKS, settings))
    if not found[-1].wrong:  # torch's, without which nothing more can be looked at
        from service.preflight import model

        found += [*run("doctor", machine.WITH_TORCH, settings), *model.find(settings)]
        if not any(each.wrong for each in found):
            found.append(Finding("settings", "fit this machine", grade="ok"))
    yield from found


def line(found: Finding) -> str:
    """Write a finding for people."""
    text = f"{found.grade:4}  {found.path or 'settings':14}  {found.what}"
    return f"{text}: {found.mend}" if found.mend else text


def row(found: Finding) -> dict[str, str]:
    """Write a finding for programs."""
    place = found.path or "settings"
    return {"grade": found.grade, "what": place, "fact": found.what, "remedy": found.mend}
