"""What `weights.locate_model` finds -> a model."""

import logging
from collections.abc import Iterator

import torch

from model import kernels
from model.config import EncoderConfig
from model.kernels import Kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.loading.files import ADAPTER, read_object
from model.native import agreement, library, stack
from service.engine.weights import ModelSource

logger = logging.getLogger(__name__)

PASS_MISSING = (
    "the layers run in Python, which is slower under load: the compiled forward pass is missing;"
    " docs/deploy.md says how to build it"
)
PASS_UNFIT = "the layers run in Python: the compiled forward pass does not compute this model's"


def read_model_sizes(source: ModelSource) -> EncoderConfig:
    """Return a model's sizes; its weights stay where they are.

    Raises:
        CheckpointError: a file is missing or broken, or the architecture is not supported.
    """
    return source.preset or checkpoint.read_sizes(source.folder)


def load_model(
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    backend: Kernels | None = None,
) -> Model:
    """Load a folder's model, or a preset with the folder's tokenizer.

    Args:
        backend: what computes it; None: the fastest that are right on this machine.

    Raises:
        CheckpointError: why it cannot be loaded.
    """
    # float32 says what it is: no TF32, nor bfloat16 in oneDNN, even if the environment asks for it
    torch.set_float32_matmul_precision("highest")
    config = read_model_sizes(source)
    backend = backend or kernels.choose_kernels(device, dtype, config.head_dim)
    if source.preset is None:
        model = checkpoint.load_checkpoint(source.folder, device, dtype, backend)
        return checkpoint.with_adapters(model, source.folder, source.adapters)
    return checkpoint.make_untrained(source.preset, source.folder, device, dtype, backend)


def load_without_weights(source: ModelSource, *, numbers: bool = True) -> Model | None:
    """Return a folder's model without its weights, once all is as `load_model` wants it.

    On torch's meta device nothing is kept: it takes the memory of the largest tensors.

    Args:
        numbers: whether each number of the weights is looked at; else the headers of their files
            are, and the model has no digest.

    Returns:
        None for a preset, whose weights lie in no file.

    Raises:
        CheckpointError: why it cannot be loaded.
    """
    if source.preset is not None:
        return None
    meta = torch.device("meta")
    model = checkpoint.load_checkpoint(
        source.folder, meta, torch.float32, kernels.PLAIN, numbers=numbers
    )
    return checkpoint.with_adapters(model, source.folder, source.adapters)


def find_foreign_adapters(source: ModelSource) -> Iterator[str]:
    """Say of each adapter whose config names another base than the model's name."""
    own = source.name.rpartition("/")[2].casefold()
    for name, folder in source.adapters.items():
        base = read_object(folder / ADAPTER).get("base_model_name_or_path")
        if isinstance(base, str) and base and own not in base.casefold():
            yield f"adapter {name} was trained over {base}, and the model is {source.name}"


@torch.inference_mode()
def use_compiled_pass(model: Model) -> None:
    """Let the compiled operator run a model's layers, once it has shown the loop's own bits.

    Where there is none, or its bits differ, the loop goes on, and one line says why.
    """
    encoder = model.encoder
    if not stack.calls_same_kernels(encoder.kernels):
        return
    cores = torch.get_num_threads()
    torch.set_num_threads(1)  # a few short passes: several cores would wait for each other
    try:
        native = stack.NativeStack(encoder, library.load_operator())
        if not agreement.agrees_with_loop(encoder, native):
            raise library.OperatorMissing("its bits differ from the loop's")
        encoder.native = native
    except NotImplementedError as error:
        logger.info(PASS_UNFIT, extra={"reason": str(error)})
    except (library.OperatorMissing, RuntimeError) as error:
        logger.warning(PASS_MISSING, extra={"reason": str(error)})
    finally:
        torch.set_num_threads(cores)
