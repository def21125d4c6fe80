"""What `weights.locate` finds -> a model."""

import torch

from model import kernels
from model.kernels import Kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model
from service.engine.weights import Source


def load(
    found: Source, device: torch.device, dtype: torch.dtype, chosen: Kernels | None = None
) -> Model:
    """A folder's model, or a preset with the folder's tokenizer.

    Args:
        chosen: what computes it; None: the fastest that are right on this machine.

    Raises:
        CheckpointError: why it cannot be loaded.
    """
    config = found.preset or checkpoint.read(found.folder)
    chosen = chosen or kernels.choose(device, dtype, config.head)
    if found.preset is None:
        return checkpoint.load(found.folder, device, dtype, chosen)
    return checkpoint.preset(found.preset, found.folder, device, dtype, chosen)
