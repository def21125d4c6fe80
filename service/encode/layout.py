"""How an answer's arrays are written, which its price depends on."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

# of an answer, made of arrays or of as many numbers
Part = Literal["pooled", "tokens", "layers", "attention", "task", "sweep"]
PARTS: frozenset[Part] = frozenset(get_args(Part))


class Layout(NamedTuple):
    """How an answer's arrays are written.

    Args:
        numbers: the parts that are JSON numbers; the others come as bytes.
        padded: whether sequences are padded to the longest.
        compact: changes to the request by which numbers come as bytes.
        half: whether the request can ask for float16.
    """

    numbers: Collection[Part] = PARTS
    padded: bool = False
    compact: Sequence[Mapping[str, str]] = ()
    half: bool = False
