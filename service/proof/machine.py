"""Chooses a replica's device, number format, lanes and batch size for this machine."""

import math
import os
from collections.abc import Sequence

import torch

from model import kernels
from model.config import EncoderConfig
from model.decider import Decider
from model.kernels import Kernels
from model.task_heads import TaskHead, VectorHead
from service.proof import numerics
from service.tables.cores import count_cores
from service.tables.settings import Settings

BATCH_SECONDS = 0.1  # that a batch should take: short enough to wait for, long enough for a GEMM
FEWEST_BATCH_TOKENS, MOST_BATCH_TOKENS = 512, 16_384  # bounds of the batch size chosen by speed


class Unservable(Exception):
    """A setting cannot be met with this model or on this machine."""


def check_lengths(settings: Settings, config: EncoderConfig, heads: Sequence[TaskHead]) -> None:
    """Check that max_tokens is within the model's positions, and has room for padded queries.

    Raises:
        Unservable: there are fewer positions, or the queries of a multi-vector model are longer.
    """
    if settings.max_tokens and settings.max_tokens > config.max_tokens:
        raise Unservable(
            f"max_tokens {settings.max_tokens} exceeds the model's {config.max_tokens} positions"
        )
    decides = any(isinstance(head, Decider) for head in heads)
    if settings.max_question_tokens and not decides:
        raise Unservable("max_question_tokens is of a decision model, and this model is none")
    queries = (head.roles["query"] for head in heads if isinstance(head, VectorHead))
    filled = [query.filled_length for query in queries if query.filling]
    if filled and settings.max_tokens and settings.max_tokens < filled[0]:
        raise Unservable(
            f"max_tokens {settings.max_tokens} is less than the {filled[0]} tokens of each query"
        )


def choose_precision(settings: Settings) -> tuple[torch.device, torch.dtype]:
    """Return the device that the model runs on, and the number format of its weights there.

    `auto` is CUDA where there is a GPU, and bfloat16 there.

    Raises:
        Unservable: the setting names CUDA, and torch finds no GPU.
    """
    cuda = torch.cuda.is_available() if settings.device == "auto" else settings.device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise Unservable("device cuda: torch finds no CUDA device here; use --device cpu")
    usual = "bfloat16" if cuda else "float32"
    dtype = getattr(torch, usual if settings.dtype == "auto" else settings.dtype)
    return torch.device("cuda" if cuda else "cpu"), dtype


def check_same_bits(settings: Settings) -> None:
    """Check that device, number format and the variable MKL_CBWR allow bit-for-bit equal answers.

    Raises:
        Unservable: the settings require equal bits, which only a CPU promises, in formats that it
            computes itself; or by MKL_CBWR the bits of MKL's products depend on where in memory a
            matrix lies.
    """
    device, dtype = choose_precision(settings)
    promised = device.type == "cpu" and promises_bits(kernels.choose_kernels(device, dtype), dtype)
    if settings.require_same_bits and not promised:
        raise Unservable(
            "require_same_bits: it needs --device cpu, and --dtype float32 or, on a processor with"
            " avx512_bf16, bfloat16"
        )
    if promised and numerics.is_mkl_strict() is False:
        raise Unservable(
            f"MKL_CBWR is {os.environ.get('MKL_CBWR')!r}, by which equal texts may get other bits;"
            " leave it out, or set AUTO,STRICT"
        )


def promises_bits(way: Kernels, dtype: torch.dtype) -> bool:
    """Tell whether kernels on a CPU give the same bits in any batch, if this processor's do."""
    return dtype == torch.float32 or way.half


def count_lanes(settings: Settings, device: torch.device) -> int:
    """Return how many batches run at once: on a CPU one per core of this replica, on a GPU one.

    Raises:
        Unservable: the setting threads is above 1 on a GPU.
    """
    if device.type == "cpu":  # whose cores all replicas share evenly
        return settings.threads or max(1, count_cores() // settings.machine_replicas)
    if settings.threads not in (None, 1):
        raise Unservable(f"threads {settings.threads}: on a GPU it must be 1; leave it out")
    return 1


def gpu_share(replicas: int, gpus: int) -> float:
    """Return the fraction of a GPU to ask Ray for per replica, so that all replicas find a place.

    Each replica uses one GPU. Rounded down to Ray's ten-thousandths: rounded up, the last replica
    of a GPU would find no place.
    """
    return 10_000 // math.ceil(replicas / gpus) / 10_000


def batch_budget(speed: float) -> int:
    """Return the tokens per batch that take BATCH_SECONDS at a speed, within fixed bounds."""
    return min(max(int(speed * BATCH_SECONDS), FEWEST_BATCH_TOKENS), MOST_BATCH_TOKENS)
