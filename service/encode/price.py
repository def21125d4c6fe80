"""What an answer will weigh and cost, known before it is computed, and what would fit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model.config import EncoderConfig
from model.maps.forms import Selection, price
from service.encode.answer import SAFETENSORS
from service.refusals import Refused
from service.settings import Settings

# forms that say less in less, without what they do not read; of the latter a refusal names only
# what the request has to change
CHEAPER: tuple[Mapping[str, Any], ...] = (
    {"form": "stats", "weight": "probability", "rows": ()},
    {"form": "blocks", "size": 32, "weight": "probability", "rows": ()},
    {"form": "top", "k": 8, "rows": ()},
)
SHORT_TOKENS = 64  # of the sequences that a speed counts; service/engine/proof.py measures it
LEFT_OUT = frozenset({"weight", "rows"})
NUMBERS = {"top": "k", "blocks": "size"}  # what one form alone reads, and others refuse


def attention_bytes(selections: Sequence[Selection]) -> int:
    """Bytes of attention in an answer, of the raw arrays."""
    return sum(map(price, selections))


def check(selections: Sequence[Selection], numbers: bool, settings: Settings) -> int:
    """Bytes of attention in an answer, refused where they are too many.

    Args:
        numbers: whether the answer holds them as JSON numbers.

    Raises:
        Refused: with the bytes, the limit, and changes to the request each of which would fit.
    """
    total = attention_bytes(selections)
    limit = settings.max_attention_json_bytes if numbers else settings.max_attention_bytes
    if total > limit:
        fits = _fits(selections, limit)
        if numbers and total <= settings.max_attention_bytes:
            fits += [{"encoding": "base64"}, {"accept": SAFETENSORS}]
        raise Refused("attention_too_large", bytes=total, limit=limit, fits=fits)
    return total


def _fits(selections: Sequence[Selection], limit: int) -> list[dict[str, Any]]:
    """Changes to the request, cheapest first, each of which alone would make it fit."""
    half = {"dtype": "float16", "bytes": _bytes(selections, {"half": True})}
    offers = [*(_offer(selections, change) for change in CHEAPER), half, *_fewer(selections, limit)]
    fitting = [offer for offer in offers if offer["bytes"] <= limit]
    return sorted(fitting, key=lambda offer: int(offer["bytes"]))


def _offer(selections: Sequence[Selection], change: Mapping[str, Any]) -> dict[str, Any]:
    """Another form, as the request would name it."""
    offer = {
        name: value
        for name, value in change.items()
        if name not in LEFT_OUT or getattr(selections[0], name) != value
    }
    number = NUMBERS.get(selections[0].form)
    if number and number not in change:
        offer[number] = None
    return {**offer, "bytes": _bytes(selections, change)}


def _fewer(selections: Sequence[Selection], limit: int) -> list[dict[str, Any]]:
    """The same of fewer heads, where the answer is made of heads."""
    heads, fixed = sum(map(len, selections[0].heads.values())), _bytes(selections, {"heads": {}})
    each = (attention_bytes(selections) - fixed) // heads
    most = (limit - fixed) // each if each else 0
    return [{"heads_at_most": most, "bytes": fixed + most * each}] if most > 0 else []


def _bytes(selections: Sequence[Selection], change: Mapping[str, Any]) -> int:
    return attention_bytes([replace(one, **change) for one in selections])


def flops(config: EncoderConfig, lengths: Sequence[int], selections: Sequence[Selection]) -> int:
    """Floating-point operations of a request: a product and its sum are two.

    Linears and attention of the forward pass, and the scores of the heads whose attention is
    shown; norms, activations and softmax are left out, as they usually are.
    """
    width, inner = config.width, config.feed_forward
    weights = 4 * width**2 + (3 if config.gated else 2) * width * inner
    linear = 2 * weights * config.layers * sum(lengths)
    windows = config.windows or (None,) * config.layers
    cells = [_cells(length, window) for length in lengths for window in windows]
    scores = [
        len(heads) * _cells(one.units.tokens, windows[layer])
        for one in selections
        for layer, heads in one.heads.items()
    ]
    return linear + 4 * width * sum(cells) + 2 * config.head * sum(scores)


def cost(config: EncoderConfig, length: int) -> float:
    """How many tokens of short sequences take as long as a sequence of so many.

    More than its own: what attention takes grows with the square of a length.
    """
    return SHORT_TOKENS * flops(config, [length], []) / flops(config, [SHORT_TOKENS], [])


def _cells(length: int, window: int | None) -> int:
    """How many keys all queries of a sequence look at."""
    return length * (length if window is None else min(length, 2 * window + 1))
