"""A refusal in words: where it is, what is expected there, what came; as RFC 9457 has it."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from service.refusals import MOST_ERRORS, REFUSALS, Refused
from service.wording.fault import Fault, Loc
from service.wording.words import capitalised, change, ended, listed, place

MOST_DETAILS = 3  # faults that are put into words
MOST_BYTES = 4096


def problem(refused: Refused, request_id: str) -> bytes:
    """The body of a refusal, at most MOST_BYTES."""
    kind = REFUSALS[refused.code]
    for most in range(min(len(refused.faults), MOST_ERRORS), -1, -1):
        faults = refused.faults[:most]
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": kind.title,
            "status": kind.status,
            "code": refused.code,
            "detail": sentence(refused, faults),
            "request_id": request_id,
            **refused.facts,
        }
        if faults:
            body["errors"] = [{"loc": fault.loc, "code": fault.code} for fault in faults]
        told = orjson.dumps(body)
        if len(told) <= MOST_BYTES:
            break
    return told


def sentence(refused: Refused, faults: Sequence[Fault], where: Callable[[Loc], str] = place) -> str:
    """A refusal for people: where it is, what is expected there, what came, and what would fit.

    Args:
        faults: those that are told; the first few are put into words.
        where: how an API writes a place.
    """
    kind, facts = REFUSALS[refused.code], refused.facts
    numbers = refused.detail or (kind.detail.format(**facts) if facts else "")
    each = [_told(where(f.loc), f.detail or numbers, f.code) for f in faults[:MOST_DETAILS]]
    told = [*dict.fromkeys(each)] or [kind.title, ended(capitalised(numbers))]
    if len(faults) > MOST_DETAILS:
        told.append(f"The errors name {len(faults) - MOST_DETAILS} more.")
    if fits := facts.get("fits"):
        told.append(f"What fits: {listed(map(change, fits))}.")
    if refused.retry_after:
        told.append(f"Try again in {refused.retry_after} s.")
    return " ".join(filter(None, told))


def _told(where: str, detail: str, code: str) -> str:
    """One fault; where nothing more is known of it, what all of its kind are."""
    title = REFUSALS[code].title
    if not detail:
        return f"{where}: {title}" if where else title
    return f"{where}: {ended(detail)}" if where else ended(capitalised(detail))
