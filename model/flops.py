"""Counts the floating-point operations of a pass; a multiplication and an addition are two.

Counted are linears and attention; norms, activations and softmax are left out, as usual.
"""

from collections import Counter

from model.attention import disentangled
from model.config import EncoderConfig

SHORT_TOKENS = 64  # tokens of the sequences by which service/proof/proof.py measures the speed


def pass_flops(config: EncoderConfig, tokens: int, entered: int | None = None) -> int:
    """Count the operations of a sequence's pass.

    Args:
        entered: the layer in which it begins, before its W^O; None: at the embeddings.
    """
    projection = 2 * config.width * (config.mixed_width + 2 * config.shared_heads * config.head_dim)
    output, block = config.mixed_width * config.width, config.width * config.feed_forward
    layer = projection + 2 * output + 2 * (3 if config.gated else 2) * block
    if entered is None:
        return layer * config.layers * tokens + _attention_flops(config, tokens, 0)
    linear = layer * (config.layers - entered) - projection
    return linear * tokens + _attention_flops(config, tokens, entered + 1)


def _attention_flops(config: EncoderConfig, tokens: int, first: int) -> int:
    """Count the operations of attention over a sequence, from the layer `first` on."""
    # 2: of queries with keys, and of scores with values
    products = 2 + config.relative.count_products(disentangled.queries_per_pass(tokens), tokens)
    layers = Counter(config.windows[first:]) if config.windows else {None: config.layers - first}
    reach = config.reach_of_window
    cells = sum([count * reach(window).count_cells(tokens) for window, count in layers.items()])
    return round(2 * config.mixed_width * products * cells)
