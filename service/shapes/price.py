"""How an answer's arrays are written, and the memory that they take."""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, get_args

from service.tables.refusals import Refused

# The parts of an answer that are arrays, or that many numbers
Part = Literal[
    "pooled", "tokens", "layers", "attention", "task", "sweep", "shares", "matches", "steps"
]


PARTS: frozenset[Part] = frozenset(get_args(Part))


class Layout(NamedTuple):
    """How an answer's arrays are written, which its price depends on.

    Args:
        numbers: the parts that are JSON numbers; the others come as bytes.
        padded: whether sequences are padded to the longest.
        times: how often the arrays are written, on average.
        extra_bytes: written in addition to the arrays.
        named: whether each array stands by its name in the header of a file.
    """

    numbers: Collection[Part] = PARTS
    padded: bool = False
    times: float = 1.0
    extra_bytes: int = 0
    named: bool = False


TEXT_BYTES = 3  # of JSON for a byte of float32, on average; base64 takes 4 bytes for 3


TEXT_PARTS: frozenset[Part] = frozenset({"sweep"})  # JSON numbers, however arrays are written


MOST_ARRAYS = 100_000  # of an answer that is a file, whose header names each


# Bytes of one of these, besides its numbers: in the header, and of the objects that hold it, as
# tests/service/pipeline/write/test_answer.py measures them
NAMED_BYTES, ARRAY_BYTES = 100, 420


class Price:
    """The memory that an answer's arrays take, in bytes.

    Args:
        parts: bytes of the arrays in each part of the answer.
        layout: how the arrays are written.
        held: bytes held besides them while the answer is made and written.
        arrays: how many there are.

    Attributes:
        total: bytes of all arrays.
        made: `total`, `held` and, in a file, the objects that hold the arrays.
        written: about how many bytes the written answer has.
    """

    __slots__ = ("_named", "_text", "made", "parts", "total", "written")

    def __init__(
        self, parts: Mapping[Part, int], layout: Layout, held: int = 0, arrays: int = 0
    ) -> None:
        self.parts, self._named = parts, arrays if layout.named else 0
        self._text: Collection[Part] = TEXT_PARTS.union(layout.numbers)
        total = text = 0
        for part, size in parts.items():
            total += size
            if part in self._text:
                text += size
        self.total, self.made = total, total + held + ARRAY_BYTES * self._named
        written = TEXT_BYTES * text + (total - text) * 4 // 3 + NAMED_BYTES * self._named
        self.written = round(layout.times * written) + layout.extra_bytes

    def of(self, parts: Collection[Part]) -> int:
        """Return the bytes of the arrays in some parts."""
        return sum([size for part, size in self.parts.items() if part in parts])

    def check(self, most_json: int, most: int) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Args:
            most_json: most bytes of arrays that are written as JSON numbers.
            most: most bytes of all arrays.

        Raises:
            Refused: it names the bytes, or the number of arrays in a file, and the limit.
        """
        if self._named > MOST_ARRAYS:
            detail = f"a file would hold {self._named:,} arrays, and the limit is {MOST_ARRAYS:,}"
            raise Refused("answer_too_large", detail=detail, limit=MOST_ARRAYS)
        if self.total <= most_json and self.total <= most:
            return
        for parts, limit in ((self._text, most_json), (PARTS, most)):
            if (size := self.of(parts)) > limit:
                code, attention = "answer_too_large", self.parts.get("attention", 0)
                if "attention" in parts and attention > limit:
                    code, size = "attention_too_large", attention
                raise Refused(code, bytes=size, limit=limit)
