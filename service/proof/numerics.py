"""Names the arithmetic that computes answers, and bounds how far two answers may lie apart.

    cpu-fp32-onednn-avx512+strict-2.13.0-1f2e3d
    cuda-bf16-varlen-sm90x132-2.13.0+cu128-1f2e3d-varying

Device, number format, kernels, processor (+strict: if MKL says that its products are; of a GPU its
architecture and number of multiprocessors, on which cuBLAS's bits depend), release of torch, digest
of the canary's vectors. The digest covers the rest: oneDNN and MKL choose instructions by more than
torch says about a processor.
"""

import ctypes
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

# Number formats in names of the arithmetic
PRECISION_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
GOLDEN_DIGITS = 6  # hexadecimal digits of the canary's digest
# Largest error of a vector by rounding, as a share of its length: three times what random weights
# of 24 layers lost in half precision, 24 times what they lost in float32
# (docs/decisions/0010-cuda.md)
ROUNDING_BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.12, torch.float16: 0.015}

# From mkl_service.h: the argument that asks for all of MKL_CBWR, its flag STRICT, and the branches
# that have a strict mode: AUTO, AVX2, AVX512, AVX512_E1
ALL_BRANCHES, STRICT_BRANCH, STRICT_BRANCHES = -1, 1 << 16, {2, 10, 12, 14}


@dataclass(frozen=True, slots=True)
class Golden:
    """A text, and the first numbers of the pooled vector that transformers computes from it."""

    text: str
    pooled: tuple[float, ...]


# By digest of the weights; from BertModel of transformers 5.23.0, eager, float32, mean-pooled and
# normalised
GOLDEN = {
    "sha256:5fc648cb18e4": Golden(
        "All is well",
        (
            *(-0.0432262, -0.0112277, 0.0575369, -0.0518478),
            *(0.0351458, -0.0323711, -0.0829141, -0.0152096),
        ),
    )
}


def name_arithmetic(
    device: torch.device, dtype: torch.dtype, kernels: str, canary: Array, same_bits: bool = True
) -> str:
    """Return the name of the arithmetic, which answers show as `numerics`; see above.

    Args:
        kernels: their name.
        canary: the canary's token vectors.
        same_bits: whether no batch changes them; else the name ends in -varying.
    """
    release = str(torch.__version__)
    if device.type == "cpu":
        unit, release = torch.backends.cpu.get_cpu_capability().lower(), release.partition("+")[0]
        unit += "+strict" if is_mkl_strict() else ""
    else:
        gpu = torch.cuda.get_device_properties(device)
        unit = gpu_kind(gpu.major, gpu.minor, gpu.multi_processor_count)
    digest = hashlib.sha256(canary.tobytes()).hexdigest()[:GOLDEN_DIGITS]
    name = f"{device.type}-{PRECISION_NAMES[dtype]}-{kernels}-{unit}-{release}-{digest}"
    return name if same_bits else f"{name}-varying"


def is_mkl_strict() -> bool | None:
    """Tell whether the bits of MKL's products depend neither on memory addresses nor on threads.

    MKL itself is asked, since it silently ignores a value of MKL_CBWR that it does not know, or
    that was set after its first product. None: torch has no MKL, as on ARM, or it lacks the call.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        mode = ctypes.CDLL(str(library)).mkl_serv_cbwr_get(ALL_BRANCHES)
    except (AttributeError, OSError):
        return None
    return bool(mode & STRICT_BRANCH) and mode & ~STRICT_BRANCH in STRICT_BRANCHES


def gpu_kind(major: int, minor: int, count: int) -> str:
    """Name a GPU by its compute capability and number of multiprocessors, such as sm90x132.

    cuBLAS promises equal bits on GPUs of one such name.
    """
    return f"sm{major}{minor}x{count}"


def largest_difference(found: Iterable[Array], expected: Iterable[Array]) -> float:
    """Return the largest relative error of a row: its distance divided by the expected length.

    Args:
        found, expected: arrays to compare one by one, (.., rows, width) each.

    Returns:
        0 only where all bits are the same; infinity where a number is not finite.
    """
    furthest, least = 0.0, float(np.finfo(np.float32).tiny)
    for rows, right in zip(found, expected, strict=True):
        if rows.tobytes() != right.tobytes():
            lengths = np.linalg.norm(right, axis=-1).clip(min=least)
            share = np.linalg.norm(rows - right, axis=-1) / lengths
            furthest = max(
                furthest, least, float(np.where(np.isfinite(share), share, np.inf).max())
            )
    return furthest
