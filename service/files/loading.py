"""Loads the model whose files `weights.locate_model` has found."""

import logging
from collections.abc import Iterator

import torch

from model import kernels
from model.config import EncoderConfig
from model.decider import Decider
from model.encoder import Encoder
from model.kernels import Kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.loading.files import ADAPTER, read_object
from model.native import agreement, library, stack
from service.files.weights import ModelSource

logger = logging.getLogger(__name__)

# Warnings
PASS_MISSING = (
    "the layers run in Python, which is slower under load: the compiled forward pass is missing;"
    " docs/deploy.md says how to build it"
)
PASS_UNFIT = "the layers run in Python: the compiled forward pass does not compute this model's"


def read_model_sizes(source: ModelSource) -> EncoderConfig:
    """Return a model's sizes from its configuration, without reading its weights.

    Raises:
        CheckpointError: a file is missing or broken, or the architecture is not supported.
    """
    return source.preset or checkpoint.read_sizes(source.folder)


def load_model(
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    backend: Kernels | None = None,
    *,
    numbers: bool = True,
) -> Model:
    """Load a folder's model, or an untrained model of a preset's sizes with its tokenizer.

    On torch's meta device a folder's is checked likewise, in the memory of its largest tensors.

    Args:
        backend: kernels to compute with; None: the fastest that are right on this machine.
        numbers: whether to check each number of the weights; if not, only the headers of their
            files are read, on the meta device alone, and the model has no digest.

    Raises:
        CheckpointError: why it cannot be loaded.
    """
    # float32 must mean float32: no TF32, no bfloat16 in oneDNN, even if the environment asks for it
    torch.set_float32_matmul_precision("highest")
    config = read_model_sizes(source)
    backend = backend or kernels.choose_kernels(device, dtype, config.head_dim)
    if source.preset is not None:
        return checkpoint.make_untrained(source.preset, source.folder, device, dtype, backend)
    model = checkpoint.load_checkpoint(source.folder, device, dtype, backend, numbers=numbers)
    return checkpoint.with_adapters(model, source.folder, source.adapters)


def find_foreign_adapters(source: ModelSource) -> Iterator[str]:
    """Yield a warning for each adapter whose config names another base model than this one."""
    model_name = source.name.rpartition("/")[2].casefold()
    for name, folder in source.adapters.items():
        base = read_object(folder / ADAPTER).get("base_model_name_or_path")
        if isinstance(base, str) and base and model_name not in base.casefold():
            yield f"adapter {name} was trained over {base}, and the model is {source.name}"


@torch.inference_mode()
def use_compiled_pass(model: Model) -> None:
    """Set a model to run its layers in the compiled operator, if that gives the loop's own bits.

    So are the layers of a head that decides. If there is no operator, or its bits differ, the
    layers stay in Python, and the log says why.
    """
    cores = torch.get_num_threads()
    torch.set_num_threads(1)  # for a few short passes several cores only wait for each other
    try:
        for encoder in (model.encoder, *_list_head_layers(model)):
            _use_operator(encoder)
    finally:
        torch.set_num_threads(cores)


def _list_head_layers(model: Model) -> list[Encoder]:
    """Return the layers of a model's heads."""
    found = [head.layers for head in model.task_heads if isinstance(head, Decider)]
    return [layers for layers in found if layers is not None]


def _use_operator(encoder: Encoder) -> None:
    """Set one encoder to run in the compiled operator; see `use_compiled_pass`."""
    if not stack.calls_same_kernels(encoder.kernels):
        return
    try:
        native = stack.NativeStack(encoder, library.load_operator())
        if not agreement.agrees_with_loop(encoder, native):
            raise library.OperatorMissing("its bits differ from the loop's")
        encoder.native = native
    except NotImplementedError as error:
        logger.info(PASS_UNFIT, extra={"reason": str(error)})
    except (library.OperatorMissing, RuntimeError) as error:
        logger.warning(PASS_MISSING, extra={"reason": str(error)})
