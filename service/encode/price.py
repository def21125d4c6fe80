"""What an answer will weigh and cost, known before it is computed, and what would fit."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from model.config import EncoderConfig
from model.maps import price as maps
from model.maps.forms import Selection
from model.pooling import Pooling
from model.task_heads import TaskHead, Vectors
from service.encode.layout import PARTS, Layout, Part
from service.engine.work import Work
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
SPAN_FLOPS = 3_000_000  # that take a core as long as pooling a span: mostly calls, some 40 us
EXPLAINED = 3  # times what the pass takes of a layer, and as long for a short text as for 64 tokens
EXPLAINED_FLOPS = 1500  # of a score of that layer, from plain products to what is shown
LEFT_OUT = frozenset({"weight", "rows"})
NUMBERS = {"top": "k", "blocks": "size"}  # what one form alone reads, and others refuse
TEXT_BYTES = 3  # of JSON for a byte of float32, in the mean; base64 takes 4 for 3
TEXT: frozenset[Part] = frozenset({"sweep"})  # JSON numbers, however arrays are written
HALF, SINGLE, DOUBLE = 2, 4, 8  # bytes of a float16, of a float32 and of a float64


class Price:
    """What an answer will weigh.

    Args:
        works: the sequences and what is wanted of each.
        config: of the model.
        number: bytes of a number outside attention, which has its own.
        layout: how it is written.
    """

    def __init__(
        self, works: Sequence[Work], config: EncoderConfig, number: int, layout: Layout
    ) -> None:
        self._works, self._config, self._number, self.layout = works, config, number, layout
        self._outputs = works[0].outputs
        self._text = TEXT.union(layout.numbers)
        self.parts = self._weigh(works, number)

    @property
    def total(self) -> int:
        """Bytes of the raw arrays of the whole answer."""
        return sum(self.parts.values())

    @property
    def made(self) -> int:
        """Bytes of the arrays that it holds until its answer is written, and while it is made."""
        return self.total + max(map(maps.held, _selections(self._works)), default=0)

    @property
    def written(self) -> int:
        """About how many bytes they are as they are written."""
        text = self._sum(self.parts, self._text)
        return TEXT_BYTES * text + (self.total - text) * 4 // 3

    def check(self, settings: Settings) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Raises:
            Refused: with the bytes, the limit, and changes to the request each of which would fit.
        """
        most_json, most = settings.max_answer_json_bytes, settings.max_answer_bytes
        for parts, limit in ((self._text, most_json), (PARTS, most)):
            total = self._sum(self.parts, parts)
            if total > limit:
                fits = self._fits(parts, limit)
                if self.total <= most:
                    fits += map(dict, self.layout.compact)
                code, size = "answer_too_large", total
                if "attention" in parts and self.parts["attention"] > limit:
                    code, size = "attention_too_large", self.parts["attention"]
                raise Refused(code, bytes=size, limit=limit, fits=fits)

    def _fits(self, parts: Collection[Part], limit: int) -> list[dict[str, Any]]:
        """Changes to the request, cheapest first, each of which alone would make it fit."""
        if "attention" in parts and self.parts["attention"] > limit:
            rest = self._sum(self.parts, parts) - self.parts["attention"]
            return _attention_fits(_selections(self._padded(self._works)), limit - rest)
        offers = [*self._half(parts), *self._layers(parts, limit), *self._inputs(parts, limit)]
        fitting = [offer for offer in offers if offer["bytes"] <= limit]
        return sorted(fitting, key=lambda offer: int(offer["bytes"]))

    def _half(self, parts: Collection[Part]) -> list[dict[str, Any]]:
        """The same as float16."""
        if not self.layout.half or self._number == HALF:
            return []
        return [{"dtype": "float16", "bytes": self._sum(self._weigh(self._works, HALF), parts)}]

    def _layers(self, parts: Collection[Part], limit: int) -> list[dict[str, Any]]:
        """The same of fewer hidden states."""
        count = len(self._outputs.hidden)
        if count < 2 or "layers" not in parts:
            return []
        each = self.parts["layers"] // count
        fixed = self._sum(self.parts, parts) - self.parts["layers"]
        most = (limit - fixed) // each
        return [{"layers_at_most": most, "bytes": fixed + most * each}] if most > 0 else []

    def _inputs(self, parts: Collection[Part], limit: int) -> list[dict[str, Any]]:
        """The first of the inputs."""

        def size(count: int) -> int:
            return self._sum(self._weigh(self._works[:count], self._number), parts)

        most = bisect_right(range(1, len(self._works) + 1), limit, key=size)
        return [{"inputs_at_most": most, "bytes": size(most)}] if most else []

    def _weigh(self, works: Sequence[Work], number: int) -> dict[Part, int]:
        """Bytes of each part."""
        works = self._padded(works)
        width, pooling = self._config.width, self._outputs.pooling
        rows = number * width * sum(map(len, works))
        vectors = _numbers(pooling, width) * len(works)
        for parts in (work.outputs.parts for work in works):
            vectors += _numbers(parts.pooling, width) * len(parts.tokens) if parts else 0
        return {
            "pooled": number * vectors,
            "tokens": rows * self._outputs.tokens,
            "layers": rows * len(self._outputs.hidden),
            "attention": attention_bytes(_selections(works)),
            "task": sum(_of_head(work.outputs.head, len(work), number) for work in works),
            "sweep": DOUBLE * sum(work.outputs.swept for work in works),
        }

    def _padded(self, works: Sequence[Work]) -> Sequence[Work]:
        """As many like the longest, where an answer pads."""
        return [max(works, key=len)] * len(works) if self.layout.padded else works

    def _sum(self, sizes: Mapping[Part, int], parts: Collection[Part]) -> int:
        return sum([sizes[part] for part in parts])


