"""Measures how fast a model's layers are in another number format on this processor."""

import time
from collections.abc import Callable

import torch

from model import kernels
from model.config import EncoderConfig
from model.loading.assembly import expected_shapes
from model.steady import without_idle_threads
from service.engine.speed import time_fastest

TOKENS = 32  # of the text whose products are timed
SECONDS = 0.2  # for which the formats run in turns, again and again
LEAST_TURNS = 5
LAYER = "layers.0."  # what the names of a layer's tensors begin with


@torch.inference_mode()
def compare_speeds(config: EncoderConfig, dtype: torch.dtype) -> float:
    """Return how many times as fast as in float32 a layer is on one core of this processor.

    Its linears and its attention are timed in turns, with the kernels that would serve either
    format, by the processor time of this thread: a busy machine changes nothing.
    """
    formats = torch.float32, dtype
    with without_idle_threads():
        runs = [_prepare_layer(config, each) for each in formats]
        for run in runs:
            run()  # the first also makes kernels
        single, other = time_fastest(runs, SECONDS, LEAST_TURNS, time.thread_time)
    return single / other


def _prepare_layer(config: EncoderConfig, dtype: torch.dtype) -> Callable[[], None]:
    """Return what runs a layer's products and attention once in a number format."""
    way = kernels.choose_kernels(torch.device("cpu"), dtype, config.head_dim)
    kind = torch.float32 if way.half else dtype
    named = expected_shapes(config).items()
    shapes = [shape for name, shape in named if name.startswith(LAYER) and len(shape) == 2]
    linears = [way.linear(torch.randn(shape).to(kind), None) for shape in shapes]
    rows = [torch.randn(TOKENS, inputs).to(kind) for _, inputs in shapes]
    q, k, v = torch.randn(3, 1, config.heads, TOKENS, config.head_dim).to(kind)

    def run() -> None:
        """Compute them."""
        for linear, x in zip(linears, rows, strict=True):
            linear(x)
        way.attend(q, k, v, 1.0, None)

    return run
