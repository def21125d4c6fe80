"""Read a Pooling and the layers behind it: Dense, LayerNorm, Dropout and Normalize.

1_Pooling/config.json
2_Dense/config.json, model.safetensors
3_LayerNorm/model.safetensors
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from model import steady
from model.config import PoolingMode
from model.errors import CheckpointError, advise_conversion, refuse_unsupported
from model.kernels import Kernels
from model.loading.files import CONFIG, PICKLES, WEIGHTS, read_object
from model.loading.modules import read_optional
from model.loading.pipeline.keys import TOKENS_OUTPUT, VECTOR_OUTPUT
from model.loading.tensors import Shape, check_tensors, open_tensors
from model.pooling import Dense, Norm, PoolingLayer, Unit, identity

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # by the class that a Dense names
    "torch.nn.modules.linear.Identity": identity,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.activation.ReLU": F.relu,
    "torch.nn.modules.activation.GELU": steady.ACTIVATIONS["gelu"],
    "torch.nn.modules.activation.SiLU": steady.ACTIVATIONS["silu"],
    "torch.nn.modules.activation.Sigmoid": partial(steady.map_numbers, torch.sigmoid),
}
MODE_OF_FLAG = {  # in the order in which several vectors are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODE_OF_NAME = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}  # others are alike
LAYER_KINDS = ("Dense", "LayerNorm", "Dropout", "Normalize")  # modules behind a Pooling
NORM_EPS = 1e-5  # torch.nn.LayerNorm's default, which no file states


def read_modes(folder: Path) -> tuple[PoolingMode, ...]:
    """Return how a Pooling module reduces token vectors; the mean where it does not say.

    Raises:
        CheckpointError: names what is not supported.
    """
    config = read_object(folder / CONFIG)
    flags = [mode for flag, mode in MODE_OF_FLAG.items() if config.get(flag)]
    names = config.get("pooling_mode", flags or ["mean"])  # sentence-transformers 6 writes this
    names = names if isinstance(names, list) else [names] * bool(names)
    modes = tuple(
        mode
        for name in names
        for mode in get_args(PoolingMode)
        if MODE_OF_NAME.get(str(name), name) == mode
    )
    if not names or len(modes) != len(names):
        raise CheckpointError(f"pooling not supported: {', '.join(map(str, names)) or 'none'}")
    return modes


def read_layers(
    modules: Sequence[tuple[str, Path]],
    inputs: int,
    device: torch.device,
    kernels: Kernels,
    output: str = VECTOR_OUTPUT,
) -> tuple[PoolingLayer, ...]:
    """Return the layers after a Pooling, without those that have no effect.

    Args:
        modules: kinds of LAYER_KINDS and their folders.
        inputs: size of the Pooling's vectors.
        output: the output name that the last Dense must have.

    Raises:
        CheckpointError: a choice that is not supported, or tensors that do not fit.
    """
    layers: list[PoolingLayer] = []
    last = max((i for i, (kind, _) in enumerate(modules) if kind == "Dense"), default=None)
    for place, (kind, path) in enumerate(modules):
        if kind == "Dense":
            name = output if place == last else VECTOR_OUTPUT
            layers.append(_read_vector_dense(path, inputs, device, kernels, name))
        elif kind == "LayerNorm":
            layers.append(_read_norm(path, inputs, device))
        elif kind == "Normalize" and read_normalized_input(path) == VECTOR_OUTPUT:
            layers.append(Unit(inputs))
        inputs = layers[-1].outputs if layers else inputs
    return tuple(layers)


def read_dense(folder: Path, inputs: int, device: torch.device, kernels: Kernels) -> Dense:
    """Return a Dense module, of sentence-transformers or PyLate, for vectors of texts or tokens.

    Raises:
        CheckpointError: an activation that is not supported, or tensors that do not fit.
    """
    config = read_object(folder / CONFIG)
    name, has_residual = config.get("activation_function"), config.get("use_residual", False)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(f"{folder.name}: not supported: activation_function {name!r}")
    path, where = find_weights_file(folder)
    with open_tensors({where: path}) as tensors:
        shape = tensors["linear.weight"].shape if "linear.weight" in tensors else ()
        outputs = max((1, *shape[:1]))
        shapes: dict[str, Shape] = {"linear.weight": (outputs, inputs)}
        shapes |= {"linear.bias": (outputs,)} if config.get("bias", True) else {}
        projects_residual = bool(has_residual) and outputs != inputs
        shapes |= {"residual.weight": (outputs, inputs)} if projects_residual else {}
        check_tensors(tensors, shapes, where)
        read = {name: tensors[name].read().float().to(device) for name in shapes}
    linear = kernels.linear(read["linear.weight"], read.get("linear.bias"))
    residual: Callable[[Tensor], Tensor] | None = identity if has_residual else None
    if projects_residual:
        residual = kernels.linear(read["residual.weight"], None)
    return Dense(
        linear, ACTIVATIONS[name], outputs, outputs * inputs * (1 + projects_residual), residual
    )


def read_normalized_input(folder: Path) -> str:
    """Return the name of the input that a Normalize module scales to length 1.

    Raises:
        CheckpointError: neither the vector nor the tokens', or its output has another name.
    """
    config = read_optional(folder / CONFIG)
    name = config.get("module_input_name", VECTOR_OUTPUT)
    written = config.get("module_output_name")
    if name not in (VECTOR_OUTPUT, TOKENS_OUTPUT) or written not in (None, name):
        problem = f"module_input_name {name!r}, module_output_name {written!r}"
        raise CheckpointError(f"{folder.name}: not supported: {problem}")
    return str(name)


def read_input_and_output(
    config: Mapping[str, Any], default: str = VECTOR_OUTPUT
) -> tuple[Any, Any]:
    """Return the names of a Dense module's input and output."""
    read = config.get("module_input_name", default)
    written = config.get("module_output_name")
    return read, read if written is None else written