def _of_head(head: TaskHead | None, tokens: int, number: int) -> int:
    """Bytes of what a head makes of so many tokens."""
    if isinstance(head, Vectors):
        return head.bytes(tokens, number)
    return head.bytes(tokens) if head else 0


def _numbers(pooling: Pooling | None, width: int) -> int:
    """How many numbers a vector has."""
    return (pooling.dimensions or pooling.size(width)) if pooling else 0


def attention_bytes(selections: Sequence[Selection]) -> int:
    """Bytes of attention in an answer, of the raw arrays."""
    return sum(map(maps.price, selections))


def _selections(works: Sequence[Work]) -> list[Selection]:
    return [work.outputs.attention for work in works if work.outputs.attention]


def _attention_fits(selections: Sequence[Selection], limit: int) -> list[dict[str, Any]]:
    """Other forms of the attention that fit, cheapest first."""
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

    Linears and attention of the forward pass, and of the attention that is shown the scores and a
    rollout's products; norms, activations and softmax are left out, as they usually are.
    """
    width, windows = config.width, config.windows or (None,) * config.layers
    linear = 2 * _weights(config) * config.layers * sum(lengths)
    cells = [_cells(length, window) for length in lengths for window in windows]
    shown = sum(maps.products(one, config) for one in selections)
    return linear + 4 * width * sum(cells) + shown


def entered_flops(config: EncoderConfig, length: int, layer: int) -> int:
    """Floating-point operations of a pass that begins in a layer, before its W^O."""
    width, windows = config.width, config.windows or (None,) * config.layers
    weights = _weights(config) * (config.layers - layer) - 3 * width**2
    cells = sum(_cells(length, window) for window in windows[layer + 1 :])
    return 2 * weights * length + 4 * width * cells


def copy_flops(config: EncoderConfig, copies: Sequence[Work]) -> int:
    """Floating-point operations of works whose passes begin in a layer."""
    counts = Counter((len(work), work.entered or 0) for work in copies)
    passes = sum(entered_flops(config, *kind) * count for kind, count in counts.items())
    return passes + head_flops(copies)


def _weights(config: EncoderConfig) -> int:
    """Of the linears of one layer."""
    gated = 3 if config.gated else 2
    return 4 * config.width**2 + gated * config.width * config.feed_forward


def head_flops(works: Sequence[Work]) -> int:
    """Floating-point operations of the checkpoint's head, where it is asked."""
    return sum(work.outputs.head.flops(len(work)) for work in works if work.outputs.head)


def costs(
    config: EncoderConfig, encoding: Callable[[int, int | None], float]
) -> Callable[[Work], float]:
    """What a work costs, counted as `cost` counts: the pass, and what is made of it besides.

    A vocabulary is as large as many layers, and what is shown of attention can take many times as
    long as the pass.

    Args:
        encoding: `cost` of a sequence's length, and of the layer in which its pass begins.
    """

    token = flops(config, [SHORT_TOKENS], []) / SHORT_TOKENS

    def of(work: Work) -> float:
        head, parts, attention = work.outputs.head, work.outputs.parts, work.outputs.attention
        beside: float = head.flops(len(work)) if head else 0
        beside += SPAN_FLOPS * len(parts.tokens) if parts else 0
        beside += maps.work(attention, config) if attention else 0
        if work.outputs.explained is not None:
            beside += explained_flops(config, len(work))
        return encoding(len(work), work.entered) + beside / token

    return of


def cost(config: EncoderConfig, length: int, entered: int | None = None) -> float:
    """How many tokens of short sequences take as long as a sequence of so many.

    More than its own: what attention takes grows with the square of a length.

    Args:
        entered: the layer in which its pass begins; None: at the embeddings.
    """
    whole = flops(config, [length], [])
    own = whole if entered is None else entered_flops(config, length, entered)
    return SHORT_TOKENS * own / flops(config, [SHORT_TOKENS], [])


def explained_flops(config: EncoderConfig, length: int) -> float:
    """What takes a core as long as every step of one layer, from plain weights."""
    passed = flops(config, [max(length, SHORT_TOKENS)], []) / config.layers
    return EXPLAINED * passed + EXPLAINED_FLOPS * config.heads * length**2


def _cells(length: int, window: int | None) -> int:
    """How many keys all queries of a sequence look at."""
    return length * (length if window is None else min(length, 2 * window + 1))
