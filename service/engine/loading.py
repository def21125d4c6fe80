"""What `weights.locate` finds -> a model."""

import torch

from model import kernels
from model.kernels import Kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model
from service.engine.weights import Source


def load(
    source: Source, device: torch.device, dtype: torch.dtype, backend: Kernels | None = None
) -> Model:
    """A folder's model, or a preset with the folder's tokenizer.

    Args:
        backend: what computes it; None: the fastest that are right on this machine.

    Raises:
        CheckpointError: why it cannot be loaded.
    """
    config = source.preset or checkpoint.read(source.folder)
    backend = backend or kernels.choose(device, dtype, config.head)
    if source.preset is None:
        return checkpoint.load(source.folder, device, dtype, backend)
    return checkpoint.preset(source.preset, source.folder, device, dtype, backend)
