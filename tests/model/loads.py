"""Load a folder as a replica on a CPU does, with kernels that are proven once."""

from functools import cache
from pathlib import Path

import torch

from model import kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model

CPU = torch.device("cpu")
choose_kernels = cache(kernels.choose_kernels)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """A folder's model as a replica on a CPU loads it."""
    return checkpoint.load_checkpoint(folder, CPU, dtype, choose_kernels(CPU, dtype))
