"""What this machine gives a replica: a device and its number format, cores, the size of a batch."""

import logging
import math
import os
from collections.abc import Sequence

import torch

from model.config import EncoderConfig
from model.task_heads import TaskHead, VectorHead
from service.cores import count_cores
from service.engine import numerics
from service.settings import Settings

logger = logging.getLogger(__name__)

# number formats known to be no slower than float32 on this processor
FAST_PRECISIONS = {torch.float32}
FAST_PRECISIONS |= (
    {torch.bfloat16} if getattr(torch.cpu, "_is_amx_tile_supported", bool)() else set()
)
SLOW_PRECISION = (
    "%s is probably slower than float32 on this processor; only bfloat16 with AMX is faster"
)
BATCH_SECONDS = 0.1  # work in one batch: short enough to wait for, long enough to fill a GEMM
FEWEST_BATCH_TOKENS, MOST_BATCH_TOKENS = 512, 16_384


class Unservable(Exception):
    """A setting that this model or machine cannot honour."""


def choose_device(settings: Settings) -> torch.device:
    """Tell where the model runs.

    Raises:
        Unservable: a device that is not here.
    """
    cuda = torch.cuda.is_available() if settings.device == "auto" else settings.device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise Unservable("device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda" if cuda else "cpu")


def count_gpus() -> int:
    """Count the GPUs that torch finds."""
    return torch.cuda.device_count()


def check_filled_queries(settings: Settings, heads: Sequence[TaskHead]) -> None:
    """Check the longest sequence against queries that a model of many vectors fills up.

    Raises:
        Unservable: they are longer.
    """
    queries = (head.roles["query"] for head in heads if isinstance(head, VectorHead))
    query = next(queries, None)
    if (
        query
        and query.filling
        and (settings.max_tokens or query.filled_length) < query.filled_length
    ):
        raise Unservable(
            f"max_tokens {settings.max_tokens} is less than the {query.filled_length} tokens of "
            "each query"
        )


def check_positions(settings: Settings, config: EncoderConfig) -> None:
    """Check the longest sequence against a model's table of positions.

    Raises:
        Unservable: it has too few.
    """
    if settings.max_tokens and settings.max_tokens > config.max_tokens:
        raise Unservable(
            f"max_tokens {settings.max_tokens} exceeds the model's {config.max_tokens} positions"
        )


def choose_precision(settings: Settings) -> tuple[torch.device, torch.dtype]:
    """Tell where the model runs, and in which number format.

    Raises:
        Unservable: see `choose_device`.
    """
    where = choose_device(settings)
    cuda = where.type == "cuda"
    if settings.dtype == "auto":
        return where, torch.bfloat16 if cuda else torch.float32
    dtype: torch.dtype = getattr(torch, settings.dtype)
    if not cuda and dtype not in FAST_PRECISIONS:
        logger.warning(SLOW_PRECISION, settings.dtype)
    return where, dtype


def check_same_bits(settings: Settings) -> None:
    """Check that device, number format and the environment's MKL_CBWR allow equal bits.

    Raises:
        Unservable: they are required, and not promised of these; or with that variable MKL's
            products follow from where in memory a matrix lies.
    """
    promised = choose_device(settings).type == "cpu" and settings.dtype in ("auto", "float32")
    if settings.require_same_bits and not promised:
        raise Unservable("require_same_bits: it needs --device cpu and --dtype float32")
    if promised and numerics.is_mkl_strict() is False:
        raise Unservable(
            f"MKL_CBWR is {os.environ.get('MKL_CBWR')!r}, by which equal texts may get other bits;"
            " leave it out, or set AUTO,STRICT"
        )


def count_lanes(settings: Settings, device: torch.device) -> int:
    """Tell how many batches run at once: one a core of a processor; a GPU runs one after the other.

    The batcher takes each of several lanes for its share of the machine, which is a GPU's whole.

    Raises:
        Unservable: more threads than a GPU has lanes.
    """
    if device.type == "cpu":
        return settings.threads or max(
            1, count_cores() // settings.most_replicas
        )  # replicas share evenly
    if settings.threads not in (None, 1):
        raise Unservable(f"threads {settings.threads}: on a GPU it must be 1; leave it out")
    return 1


def gpu_share(replicas: int, gpus: int) -> float:
    """Return the part of a GPU that each of some replicas takes, so that all find a place.

    A replica lies on one GPU. Ray counts in ten-thousandths: a part rounded up would leave the
    last replica of a GPU without its place.
    """
    return 10_000 // math.ceil(replicas / gpus) / 10_000


def batch_budget(speed: float) -> int:
    """Return the tokens the device does in BATCH_SECONDS, within reason."""
    return min(max(int(speed * BATCH_SECONDS), FEWEST_BATCH_TOKENS), MOST_BATCH_TOKENS)
