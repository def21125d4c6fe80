"""Measures how fast a model's layer is in another number format on this processor."""

import logging
import math
import time

import torch

from model import kernels
from model.encoder import Layer
from model.loading.checkpoint import Model
from service.settings import Settings

logger = logging.getLogger(__name__)

TOKENS = 32  # of the text whose products are timed
SECONDS = 0.1  # for which each format runs again and again
NOTABLE_RATIO = 1.2  # from which on it is worth a line that another format is faster

FASTER = (
    "bfloat16 would be about %.1f times as fast here: --dtype bfloat16;"
    " `headlight doctor --dtype bfloat16` measures how near its vectors are"
)
SLOWER = "%s is %.2f times as fast as float32 on this processor"


@torch.inference_mode()
def compare_speeds(layer: Layer, dtype: torch.dtype) -> float:
    """Return how many times as fast as in float32 a layer is on one core of this processor.

    Its linears and its attention are timed, with the kernels that would serve either format.
    """
    with kernels.without_idle_threads():
        single, other = (_time_layer(layer, each) for each in (torch.float32, dtype))
    return single / other


def _time_layer(layer: Layer, dtype: torch.dtype) -> float:
    """Return the shortest seconds of a layer's products and attention in a number format."""
    attention = layer.attention
    way = kernels.choose_kernels(torch.device("cpu"), dtype, attention.head_dim)
    kind = torch.float32 if way.half else dtype
    weights = [
        linear.weight().to(kind)
        for linear in (attention.project, attention.output, layer.up, layer.down)
    ]
    linears = [way.linear(weight, None) for weight in weights]
    rows = [torch.randn(TOKENS, weight.shape[1]).to(kind) for weight in weights]
    heads = torch.randn(3, 1, attention.heads, TOKENS, attention.head_dim).to(kind)
    fastest, end = math.inf, 0.0
    while (start := time.perf_counter()) < (end or math.inf):
        for linear, x in zip(linears, rows, strict=True):
            linear(x)
        way.attend(heads[0], heads[1], heads[2], attention.scale, None)
        stop = time.perf_counter()
        fastest = min(fastest, stop - start)
        end = end or stop + SECONDS  # the first run also makes kernels
    return fastest


def tell_speed(model: Model, settings: Settings) -> None:
    """Log a line where bfloat16 would be faster, or where the format asked for is slower."""
    layer = model.encoder.layers[0]
    if model.encoder.device.type != "cpu" or settings.dtype == "float32":
        return
    if settings.dtype != "auto":
        ratio = compare_speeds(layer, getattr(torch, settings.dtype))
        if ratio < 1:
            logger.warning(SLOWER, settings.dtype, ratio)
    elif kernels.choose_kernels(model.encoder.device, torch.bfloat16).half:
        ratio = compare_speeds(layer, torch.bfloat16)
        if ratio > NOTABLE_RATIO:
            logger.info(FASTER, ratio)
