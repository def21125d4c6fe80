"""What torch computes of numbers one by one, the same bits at any place and on any cores.

torch takes whole vectors of what a thread gets, and the last few numbers one by one, by other
formulas for exp2, sigmoid, SiLU and GELU. So a number's bits follow from how many there are, and
from how many threads share them, unless each thread gets whole vectors.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Activation

VECTORS = 64  # numbers: torch's widest steps, of any dtype on any processor, divide them
SHARE_NUMBERS = 32768  # torch gives a thread at least so many
GRAIN_NUMBERS = 16384  # torch maps up to this many numbers on a single thread


@contextmanager
def without_idle_threads(matrices: int = 1) -> Iterator[None]:
    """Limit torch to one thread per matrix while so many matrices are multiplied.

    Where a matrix is cut for several cores MKL's bits follow from how many there are, strict or
    not: found on AMD's Zen 4, of few rows or columns (docs/decisions/0026-strict-products.md).
    """
    cores = torch.get_num_threads()
    if matrices >= cores:
        yield
        return
    torch.set_num_threads(matrices)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def map_numbers(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of torch that takes each number by itself, all in whole vectors.

    Args:
        x: of any shape; on a GPU each number is computed alike anyway.
    """
    if x.device.type != "cpu":
        return function(x)
    flat = x.reshape(-1)
    threads, whole = _divide(len(flat))
    with without_idle_threads(threads):
        made = function(flat[:whole])
        if whole < len(flat):
            made = torch.cat([made, _map_few(function, flat[whole:])])
    return made.view(x.shape)


def exp2(x: Tensor, out: Tensor) -> Tensor:
    """Raise 2 to each number as map_numbers does; return `out`, contiguous as x, or x itself."""
    if x.device.type != "cpu":
        return torch.exp2(x, out=out)
    flat, made = x.view(-1), out.view(-1)
    threads, whole = _divide(len(flat))
    with without_idle_threads(threads):
        torch.exp2(flat[:whole], out=made[:whole])
        if whole < len(flat):
            made[whole:] = _map_few(torch.exp2, flat[whole:])
    return out


def _divide(count: int) -> tuple[int, int]:
    """Return how many threads take so many numbers, and how many go to them in whole vectors."""
    threads = max(1, min(torch.get_num_threads(), count // SHARE_NUMBERS))
    return threads, count // (VECTORS * threads) * VECTORS * threads


def _map_few(function: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
    """Apply a function to fewer numbers than whole vectors hold, filled up with zeros."""
    return function(F.pad(flat, (0, -len(flat) % VECTORS)))[: len(flat)]


_TORCHS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # the exact one, with erf
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
ACTIVATIONS = {name: partial(map_numbers, function) for name, function in _TORCHS.items()}


def apply_gate(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Return activation(gate) * up, (rows, inner) each, the same bits on any number of cores.

    The last numbers of a row are taken one by one, as of every row: each call is small enough for
    one thread. No call has a single row, which would be contiguous: torch has another kernel for
    that.
    """
    act = _TORCHS[activation]
    rows, inner = gate.shape
    if gate.device.type != "cpu" or torch.get_num_threads() == 1:
        return act(gate) * up
    calls = min(math.ceil(rows / max(1, GRAIN_NUMBERS // inner)), max(1, rows // 2))
    return torch.cat([_activate_few(act, rows) for rows in gate.tensor_split(calls)]) * up


def _activate_few(act: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply an activation to a few rows; wide ones in column blocks, each on one thread."""
    if rows.numel() <= GRAIN_NUMBERS:
        return act(rows)
    columns = max(64, GRAIN_NUMBERS // len(rows) // 64 * 64)  # of torch's widest vector steps
    return torch.cat([act(part) for part in torch.split(rows, columns, 1)], 1)
