"""Measures how fast a model's layers are in another number format on this processor."""

import math
import time

import torch

from model import kernels
from model.config import EncoderConfig
from model.loading.assembly import expected_shapes

TOKENS = 32  # of the text whose products are timed
SECONDS = 0.1  # for which each format runs again and again
LAYER = "layers.0."  # what the names of a layer's tensors begin with


@torch.inference_mode()
def compare_speeds(config: EncoderConfig, dtype: torch.dtype) -> float:
    """Return how many times as fast as in float32 a layer is on one core of this processor.

    Its linears and its attention are timed, with the kernels that would serve either format.
    """
    with kernels.without_idle_threads():
        single, other = (_time_layer(config, each) for each in (torch.float32, dtype))
    return single / other


def _time_layer(config: EncoderConfig, dtype: torch.dtype) -> float:
    """Return the shortest seconds of a layer's products and attention in a number format."""
    way = kernels.choose_kernels(torch.device("cpu"), dtype, config.head_dim)
    kind = torch.float32 if way.half else dtype
    named = expected_shapes(config).items()
    shapes = [shape for name, shape in named if name.startswith(LAYER) and len(shape) == 2]
    linears = [way.linear(torch.randn(shape).to(kind), None) for shape in shapes]
    rows = [torch.randn(TOKENS, inputs).to(kind) for _, inputs in shapes]
    q, k, v = torch.randn(3, 1, config.heads, TOKENS, config.head_dim).to(kind)
    fastest, end = math.inf, 0.0
    while (start := time.perf_counter()) < (end or math.inf):
        for linear, x in zip(linears, rows, strict=True):
            linear(x)
        way.attend(q, k, v, 1.0, None)
        stop = time.perf_counter()
        fastest = min(fastest, stop - start)
        end = end or stop + SECONDS  # the first run also makes kernels
    return fastest
