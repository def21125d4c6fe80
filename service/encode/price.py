"""What a request costs, known before it is computed.

The bytes of its answer, floating-point operations, and tokens of short sequences.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType

from model import disentangled
from model.adapters import Adapter
from model.config import EncoderConfig
from model.maps import price as maps
from model.maps.forms import Selection
from service.core import PARTS, Layout, Part, Step
from service.engine.work import Work
from service.inputs import Floats
from service.refusals import Refused

TEXT_BYTES = 3  # of JSON for a byte of float32, in the mean; base64 takes 4 for 3
TEXT_PARTS: frozenset[Part] = frozenset({"sweep"})  # JSON numbers, however arrays are written
HALF, SINGLE, DOUBLE = 2, 4, 8  # bytes of a float16, of a float32 and of a float64


class Price:
    """What an answer weighs, in bytes; every answer with arrays has one.

    Args:
        parts: of the raw arrays of the whole answer.
        layout: how they are written.
        held: bytes in addition to them, until the answer is written or while it is made.

    Attributes:
        total: bytes of the arrays.
        made: bytes that are held while they are made, and until they are written.
        written: about how many bytes they are as they are written.
    """

    __slots__ = ("_text", "made", "parts", "total", "written")

    def __init__(self, parts: Mapping[Part, int], layout: Layout, held: int = 0) -> None:
        self.parts = parts
        self._text: Collection[Part] = TEXT_PARTS.union(layout.numbers)
        total = text = 0
        for part, size in parts.items():
            total += size
            if part in self._text:
                text += size
        self.total, self.made = total, total + held
        written = TEXT_BYTES * text + (total - text) * 4 // 3
        self.written = round(layout.times * written) + layout.beside

    def of(self, parts: Collection[Part]) -> int:
        """Return the bytes of some parts."""
        return sum([size for part, size in self.parts.items() if part in parts])

    def check(self, most_json: int, most: int) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Args:
            most_json: bytes of arrays as JSON numbers, and most: of all.

        Raises:
            Refused: with the bytes and the limit.
        """
        if self.total <= most_json and self.total <= most:
            return
        for parts, limit in ((self._text, most_json), (PARTS, most)):
            if (size := self.of(parts)) > limit:
                code, attention = "answer_too_large", self.parts.get("attention", 0)
                if "attention" in parts and attention > limit:
                    code, size = "attention_too_large", attention
                raise Refused(code, bytes=size, limit=limit)


def number_bytes(dtype: Floats) -> int:
    """Return the bytes of a number outside attention, which has its own."""
    return HALF if dtype == "float16" else SINGLE


SHORT_TOKENS = 64  # of the sequences that a speed counts; service/engine/proof.py measures it
SPAN_FLOPS = 3_000_000  # that take a core as long as pooling a span: mostly calls, some 40 us
EDIT_FLOPS = 300_000  # of a head that is gated or patched: calls, 3 us where a core does 92 GFLOP/s
EDITED_FLOPS = 800  # of each of that head's numbers
EXPLAIN_COST_FACTOR = (
    3  # times what the pass takes of a layer, and as long for a short text as for 64 tokens
)
EXPLAINED_FLOPS = 1500  # of a score of that layer, from plain products to what is shown


def request_flops(
    config: EncoderConfig, lengths: Sequence[int], selections: Sequence[Selection]
) -> int:
    """Count a request's floating-point operations: a product and its sum are two.

    Linears and attention of the forward pass, and of the attention that is shown the scores and a
    rollout's products; norms, activations and softmax are left out, as they usually are.
    """
    linear = 2 * _linear_flops(config) * config.layers * sum(lengths)
    attended = sum(
        count * _attention_flops(config, length, 0) for length, count in Counter(lengths).items()
    )
    kinds = list(map(maps.price_key, selections))
    each = dict(zip(kinds, selections, strict=True))
    shown = sum(
        count * maps.count_product_flops(each[kind], config)
        for kind, count in Counter(kinds).items()
    )
    return linear + attended + shown


def entered_flops(config: EncoderConfig, length: int, layer: int) -> int:
    """Count the floating-point operations of a pass that begins in a layer, before its W^O."""
    weights = _linear_flops(config) * (config.layers - layer) - _projection_flops(config)
    return 2 * weights * length + _attention_flops(config, length, layer + 1)


