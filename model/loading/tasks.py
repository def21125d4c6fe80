"""Adapters that a checkpoint brings for its tasks, of which a request may name one: Jina's.

v3 has them in its own tensors, those of all tasks in one, and of tables too:

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
from model.loading.adapters import MATRICES, read_sizes, read_terms
from model.loading.files import CONFIG, WEIGHTS, find_weights
from model.loading.tensors import Stored, by_plain_name, check, open_tensors

WEIGHT = ".parametrizations.weight"
ORIGINAL = f"{WEIGHT}.original"
STACKED = {f"{WEIGHT}.0.lora_A": MATRICES[0], f"{WEIGHT}.0.lora_B": MATRICES[1]}
TABLES: Mapping[TableName, str] = {"word": "word", "type": "types"}  # ours, in families' tables
IN_TENSORS, IN_FOLDERS = "lora_adaptations", "task_names"  # the keys that name tasks
FOLDERS = "adapters"


@dataclass(frozen=True, slots=True)
class Stack:
    """Adapters of all tasks in the checkpoint's own tensors.

    Args:
        tasks: in the order of the tensors.
        scale: what B A is multiplied by.
        instructions: what goes before a text, by task.
    """

    tasks: Sequence[str]
    rank: int
    scale: float
    instructions: Mapping[str, str] = field(default_factory=dict)


def read_stack(raw: Mapping[str, Any], family: Family) -> Stack | None:
    """Read what config.json says of adapters in its tensors; None: there are none.

    Raises:
        CheckpointError: a key is missing, or its value is not supported.
    """
    if family.tasks != IN_TENSORS or raw.get(IN_TENSORS) is None:
        return None
    tasks = _names(raw, IN_TENSORS)
    if raw.get("load_trained_adapters") is not True:
        raise CheckpointError(f"{CONFIG}: {IN_TENSORS} without load_trained_adapters true")
    rank, alpha = read_sizes(raw, "lora_rank", CONFIG)
    said = raw.get("task_instructions")
    if not isinstance(said, Mapping) or said.keys() != {*tasks}:
        raise CheckpointError(f"{CONFIG}: task_instructions is not of the tasks {tasks}")
    if not all(isinstance(text, str) for text in said.values()):
        raise CheckpointError(f"{CONFIG}: task_instructions are not all texts")
    return Stack(tasks, rank, alpha / rank, dict(said))


def find_folders(raw: Mapping[str, Any], family: Family, folder: Path) -> dict[str, Path]:
    """Return the folders of PEFT's adapters that a config.json names, by task."""
    if family.tasks != IN_FOLDERS or raw.get(IN_FOLDERS) is None:
        return {}
    return {task: folder / FOLDERS / task for task in _names(raw, IN_FOLDERS)}


def bare(stack: Stack | None, tensors: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """Return the tensors without those of adapters, by the names that they have without any."""
    if stack is None:
        return tensors
    return {
        name.removesuffix(ORIGINAL) + ".weight" if name.endswith(ORIGINAL) else name: one
        for name, one in tensors.items()
        if not name.endswith((*STACKED,))
    }


def read_adapters(
    stack: Stack,
    folder: Path,
    encoder: Encoder,
    family: Family,
    digest: str,
    dtype: torch.dtype,
    heads: bool,
) -> dict[str, Adapter]:
    """Read the adapters in a folder's own tensors, by task.

    Args:
        folder: of the encoder's files.
        digest: the model's, over whose files these are.
        dtype: of the encoder's numbers.
        heads: whether a task head follows the encoder.

    Raises:
        CheckpointError: a tensor is missing, extra, misshapen or not finite.
    """
    adapters = {}
    files = {path.name: path for path in find_weights(folder, folder)}
    with open_tensors(files) as tensors:
        stacks = _find(by_plain_name(tensors, family), len(stack.tasks))
        for place, task in enumerate(stack.tasks):
            own = {name: one._replace(part=place) for name, one in stacks.items()}
            tables = _tables(own, stack, encoder, family, dtype)
            terms = read_terms(
                own, encoder, family, stack.rank, stack.scale, dtype, heads, file=WEIGHTS
            )
            total = hashlib.sha256(f"{digest} {task}".encode()).hexdigest()
            adapters[task] = Adapter.build(encoder, f"sha256:{total[:12]}", terms, tables)
    return adapters


def _names(raw: Mapping[str, Any], key: str) -> list[str]:
    """Read the names of tasks."""
    names: list[str] = raw[key]
    right = isinstance(names, list) and all(isinstance(one, str) and one for one in names)
    if not right or not names or len({*names}) < len(names):
        raise CheckpointError(f"{CONFIG}: {key} {names!r} is not a list of names, each once")
    if outside := [one for one in names if "/" in one or "\\" in one or one in (".", "..")]:
        raise CheckpointError(f"{CONFIG}: {key} {outside[0]!r} is not a name")
    return names


def _find(plain: Mapping[str, Stored], tasks: int) -> dict[str, Stored]:
    """Return the matrices of all tasks, by the names that PEFT would give them.

    Raises:
        CheckpointError: a weight lacks one, or they are of another number of tasks.
    """
    found: dict[str, Stored] = {}
    problems = []
    for name, one in plain.items():
        for end, matrix in STACKED.items():
            if name.endswith(end):
                found[name.removesuffix(end) + matrix] = one
                if len(one.shape) != 3 or one.shape[0] != tasks:
                    problems.append(f"{name} is {one.shape}, not of {tasks} tasks")
    for name in plain:
        if name.endswith(ORIGINAL):
            module = name.removesuffix(ORIGINAL)
            lacks = [end for end, matrix in STACKED.items() if module + matrix not in found]
            problems += [f"missing {module}{end}" for end in lacks]
    if problems:
        raise CheckpointError(f"{WEIGHTS}: {'; '.join(sorted(problems))}")
    return found


def _tables(
    own: dict[str, Stored], stack: Stack, encoder: Encoder, family: Family, dtype: torch.dtype
) -> dict[TableName, TableTerm]:
    """Take one task's matrices of tables out of its own, and return what they add."""
    found: dict[TableName, TableTerm] = {}
    for ours, key in TABLES.items():
        table = getattr(encoder.embeddings, key)
        names = [names[key] + matrix for names in family.names for matrix in MATRICES]
        tensors = {name: own.pop(name) for name in dict.fromkeys(names) if name in own}
        if not tensors:
            continue
        narrow, widen = names[:2]
        rows, width = (0, 0) if table is None else table.shape
        shapes = {narrow: (rows, stack.rank), widen: (stack.rank, width)}
        check(tensors, shapes, WEIGHTS)
        a, b = (tensors[name].read().float() for name in (narrow, widen))
        transposed = (stack.scale * b).T.contiguous().to(encoder.device, dtype)
        found[ours] = TableTerm(
            a.to(encoder.device, dtype), encoder.kernels.linear(transposed, None)
        )
    return found
