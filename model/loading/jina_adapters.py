"""Read the adapters that Jina's checkpoints have for their tasks; a request may name one.

v3 stacks those of all tasks in its own tensors, for embedding tables too:

    X.parametrizations.weight.original    W, (outputs, inputs); or E, (rows, width)
    X.parametrizations.weight.0.lora_A    (tasks, rank, inputs); or (tasks, rows, rank)
    X.parametrizations.weight.0.lora_B    (tasks, outputs, rank); or (tasks, rank, width)

A task's weight is W + B A alpha / rank, or E + A B alpha / rank, and its instruction goes before a
text. Source: modeling_lora.py of jinaai/xlm-roberta-flash-implementation, which never runs.

v5 has a folder of PEFT's for each, adapters/NAME.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from model.adapters import Adapter, TableName, TableTerm
from model.encoder import Encoder
from model.errors import CheckpointError
from model.families.family import Family
from model.loading.adapters import MATRIX_SUFFIXES, read_rank_and_alpha, read_terms
from model.loading.files import CONFIG, WEIGHTS, find_weight_files
from model.loading.modules import find_folders
from model.loading.tensors import StoredTensor, by_bare_name, check_tensors, open_tensors

PARAMETRIZED_WEIGHT = ".parametrizations.weight"  # torch's names of weights with adapters
ORIGINAL_WEIGHT = f"{PARAMETRIZED_WEIGHT}.original"  # W, without adapters
STACKED_SUFFIXES = {  # of stacked matrices -> PEFT's
    f"{PARAMETRIZED_WEIGHT}.0.lora_A": MATRIX_SUFFIXES[0],
    f"{PARAMETRIZED_WEIGHT}.0.lora_B": MATRIX_SUFFIXES[1],
}
TABLE_TENSORS: Mapping[TableName, str] = {"word": "word", "type": "types"}  # keys of TensorNames
TENSOR_TASKS_KEY, FOLDER_TASKS_KEY = "lora_adaptations", "task_names"  # the keys that name tasks
ADAPTERS_FOLDER = "adapters"  # with a folder for each task


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """The settings of adapters that are stacked in a checkpoint's own tensors.

    Args:
        tasks: names of the tasks, in the order of the stack.
        scale: factor of B A.
        instructions: text put before a text, by task.
    """

    tasks: Sequence[str]
    rank: int  # of A and B
    scale: float
    instructions: Mapping[str, str] = field(default_factory=dict)


def read_stack(raw: Mapping[str, Any], family: Family) -> AdapterStack | None:
    """Return config.json's settings of stacked adapters; None: there are none.

    Raises:
        CheckpointError: a key is missing, or its value is not supported.
    """
    if family.tasks_key != TENSOR_TASKS_KEY or raw.get(TENSOR_TASKS_KEY) is None:
        return None
    tasks = _read_task_names(raw, TENSOR_TASKS_KEY)
    if raw.get("load_trained_adapters") is not True:
        raise CheckpointError(f"{CONFIG}: {TENSOR_TASKS_KEY} without load_trained_adapters true")
    rank, alpha = read_rank_and_alpha(raw, "lora_rank", CONFIG)
    instructions = raw.get("task_instructions")
    if not isinstance(instructions, Mapping) or instructions.keys() != {*tasks}:
        raise CheckpointError(f"{CONFIG}: task_instructions is not of the tasks {tasks}")
    if not all(isinstance(text, str) for text in instructions.values()):
        raise CheckpointError(f"{CONFIG}: task_instructions are not all texts")
    return AdapterStack(tasks, rank, alpha / rank, dict(instructions))


def find_adapter_folders(raw: Mapping[str, Any], family: Family, folder: Path) -> dict[str, Path]:
    """Return the folders of the PEFT adapters that config.json names, by task."""
    if family.tasks_key != FOLDER_TASKS_KEY or raw.get(FOLDER_TASKS_KEY) is None:
        return {}
    return {
        task: folder / ADAPTERS_FOLDER / task for task in _read_task_names(raw, FOLDER_TASKS_KEY)
    }


def without_adapters(
    stack: AdapterStack | None, tensors: Mapping[str, StoredTensor]
) -> Mapping[str, StoredTensor]:
    """Return the tensors of the model alone, under the names of a model without adapters."""
    if stack is None:
        return tensors
    return {
        name.removesuffix(ORIGINAL_WEIGHT) + ".weight"
        if name.endswith(ORIGINAL_WEIGHT)
        else name: tensor
        for name, tensor in tensors.items()
        if not name.endswith((*STACKED_SUFFIXES,))
    }


def read_adapters(
    stack: AdapterStack,
    folder: Path,
    encoder: Encoder,
    family: Family,
    digest: str,
    dtype: torch.dtype,
    heads: bool,
) -> dict[str, Adapter]:
    """Return the adapters stacked in a folder's own tensors, by task.

    Args:
        folder: of the encoder's files.
        digest: the model's.
        dtype: of the encoder's numbers.
        heads: whether a task head follows the encoder.

    Raises:
        CheckpointError: a tensor is missing, extra, misshapen or not finite.
    """
    adapters = {}
    files = {path.name: path for path in find_weight_files(find_folders(folder), folder)}
    with open_tensors(files) as tensors:
        stacks = _find_matrices(by_bare_name(tensors, family), len(stack.tasks))
        for index, task in enumerate(stack.tasks):
            own = {name: matrix._replace(part=index) for name, matrix in stacks.items()}
            tables = _pop_table_terms(own, stack, encoder, family, dtype)
            terms = read_terms(
                own, encoder, family, stack.rank, stack.scale, dtype, heads, file=WEIGHTS
            )
            total = hashlib.sha256(f"{digest} {task}".encode()).hexdigest()
            adapters[task] = Adapter.build(encoder, f"sha256:{total[:12]}", terms, tables)
    return adapters


def _read_task_names(raw: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of tasks under a key of config.json."""
    names: list[str] = raw[key]
    right = isinstance(names, list) and all(isinstance(one, str) and one for one in names)
    if not right or not names or len({*names}) < len(names):
        raise CheckpointError(f"{CONFIG}: {key} {names!r} is not a list of names, each once")
    if outside := [one for one in names if "/" in one or "\\" in one or one in (".", "..")]:
        raise CheckpointError(f"{CONFIG}: {key} {outside[0]!r} is not a name")
    return names