def find_weights_file(folder: Path) -> tuple[Path, str]:
    """Return the file of a module's weights, and its name for messages.

    Raises:
        CheckpointError: there is none, or a pickle.
    """
    path, pickle = folder / WEIGHTS, folder / PICKLES[0]
    where = f"{folder.name}/{WEIGHTS}"
    if not path.is_file() and pickle.is_file():
        what = f"{folder.name}/{pickle.name} is a pickle, which can run code"
        raise CheckpointError(f"{what}; {advise_conversion(str(folder.parent))}")
    if not path.is_file():
        # pickles are not fetched from the hub, so the missing file may be one
        problem = f"; if the hub has a pickle there, {advise_conversion('ORG/NAME')}"
        raise CheckpointError(f"{folder.parent} lacks {where}{problem}")
    return path, where


def _read_vector_dense(
    folder: Path, inputs: int, device: torch.device, kernels: Kernels, output: str
) -> Dense:
    """Return a Dense module for vectors of texts; refuse other names of input or output."""
    read, written = read_input_and_output(read_object(folder / CONFIG))
    wrong = [] if read == VECTOR_OUTPUT else [f"module_input_name {read!r}"]
    wrong += [] if written == output else [f"module_output_name {written!r}"]
    refuse_unsupported(folder.name, *wrong)
    return read_dense(folder, inputs, device, kernels)


def _read_norm(folder: Path, inputs: int, device: torch.device) -> Norm:
    """Return a LayerNorm module."""
    path, where = find_weights_file(folder)
    shapes: dict[str, Shape] = {"norm.weight": (inputs,), "norm.bias": (inputs,)}
    with open_tensors({where: path}) as tensors:
        check_tensors(tensors, shapes, where)
        weight, bias = (tensors[name].read().float().to(device) for name in shapes)
    return Norm((weight, bias), NORM_EPS, inputs)
