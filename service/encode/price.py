"""What an answer weighs, known before it is computed, and what would fit."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from service.encode.request import PARTS, Layout, Part, Request
from service.refusals import Refused

TEXT_BYTES = 3  # of JSON for a byte of float32, in the mean; base64 takes 4 for 3
TEXT: frozenset[Part] = frozenset({"sweep"})  # JSON numbers, however arrays are written
HALF, SINGLE, DOUBLE = 2, 4, 8  # bytes of a float16, of a float32 and of a float64

Offer = dict[str, Any]  # a change to the request, and the bytes that it comes to then
Offers = Callable[[Collection[Part], int], list[Offer]]  # by what is too large, and its limit


class Price:
    """What an answer weighs, in bytes.

    Args:
        parts: of the raw arrays of the whole answer.
        layout: how they are written.
        held: beside them, until the answer is written or while it is made.
    """

    __slots__ = ("_layout", "_text", "held", "parts", "total")

    def __init__(self, parts: Mapping[Part, int], layout: Layout, held: int = 0) -> None:
        self.parts, self.held, self._layout = parts, held, layout
        self._text: Collection[Part] = TEXT.union(layout.numbers)
        self.total = sum(parts.values())

    @property
    def made(self) -> int:
        """Bytes of the arrays that it holds until its answer is written, and while it is made."""
        return self.total + self.held

    @property
    def written(self) -> int:
        """About how many bytes they are as they are written."""
        text = self.of(self._text)
        return TEXT_BYTES * text + (self.total - text) * 4 // 3

    def of(self, parts: Collection[Part]) -> int:
        """Return the bytes of some parts."""
        return sum([size for part, size in self.parts.items() if part in parts])

    def check(self, most_json: int, most: int, offers: Offers) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Args:
            most_json: bytes of arrays as JSON numbers, and most: of all.
            offers: makes changes to the request; those that would fit are told.

        Raises:
            Refused: with the bytes, the limit, and changes to the request each of which would fit.
        """
        if self.total <= most_json and self.total <= most:
            return
        for parts, limit in ((self._text, most_json), (PARTS, most)):
            if (size := self.of(parts)) > limit:
                fitting = [offer for offer in offers(parts, limit) if offer["bytes"] <= limit]
                fits = sorted(fitting, key=lambda offer: int(offer["bytes"]))
                if self.total <= most:
                    fits += map(dict, self._layout.compact)
                code, attention = "answer_too_large", self.parts.get("attention", 0)
                if "attention" in parts and attention > limit:
                    code, size = "attention_too_large", attention
                raise Refused(code, bytes=size, limit=limit, fits=fits)


def number(request: Request) -> int:
    """Return the bytes of a number outside attention, which has its own."""
    return HALF if request.dtype == "float16" else SINGLE
