"""What an answer will weigh and cost, known before it is computed, and what would fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.config import EncoderConfig
from model.forms import Asked, price
from service.answer import JSON, SAFETENSORS
from service.refusals import Refused

BYTES = {"float32": 4, "float16": 2}
# forms that say less in less; what is asked is offered neither again nor when it is larger
CHEAPER: tuple[Mapping[str, Any], ...] = (
    {"form": "stats"},
    {"form": "blocks", "size": 32},
    {"form": "top", "k": 8},
)


@dataclass(frozen=True, slots=True)
class Caps:
    """Most bytes of attention in an answer: as JSON numbers, and in any binary form."""

    numbers: int
    binary: int


def attention_bytes(asked: Sequence[Asked], dtype: str) -> int:
    """Bytes of attention in an answer, of the raw arrays."""
    return sum(price(one, BYTES[dtype]) for one in asked)


def check(asked: Sequence[Asked], dtype: str, media_type: str, encoding: str, caps: Caps) -> int:
    """Bytes of attention in an answer, refused where they are too many.

    Raises:
        Refused: with the bytes, the limit, and changes to the request each of which would fit.
    """
    total = attention_bytes(asked, dtype)
    as_numbers = media_type == JSON and encoding == "json"
    limit = caps.numbers if as_numbers else caps.binary
    if total > limit:
        fits = _fits(asked, dtype, limit)
        if as_numbers and total <= caps.binary:
            fits += [{"encoding": "base64"}, {"accept": SAFETENSORS}]
        raise Refused("attention_too_large", bytes=total, limit=limit, fits=fits)
    return total


def _fits(asked: Sequence[Asked], dtype: str, limit: int) -> list[dict[str, Any]]:
    """Changes to the request, cheapest first, each of which alone would make it fit."""
    total = attention_bytes(asked, dtype)
    offers = [{**change, "bytes": _changed(asked, change, dtype)} for change in CHEAPER]
    if dtype == "float32":
        offers.append({"dtype": "float16", "bytes": attention_bytes(asked, "float16")})
    heads = sum(map(len, asked[0].heads.values()))
    most = limit * heads // total
    if most and asked[0].form != "rollout":
        offers.append({"heads_at_most": most, "bytes": total * most // heads})
    fitting = [offer for offer in offers if offer["bytes"] <= limit]
    return sorted(fitting, key=lambda offer: int(offer["bytes"]))


def _changed(asked: Sequence[Asked], change: Mapping[str, Any], dtype: str) -> int:
    return attention_bytes([replace(one, **change) for one in asked], dtype)


def flops(config: EncoderConfig, lengths: Sequence[int], asked: Sequence[Asked]) -> int:
    """Floating-point operations of a request: a product and its sum are two.

    Linears and attention of the forward pass, and the scores of the heads whose attention is
    shown; norms, activations and softmax are left out, as they usually are.
    """
    width, inner = config.width, config.feed_forward
    weights = 4 * width**2 + (3 if config.gated else 2) * width * inner
    linear = 2 * weights * config.layers * sum(lengths)
    windows = config.windows or (None,) * config.layers
    cells = [_cells(length, window) for length in lengths for window in windows]
    shown = [
        len(heads) * _cells(one.units.tokens, windows[layer])
        for one in asked
        for layer, heads in one.heads.items()
    ]
    return linear + 4 * width * sum(cells) + 2 * config.head * sum(shown)


def _cells(length: int, window: int | None) -> int:
    """How many keys all queries of a sequence look at."""
    return length * (length if window is None else min(length, 2 * window + 1))
