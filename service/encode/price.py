"""Computes what a request costs before it runs.

In bytes of its answer, in floating-point operations, and in tokens of short sequences that take as
long.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType

from model import disentangled
from model.adapters import Adapter
from model.config import EncoderConfig
from model.maps import price as maps
from model.maps.forms import Selection
from service.shapes.inputs import Floats
from service.shapes.step import Step
from service.shapes.work import Work

HALF, SINGLE, DOUBLE = 2, 4, 8  # bytes of a float16, of a float32 and of a float64


def number_bytes(dtype: Floats) -> int:
    """Return the bytes of a number in arrays of a request's dtype; attention has its own dtype."""
    return HALF if dtype == "float16" else SINGLE


SHORT_TOKENS = 64  # tokens of the sequences by which service/engine/proof.py measures the speed
# Costs, as the operations of a forward pass that take a core as long
SPAN_FLOPS = 3_000_000  # cost of pooling a span: mostly calls, some 40 us
EDIT_FLOPS = 300_000  # cost of gating or patching a head: calls, 3 us if a core does 92 GFLOP/s
EDITED_FLOPS = 800  # cost of gating or patching each number of a head
EXPLAINED_FLOPS = 1500  # cost of each attention score of an explained layer, besides the next
CARRY_PASSES = 2  # cost of what is carried, besides a pass for each: of the pass it is read off
EXPLAIN_PASSES = 3  # cost of explaining a layer, in passes through it of SHORT_TOKENS or more


def request_flops(
    config: EncoderConfig, lengths: Sequence[int], selections: Sequence[Selection]
) -> int:
    """Count the floating-point operations of sequences; a multiplication and an addition are two.

    Counted are the linears and attention of the forward pass, and the scores and a rollout's
    products of the attention shown; norms, activations and softmax are left out, as usual.

    Args:
        lengths: tokens of each sequence.
        selections: the attention shown of those sequences that show any.
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
    """Count the floating-point operations of a pass that begins in a layer, before its W^O.

    Args:
        length: tokens of the sequence.
    """
    weights = _linear_flops(config) * (config.layers - layer) - _projection_flops(config)
    return 2 * weights * length + _attention_flops(config, length, layer + 1)


def step_flops(config: EncoderConfig, adapters: Mapping[str, Adapter], step: Step) -> int:
    """Count the floating-point operations of a step's works and of those that may follow.

    Args:
        adapters: the model's, by name.
    """
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
        total += count * carried_flops(config, work)
    return total


def carried_flops(config: EncoderConfig, work: Work) -> int:
    """Count the operations of carrying sources or targets through layers: of a pass each."""
    sources = work.outputs.carried
    carried = sources or work.outputs.targets
    if carried is None:
        return 0
    whole = (len(carried) + CARRY_PASSES) * _pass_flops(config, len(work), None)
    layers = config.layers if sources is None or sources.layers is None else sources.layers
    return whole * layers // config.layers


def _pass_flops(config: EncoderConfig, length: int, layer: int | None) -> int:
    """Count the operations of one pass that begins in a layer; None: at the embeddings."""
    if layer is None:
        return request_flops(config, [length], [])
    return entered_flops(config, length, layer)


def _linear_flops(config: EncoderConfig) -> int:
    """Count the multiplications of a layer's linears for one token."""
    gated = 3 if config.gated else 2
    output = config.mixed_width * config.width
    return _projection_flops(config) + output + gated * config.width * config.feed_forward


def _projection_flops(config: EncoderConfig) -> int:
    """Count the multiplications of a layer's query, key and value projections for one token."""
    keys = config.shared_heads * config.head_dim
    return config.width * (config.mixed_width + 2 * keys)


def adapter_flops(adapter: Adapter, tokens: int) -> int:
    """Count the floating-point operations that an adapter adds for this many tokens."""
    return 2 * adapter.products * tokens


def make_cost_counter(
    config: EncoderConfig, adapters: Mapping[str, Adapter] = MappingProxyType({})
) -> Callable[[Sequence[Work]], list[float]]:
    """Return a function of works that returns how many tokens of short sequences each costs.

    That is more than a work's own tokens: attention grows with the square of the length, the head
    over a vocabulary is as large as many layers, and computing what is shown can take many times
    as long as the pass. Works that are alike are priced once.

    Args:
        adapters: the model's, by name.
    """
    token_flops = request_flops(config, [SHORT_TOKENS], []) / SHORT_TOKENS
    token_pass_cost = _pass_cost(config, SHORT_TOKENS, None) / SHORT_TOKENS
    pass_cost = cache(partial(_pass_cost, config))

    def cost_works(works: Sequence[Work]) -> list[float]:
        """Return the cost of each work."""
        kinds = [
            (len(work), work.edited_heads, work.entered, work.adapter, id(work.outputs))
            for work in works
        ]
        by_kind = dict(zip(kinds, works, strict=True))
        shown = dict[tuple[object, ...], int]()
        costs = {kind: cost_work(work, shown) for kind, work in by_kind.items()}
        return [costs[kind] for kind in kinds]

    def cost_work(work: Work, shown: dict[tuple[object, ...], int]) -> float:
        """Return the cost of one work; `shown` caches the operations of what it shows."""
        outputs, length, extra = work.outputs, len(work), 0.0
        if outputs.attention:
            kind = maps.price_key(outputs.attention)
            if kind not in shown:
                shown[kind] = maps.estimate_flops(outputs.attention, config)
            extra += shown[kind]
        for head in outputs.task_heads:
            extra += head.count_flops(length)
        if outputs.parts:
            extra += SPAN_FLOPS * len(outputs.parts.tokens)
        extra += carried_flops(config, work)
        if outputs.explained_layer is not None:
            extra += explanation_cost(config, length)
        if work.edited_heads:
            extra += work.edited_heads * (EDIT_FLOPS + EDITED_FLOPS * config.head_dim * length)
        if work.adapter:
            extra += adapter_flops(adapters[work.adapter], length)
        return pass_cost(length, work.entered) / token_pass_cost + extra / token_flops

    return cost_works


def _pass_cost(config: EncoderConfig, length: int, entered: int | None) -> int:
    """Return the operations that take a core as long as a pass from the layer `entered` on."""
    layers = config.layers - (0 if entered is None else entered + 1)
    return _pass_flops(config, length, entered) + _distance_cost(config, length, layers)


def explanation_cost(config: EncoderConfig, length: int) -> float:
    """Return the operations that take a core as long as computing every step of one layer."""
    layer = request_flops(config, [max(length, SHORT_TOKENS)], []) / config.layers
    return EXPLAIN_PASSES * layer + EXPLAINED_FLOPS * config.heads * length**2


def _attention_flops(config: EncoderConfig, length: int, first: int) -> int:
    """Count the operations of attention over a sequence, from the layer `first` on."""
    # 2: of queries with keys, and of scores with values
    products = 2 + config.relative.count_products(disentangled.queries_per_pass(length), length)
    layers = Counter(config.windows[first:]) if config.windows else {None: config.layers - first}
    reach = config.reach_of_window
    cells = sum([count * reach(window).count_cells(length) for window, count in layers.items()])
    return round(2 * config.mixed_width * products * cells)


def _distance_cost(config: EncoderConfig, length: int, layers: int) -> int:
    """Return the operations that take a core as long as adding distance terms to all scores."""
    each = maps.distance_flops(config, maps.IN_PASS_FLOPS)
    return each * config.heads * length**2 * layers
