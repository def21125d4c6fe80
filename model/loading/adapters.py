"""A folder of PEFT's with a LoRA adapter -> an adapter over a loaded encoder.

Reads adapter_config.json and adapter_model.safetensors. Settings of the config that are not
supported are refused by name; so is a tensor that belongs to no linear of a layer.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.adapters import Adapter, LinearKey, LinearTerm
from model.config import EncoderConfig
from model.encoder import Encoder
from model.errors import CheckpointError, refuse_unsupported
from model.families.family import Family
from model.loading.assembly import expected_shapes
from model.loading.files import read_object
from model.loading.tensors import (
    Places,
    StoredTensor,
    by_bare_name,
    check_tensors,
    find_places,
    open_tensors,
)

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME_PREFIX = "base_model.model."  # PEFT's, before every name
POOLER_PREFIX = "pooler."  # of task heads alone, not of the encoder
MATRIX_SUFFIXES = (".lora_A.weight", ".lora_B.weight")  # of A and B, after a linear's name
KEYS_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "init_lora_weights", "bias"}
KEYS_WITHOUT_EFFECT = {  # they only say which tensors there are, or matter in training alone
    "task_type",
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "qalora_group_size",
    "base_model_name_or_path",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
}
INITIALISATIONS = (True, False, None, "gaussian", "orthogonal", "eva")  # others change W too
# linear of a layer -> the checkpoint's linears whose rows it holds, in their order
PARTS_OF_LINEARS = {
    "project": ("query", "key", "value"),
    "output": ("output",),
    "up": ("gate", "up"),
    "down": ("down",),
}


class LinearPart(NamedTuple):
    """The rows of an encoder's linear that come from a linear of a checkpoint.

    Args:
        linear: the encoder's linear.
        first: the first of these rows in it.
        rows: how many they are.
        chunk: which of how many equal parts of the checkpoint's rows they are.
        inputs, outputs: of the encoder's linear.
    """

    linear: LinearKey
    first: int
    rows: int
    chunk: tuple[int, int]
    inputs: int
    outputs: int


def read_adapter(
    folder: Path, encoder: Encoder, family: Family, digest: str, dtype: torch.dtype, heads: bool
) -> Adapter:
    """Load the adapter of a PEFT folder.

    Args:
        digest: the model's.
        dtype: of the encoder's numbers.
        heads: whether a task head follows the encoder, which may read the pooler.

    Raises:
        CheckpointError: a file is missing or broken, or has settings that are not supported.
    """
    with _open_adapter(folder) as (rank, scale, tensors):
        terms = read_terms(tensors, encoder, family, rank, scale, dtype, heads)
    total = hashlib.sha256(digest.encode())
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        total.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return Adapter.build(encoder, f"sha256:{total.hexdigest()[:12]}", terms)


def read_terms(
    tensors: Mapping[str, StoredTensor],
    encoder: Encoder,
    family: Family,
    rank: int,
    scale: float,
    dtype: torch.dtype,
    heads: bool,
    file: str = ADAPTER_WEIGHTS,
) -> dict[LinearKey, LinearTerm]:
    """Return the term of each linear that an adapter's tensors add to.

    Args:
        tensors: by PEFT's names.
        rank, scale: the adapter's rank, and the factor of B A.
        dtype, heads: as of `read_adapter`.
        file: the name of their file, for messages.

    Raises:
        CheckpointError: a tensor is missing, extra, misshapen or not finite.
    """
    plain, linears = _find_tensors(tensors, encoder.config, family, rank, heads, file)
    linear, terms = encoder.kernels.linear, {}
    for key, pairs in _matrices_by_linear(plain, linears, rank, scale).items():
        a, b = torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], 1)
        narrow, widen = (matrix.contiguous().to(encoder.device, dtype) for matrix in (a, b))
        terms[key] = LinearTerm(linear(narrow, None), linear(widen, None))
    return terms


def count_stored(folder: Path, config: EncoderConfig, family: Family) -> int:
    """Count the numbers that a loaded adapter holds, zeros in rows of other linears included.

    Raises:
        CheckpointError: as `read_adapter`, but a pooler counts for nothing.
    """
    with _open_adapter(folder) as (rank, _, tensors):
        plain, linears = _find_tensors(tensors, config, family, rank, heads=False)
        sizes = {
            (module, part.linear): rank * (part.inputs + part.outputs)
            for module in _adapted_modules(plain)
            for part in linears[module]
        }
    return sum(sizes.values())


@contextmanager
def _open_adapter(folder: Path) -> Iterator[tuple[int, float, dict[str, StoredTensor]]]:
    """Yield an adapter's rank, the factor of B A, and its tensors by name.

    Raises:
        CheckpointError: any raised while it is open, with the folder's name added.
    """
    try:
        rank, scale = _read_config(folder)
        path = folder / ADAPTER_WEIGHTS
        if not path.is_file():
            raise CheckpointError(
                f"no {ADAPTER_WEIGHTS}; an adapter is read from PEFT's safetensors"
            )
        with open_tensors({ADAPTER_WEIGHTS: path}) as tensors:
            yield rank, scale, tensors
    except CheckpointError as error:
        raise CheckpointError(f"adapter {folder}: {error}") from error


def _read_config(folder: Path) -> tuple[int, float]:
    """Return an adapter's rank and the factor of B A."""
    config = read_object(folder / ADAPTER_CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise CheckpointError(f"{ADAPTER_CONFIG}: peft_type {kind!r} is not supported; LORA is")
    refused = [key for key in config if key not in KEYS_READ | KEYS_WITHOUT_EFFECT and config[key]]
    refused += ["bias"] if config.get("bias", "none") != "none" else []
    has_known_start = config.get("init_lora_weights", True) in INITIALISATIONS
    refused += [] if has_known_start else ["init_lora_weights"]
    values = (f"{key}: {json.dumps(config[key])}" for key in sorted(refused))
    refuse_unsupported(ADAPTER_CONFIG, *values)
    rank, alpha = read_rank_and_alpha(config, "r", ADAPTER_CONFIG)
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def read_rank_and_alpha(config: Mapping[str, Any], rank_key: str, file: str) -> tuple[int, float]:
    """Return an adapter's rank and lora_alpha.

    Raises:
        CheckpointError: one of them is no such number.
    """
    rank, alpha = config.get(rank_key), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise CheckpointError(f"{file}: {rank_key} {rank!r} is not a whole number from 1 on")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(f"{file}: lora_alpha {alpha!r} is not a number")
    return rank, alpha


def _find_tensors(
    tensors: Mapping[str, StoredTensor],
    config: EncoderConfig,
    family: Family,
    rank: int,
    heads: bool,
    file: str = ADAPTER_WEIGHTS,
) -> tuple[dict[str, StoredTensor], dict[str, list[LinearPart]]]:
    """Return an adapter's tensors and the linears they may belong to, by names in a checkpoint.

    Raises:
        CheckpointError: a tensor is missing, extra, misshapen or not finite.
    """
    bare = {name.removeprefix(NAME_PREFIX): tensor for name, tensor in tensors.items()}
    plain = by_bare_name(bare, family)
    if not heads:
        plain = {name: one for name, one in plain.items() if not name.startswith(POOLER_PREFIX)}
    shapes = {
        name: shape for name, shape in expected_shapes(config).items() if name.endswith(".weight")
    }
    linears = max(
        (
            _parts_by_name(config, find_places(shapes, names), shapes)
            for names in family.tensor_names
        ),
        key=lambda parts: len(_adapted_modules(plain) & parts.keys()),
    )
    expected: dict[str, tuple[int, ...]] = {}
    for module in _adapted_modules(plain) & linears.keys():
        part = linears[module][0]
        narrow, widen = (module + matrix for matrix in MATRIX_SUFFIXES)
        expected[narrow] = (rank, part.inputs)
        expected[widen] = (part.rows * part.chunk[1], rank)
    check_tensors(plain, expected, file)
    if not expected:
        raise CheckpointError(f"{file} adds to no linear of a layer")
    return plain, linears


def _matrices_by_linear(
    plain: Mapping[str, StoredTensor],
    linears: Mapping[str, Sequence[LinearPart]],
    rank: int,
    scale: float,
) -> Mapping[LinearKey, Sequence[tuple[Tensor, Tensor]]]:
    """Return each linear's pairs of A, (rank, inputs), and scaled B, (outputs, rank).

    B has zeros in the rows of the linear's other parts.
    """
    by_linear = defaultdict[LinearKey, list[tuple[Tensor, Tensor]]](list)
    for module in sorted(_adapted_modules(plain)):
        a, b = (plain[module + matrix].read().float() for matrix in MATRIX_SUFFIXES)
        own = defaultdict[LinearKey, list[LinearPart]](list)
        for part in linears[module]:
            own[part.linear].append(part)
        for key, parts in own.items():
            tall = b.new_zeros(parts[0].outputs, rank)
            for part in parts:
                index, count = part.chunk
                tall[part.first : part.first + part.rows] = scale * b.chunk(count)[index]
            by_linear[key].append((a, tall))
    return by_linear


def _adapted_modules(names: Iterable[str]) -> set[str]:
    """Return the names of the modules that have a matrix A or B."""
    return {name.removesuffix(m) for name in names for m in MATRIX_SUFFIXES if name.endswith(m)}


def _parts_by_name(
    config: EncoderConfig, places: Places, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, list[LinearPart]]:
    """Return the encoder's rows that each of a checkpoint's linears makes up, by its name."""
    linears, relative = defaultdict[str, list[LinearPart]](list), config.relative
    by_distance = ("query", "key") if relative.terms and relative.shared else ()
    for i in range(config.own_layers):
        for name, parts in PARTS_OF_LINEARS.items():
            named = {f"layers.{i}.{part}.weight": part for part in parts}
            ours = [one for one in named if one in places]
            first, outputs = 0, sum(shapes[one][0] for one in ours)
            for one in ours:
                (theirs, chunk), (rows, inputs) = places[one], shapes[one]
                if named[one] not in by_distance:  # these project distances too
                    linears[theirs.removesuffix(".weight")].append(
                        LinearPart((i, name), first, rows, chunk or (0, 1), inputs, outputs)
                    )
                first += rows
    return dict(linears)