def _find_matrices(plain: Mapping[str, StoredTensor], tasks: int) -> dict[str, StoredTensor]:
    """Return the stacked matrices of all tasks, under PEFT's names.

    Raises:
        CheckpointError: a weight lacks one, or a stack has another number of tasks.
    """
    found: dict[str, StoredTensor] = {}
    problems = []
    for name, tensor in plain.items():
        for end, matrix in STACKED_SUFFIXES.items():
            if name.endswith(end):
                found[name.removesuffix(end) + matrix] = tensor
                if len(tensor.shape) != 3 or tensor.shape[0] != tasks:
                    problems.append(f"{name} is {tensor.shape}, not of {tasks} tasks")
    for name in plain:
        if name.endswith(ORIGINAL_WEIGHT):
            module = name.removesuffix(ORIGINAL_WEIGHT)
            lacks = [
                end for end, matrix in STACKED_SUFFIXES.items() if module + matrix not in found
            ]
            problems += [f"missing {module}{end}" for end in lacks]
    if problems:
        raise CheckpointError(f"{WEIGHTS}: {'; '.join(sorted(problems))}")
    return found


def _pop_table_terms(
    own: dict[str, StoredTensor],
    stack: AdapterStack,
    encoder: Encoder,
    family: Family,
    dtype: torch.dtype,
) -> dict[TableName, TableTerm]:
    """Remove one task's matrices of embedding tables from `own`, and return their terms."""
    found: dict[TableName, TableTerm] = {}
    for ours, key in TABLE_TENSORS.items():
        table = getattr(encoder.embeddings, key)
        names = [names[key] + matrix for names in family.tensor_names for matrix in MATRIX_SUFFIXES]
        tensors = {name: own.pop(name) for name in dict.fromkeys(names) if name in own}
        if not tensors:
            continue
        narrow, widen = names[:2]
        rows, width = (0, 0) if table is None else table.shape
        shapes = {narrow: (rows, stack.rank), widen: (stack.rank, width)}
        check_tensors(tensors, shapes, WEIGHTS)
        a, b = (tensors[name].read().float() for name in (narrow, widen))
        transposed = (stack.scale * b).T.contiguous().to(encoder.device, dtype)
        found[ours] = TableTerm(
            a.to(encoder.device, dtype), encoder.kernels.linear(transposed, None)
        )
    return found
