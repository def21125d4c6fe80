"""Computes what a request costs before it runs.

In bytes of its answer, in floating-point operations, and in tokens of short sequences that take as
long.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType

from model.adapters import Adapter
from model.config import EncoderConfig
from model.flops import SHORT_TOKENS, pass_flops
from model.maps import price as maps
from model.probes import Probe
from service.shapes.inputs import Floats
from service.shapes.step import Step
from service.shapes.work import Work

HALF, SINGLE, DOUBLE = 2, 4, 8  # bytes of a float16, of a float32 and of a float64


def number_bytes(dtype: Floats) -> int:
    """Return the bytes of a number in arrays of a request's dtype; attention has its own dtype."""
    return HALF if dtype == "float16" else SINGLE


# Costs, as the operations of a forward pass that take a core as long
EDIT_FLOPS = 300_000  # cost of gating or patching a head: calls, 3 us if a core does 92 GFLOP/s
EDITED_FLOPS = 800  # cost of gating or patching each number of a head


def step_flops(config: EncoderConfig, adapters: Mapping[str, Adapter], step: Step) -> int:
    """Count the floating-point operations of a step's works and of those that may follow.

    Args:
        adapters: the model's, by name.
    """
    total, passes, asked = 0, Counter[tuple[int, int | None]](), Counter[tuple[Hashable, int]]()
    examples = dict[Hashable, Probe]()
    for work, count in step.every:
        length, outputs = len(work), work.outputs
        passes[length, work.entered] += count
        for head in outputs.task_heads:
            total += count * head.count_flops(length)
        if work.adapter:
            total += count * adapter_flops(adapters[work.adapter], length)
        for probe in outputs.probes:
            key = probe.price_key
            asked[key, length] += count
            examples[key] = probe
    total += sum([count * pass_flops(config, *kind) for kind, count in passes.items()])
    total += sum([n * examples[key].flops(config, length) for (key, length), n in asked.items()])
    return total


def adapter_flops(adapter: Adapter, tokens: int) -> int:
    """Count the floating-point operations that an adapter adds for this many tokens."""
    return 2 * adapter.products * tokens


def make_cost_counter(
    config: EncoderConfig,
    adapters: Mapping[str, Adapter] = MappingProxyType({}),
    speed: float = 0.0,
) -> Callable[[Sequence[Work]], list[float]]:
    """Return a function of works that returns how many tokens of short sequences each costs.

    That is more than a work's own tokens: attention grows with the square of the length, the head
    over a vocabulary is as large as many layers, and computing what is shown can take many times
    as long as the pass. Works that are alike are priced once.

    Args:
        adapters: the model's, by name.
        speed: tokens of short sequences that one lane does in a second; by default calls of probes
            are not priced.
    """
    token_flops = pass_flops(config, SHORT_TOKENS) / SHORT_TOKENS
    token_pass_cost = _pass_cost(config, SHORT_TOKENS, None) / SHORT_TOKENS
    pass_cost = cache(partial(_pass_cost, config))

    def cost_works(works: Sequence[Work]) -> list[float]:
        """Return the cost of each work."""
        costs, by_kind, probed = list[float](), dict[Hashable, float](), dict[Hashable, float]()
        for work in works:
            length = len(work)
            kind = length, work.edited_heads, work.entered, work.adapter, id(work.outputs)
            if kind not in by_kind:
                by_kind[kind] = cost_work(work, length, probed)
            costs.append(by_kind[kind])
        return costs

    def cost_work(work: Work, length: int, probed: dict[Hashable, float]) -> float:
        """Return the cost of one work; `probed` caches the operations of its probes."""
        outputs, extra = work.outputs, 0.0
        for probe in outputs.probes:
            kind = probe.price_key, length
            if kind not in probed:
                calls = probe.call_seconds(config) * speed * token_flops
                probed[kind] = probe.cost(config, length) + calls
            extra += probed[kind]
        for head in outputs.task_heads:
            extra += head.count_flops(length)
        if work.edited_heads:
            extra += work.edited_heads * (EDIT_FLOPS + EDITED_FLOPS * config.head_dim * length)
        if work.adapter:
            extra += adapter_flops(adapters[work.adapter], length)
        return pass_cost(length, work.entered) / token_pass_cost + extra / token_flops

    return cost_works


def _pass_cost(config: EncoderConfig, length: int, entered: int | None) -> int:
    """Return the operations that take a core as long as a pass from the layer `entered` on."""
    layers = config.layers - (0 if entered is None else entered + 1)
    each = maps.distance_flops(config, maps.IN_PASS_FLOPS)  # of a score, for what distance adds
    return pass_flops(config, length, entered) + each * config.heads * length**2 * layers
