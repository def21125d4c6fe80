"""What carries each document's score, as it is answered: the strongest units, and controls."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from service.encode.answer import Item
from service.encode.evidence import Evidence, Found
from service.encode.interventions import Outcome
from service.encode.passage import Passage
from service.encode.plan import Plan
from service.encode.price import Price
from service.encode.request import Highlight, Request

DOCUMENT_BYTES, UNIT_BYTES = 200, 100  # of what is said of each, without its text
COPIES = 2  # of a document's text: what is shown of it, and what is left of it


class Highlights:
    """Ends requests with the evidence of each document."""

    def check(self, request: Request) -> None:
        """Let every request pass."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh."""
        course, size = _course(plan), 0
        for one in course.passages:
            shown = min(course.asked.top, len(one.spans))
            size += DOCUMENT_BYTES + UNIT_BYTES * shown + COPIES * len(one.text.encode())
        return Price({"shares": size}, request.layout, plan.held)

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered of each document, best first; of equal ones the first."""
        course = _course(plan)
        works = course.works[-len(course.passages) :]
        known = zip(works, course.passages, course.found, course.lacking, strict=True)
        items = [
            Item(
                len(work),
                {
                    "index": index,
                    "score": found.score,
                    "method": course.method,
                    **_told(course.asked, one, found, lacking),
                    "truncated": work.truncated,
                    "length": work.length,
                },
            )
            for index, (work, one, found, lacking) in enumerate(known)
        ]
        return sorted(items, key=lambda item: -item.facts["score"])


def _course(plan: Plan) -> Evidence:
    if not isinstance(plan.course, Evidence):
        raise RuntimeError("another ending's request: this is a bug")
    return plan.course


def _told(asked: Highlight, one: Passage, found: Found, lacking: Sequence[float]) -> dict[str, Any]:
    """Return what is answered of one document.

    Args:
        lacking: its score without the strongest units, then without random others.
    """
    told: dict[str, Any] = {
        "highlights": [
            {
                "characters": one.spans[unit],
                "text": one.text[slice(*one.spans[unit])],
                "share": found.shares[unit],
                "units": one.numbers[unit],
            }
            for unit in found.strongest
        ],
        "rest": found.rest,
        "without": lacking[0] if lacking else None,
        "control": None,
    }
    if random := lacking[1:]:
        told["control"] = {"without_random": fmean(random), "deviation": stdev(random)}
    if asked.prune is not None:
        told["pruned"] = pruned(one, found.order, asked.prune)
    return told


def pruned(one: Passage, order: Iterable[int], share: float) -> str:
    """Return the strongest units of a document in its own order, and all else left out.

    Args:
        order: all units, strongest first; they are taken until one does not fit, and one at least.
        share: of the characters that were read.
    """
    room, kept, spans = share * (one.stop - one.start), set[int](), one.spans
    for unit in order:
        end = spans[unit + 1][0] if unit + 1 < len(spans) else one.stop
        room -= end - spans[unit][0]
        if kept and room < 0:
            break
        kept.add(unit)
    return one.without({*range(len(spans))} - kept).strip()