def step_flops(config: EncoderConfig, adapters: Mapping[str, Adapter], step: Step) -> int:
    """Count the floating-point operations of all that a step runs and what may follow it."""
    works = step.works
    selections = [work.outputs.attention for work in works if work.outputs.attention]
    total = request_flops(config, list(map(len, works)), selections)
    total += sum(
        count * _pass_flops(config, len(like), like.entered) for like, count in step.follow
    )
    for work, count in step.every:
        total += count * sum([head.count_flops(len(work)) for head in work.outputs.task_heads])
        if work.adapter:
            total += count * adapter_flops(adapters[work.adapter], len(work))
    return total


def _pass_flops(config: EncoderConfig, length: int, layer: int | None) -> int:
    """Count those of one pass, which begins at the embeddings or in a layer."""
    return (
        request_flops(config, [length], [])
        if layer is None
        else entered_flops(config, length, layer)
    )


def _linear_flops(config: EncoderConfig) -> int:
    """Count those of the linears of one layer."""
    gated = 3 if config.gated else 2
    output = config.mixed_width * config.width
    return _projection_flops(config) + output + gated * config.width * config.feed_forward


def _projection_flops(config: EncoderConfig) -> int:
    """Count those of the queries', keys' and values' projections."""
    keys = config.shared_heads * config.head_dim
    return config.width * (config.mixed_width + 2 * keys)


def adapter_flops(adapter: Adapter, tokens: int) -> int:
    """Count the floating-point operations of an adapter's products."""
    return 2 * adapter.products * tokens


def make_cost_counter(
    config: EncoderConfig, adapters: Mapping[str, Adapter] = MappingProxyType({})
) -> Callable[[Sequence[Work]], list[float]]:
    """Return what counts the tokens of short sequences that take as long as each of some works.

    More than its own: what attention takes grows with the square of a length, a vocabulary is as
    large as many layers, and what is shown can take many times as long as the pass. Those that are
    alike are priced once.

    Args:
        adapters: the model's.
    """

    token = request_flops(config, [SHORT_TOKENS], []) / SHORT_TOKENS
    short = _pass_cost(config, SHORT_TOKENS, None) / SHORT_TOKENS
    taken = cache(partial(_pass_cost, config))

    def of(works: Sequence[Work]) -> list[float]:
        kinds = [
            (len(work), work.edited_heads, work.entered, work.adapter, id(work.outputs))
            for work in works
        ]
        each = dict(zip(kinds, works, strict=True))
        shown = dict[tuple[object, ...], int]()
        known = {kind: of_kind(work, shown) for kind, work in each.items()}
        return [known[kind] for kind in kinds]

    def of_kind(work: Work, shown: dict[tuple[object, ...], int]) -> float:
        outputs, length, extra = work.outputs, len(work), 0.0
        if outputs.attention:
            kind = maps.price_key(outputs.attention)
            if kind not in shown:
                shown[kind] = maps.count_flops(outputs.attention, config)
            extra += shown[kind]
        for head in outputs.task_heads:
            extra += head.count_flops(length)
        if outputs.parts:
            extra += SPAN_FLOPS * len(outputs.parts.tokens)
        if outputs.explained_layer is not None:
            extra += explanation_cost(config, length)
        if work.edited_heads:
            extra += work.edited_heads * (EDIT_FLOPS + EDITED_FLOPS * config.head_dim * length)
        if work.adapter:
            extra += adapter_flops(adapters[work.adapter], length)
        return taken(length, work.entered) / short + extra / token

    return of


def _pass_cost(config: EncoderConfig, length: int, entered: int | None) -> int:
    """Return what takes a core as long as a pass, which may begin in a layer."""
    layers = config.layers - (0 if entered is None else entered + 1)
    return _pass_flops(config, length, entered) + _distance_cost(config, length, layers)


def explanation_cost(config: EncoderConfig, length: int) -> float:
    """Return what takes a core as long as every step of one layer, from plain weights."""
    passed = request_flops(config, [max(length, SHORT_TOKENS)], []) / config.layers
    return EXPLAIN_COST_FACTOR * passed + EXPLAINED_FLOPS * config.heads * length**2


def _attention_flops(config: EncoderConfig, length: int, first: int) -> int:
    """Count the floating-point operations of attention over a sequence, from a layer on."""
    # for scores, and of values
    products = 2 + config.relative.count_products(disentangled.queries_per_pass(length), length)
    layers = Counter(config.windows[first:]) if config.windows else {None: config.layers - first}
    cells = sum(
        [count * config.reach_of_window(one).count_cells(length) for one, count in layers.items()]
    )
    return round(2 * config.mixed_width * products * cells)


def _distance_cost(config: EncoderConfig, length: int, layers: int) -> int:
    """Return what takes a core as long as all that distance adds to scores, or takes."""
    each = maps.distance_flops(config, maps.IN_PASS_FLOPS)
    return each * config.heads * length**2 * layers
