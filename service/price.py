"""What an attention answer will weigh, and cheaper requests that would fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.answer import JSON, SAFETENSORS
from service.refusals import Refused
from service.schema import Attention

BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True, slots=True)
class Caps:
    """Most bytes of attention in an answer: as JSON numbers, and in any binary form."""

    numbers: int
    binary: int


def price(
    asked: Attention,
    heads: int,
    lengths: Sequence[int],
    *,
    media_type: str,
    encoding: str,
    caps: Caps,
) -> int:
    """Bytes of attention in an answer, of the raw arrays.

    Args:
        heads: how many heads were asked for, over all layers.
        lengths: tokens of each sequence.

    Raises:
        Refused: they are too many; the refusal names what would fit.
    """
    cells = heads * sum(length**2 for length in lengths)
    total = cells * BYTES[asked.dtype]
    as_numbers = media_type == JSON and encoding == "json"
    limit = caps.numbers if as_numbers else caps.binary
    if total > limit:
        fits = _fits(cells, heads, asked.dtype, limit, caps.binary if as_numbers else 0)
        raise Refused("attention_too_large", bytes=total, limit=limit, fits=fits)
    return total


def _fits(cells: int, heads: int, dtype: str, limit: int, binary: int) -> list[dict[str, Any]]:
    """Changes to the request, cheapest first, each of which alone would make it fit."""
    fits: list[dict[str, Any]] = []
    most = limit * heads // (cells * BYTES[dtype])
    if most:
        fits.append({"heads_at_most": most})
    if cells * BYTES["float16"] <= limit:
        fits.append({"dtype": "float16"})
    if cells * BYTES[dtype] <= binary:
        fits += [{"encoding": "base64"}, {"accept": SAFETENSORS}]
    return fits
