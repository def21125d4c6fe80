"""Read safetensors files: check that all tensors are there, and return them by our names."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.errors import CheckpointError
from model.families.family import Family, TensorNames
from model.loading.assembly import FindTensor
from model.loading.files import WEIGHTS, check_fetched

# of tensors of task heads and buffers, which the encoder does not use
SPARE_PREFIXES = (
    *("pooler.", "cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "classifier."),
    *("pre_classifier.", "qa_outputs.", "vocab_", "discriminator_predictions.", "generator_"),
    *("predictions.", "sop_classifier.", "head.", "decoder.", "embeddings.position_ids"),
)
SPARE_ENDS = ("inv_freq", "original_inv_freq")  # of buffers, likewise
OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files made before 2019
# tensor that a checkpoint may store instead of several of ours -> these, in the order of its rows
PARTS_OF_FUSED = {
    "qkv": ("query", "key", "value"),
    "gate_up": ("gate", "up"),
    "up_gate": ("up", "gate"),
}

# what wraps a model puts this into the names of its tensors -> what that is
WRAPPERS = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "torch's activation checkpointing",
    "module": "DataParallel",  # and DistributedDataParallel; of every name the first part
}

REAL_DTYPES = ("F64", "F32", "F16", "BF16")  # not quantised

Shape = tuple[int, ...]  # of a tensor
# our name -> the checkpoint's, and (index, count) of the equal part of its rows; None: all rows
Places = dict[str, tuple[str, tuple[int, int] | None]]


class StoredTensor(NamedTuple):
    """A tensor in an open file, read on demand.

    Args:
        file: of safetensors.safe_open.
        numbers: whether `read` reads them; else it returns a tensor on torch's meta device.
        part: index along the first axis of the slice that it is; None: the whole tensor.
    """

    file: Any
    name: str  # in the file
    numbers: bool = True
    part: int | None = None

    @property
    def shape(self) -> Shape:
        """Return the shape, from the file's header; of a part without the first axis."""
        whole = tuple(self.file.get_slice(self.name).get_shape())
        return whole if self.part is None else whole[1:]

    @property
    def dtype(self) -> str:
        """Return safetensors' name of the dtype, such as "F32"."""
        name: str = self.file.get_slice(self.name).get_dtype()
        return name

    def read(self) -> Tensor:
        """Read the tensor, or its part, on the host; a meta tensor unless `numbers`."""
        if not self.numbers:
            return torch.empty(self.shape, device="meta")
        tensor: Tensor = (
            self.file.get_tensor(self.name)
            if self.part is None
            else self.file.get_slice(self.name)[self.part]
        )
        return tensor


@contextmanager
def open_tensors(
    files: Mapping[str, Path], *, numbers: bool = True
) -> Iterator[dict[str, StoredTensor]]:
    """Open safetensors files, and yield all their tensors by name.

    Args:
        files: by their names in messages.
        numbers: as of StoredTensor.

    Raises:
        CheckpointError: a file is not of safetensors, is a Git-LFS pointer, or holds the names of
            a wrapped model.
    """
    check_fetched(files.values())
    with ExitStack() as stack:
        tensors: dict[str, StoredTensor] = {}
        for name, path in files.items():
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise CheckpointError(f"{name} is not a safetensors file: {error}") from error
            _refuse_wrapped(name, file.keys())
            tensors |= {name: StoredTensor(file, name, numbers) for name in file.keys()}
        yield tensors


def _refuse_wrapped(file: str, names: Collection[str]) -> None:
    """Refuse a file whose names are those of a wrapped model, in one line instead of one a name.

    Raises:
        CheckpointError: says what wrapped it.
    """
    parts = [name.split(".") for name in names]
    for wrapper, what in WRAPPERS.items():
        everywhere = all(first == wrapper for first, *_ in parts)
        if everywhere or (wrapper != "module" and any(wrapper in name for name in parts)):
            wrong = f'names have "{wrapper}.", as {what} saves them'
            raise CheckpointError(f"{file}: {wrong}: save the model inside it, or rename them")


def check_tensors(
    tensors: Mapping[str, StoredTensor], shapes: Mapping[str, Shape], file: str
) -> None:
    """Check that there are exactly the tensors of these names and shapes.

    Args:
        tensors, shapes: those that are there, and those expected, by name.
        file: the name of their file, for the message.

    Raises:
        CheckpointError: names every one that is missing, extra, misshapen, quantised or not
            finite.
    """
    problems = [f"missing {name}" for name in shapes.keys() - tensors.keys()]
    problems += [f"unexpected {name}" for name in tensors.keys() - shapes.keys()]
    for name in shapes.keys() & tensors.keys():
        if tensors[name].shape != shapes[name]:
            problems.append(f"{name} is {tensors[name].shape}, not {shapes[name]}")
        elif tensors[name].dtype not in REAL_DTYPES:
            problems.append(
                f"{name} holds {tensors[name].dtype}, not one of {', '.join(REAL_DTYPES)}"
            )
        elif tensors[name].numbers and not tensors[name].read().float().isfinite().all():
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        raise CheckpointError(f"{file}: {'; '.join(sorted(problems))}")


def translate_names(
    tensors: Mapping[str, StoredTensor], shapes: Mapping[str, Shape], family: Family
) -> FindTensor:
    """Check a checkpoint's tensors, and return a function that reads each by our name.

    Args:
        tensors: the checkpoint's, by its own names.
        shapes: of all tensors that the encoder needs, by our names.

    Raises:
        CheckpointError: names every tensor that is missing, extra, misshapen or not finite.
    """
    plain = {
        name: tensor
        for name, tensor in by_bare_name(tensors, family).items()
        if not name.startswith(SPARE_PREFIXES) and not name.endswith(SPARE_ENDS)
    }
    places = min(
        (find_places(shapes, names) for names in family.tensor_names),
        key=lambda places: (
            len(shapes) - len(places),
            len({name for name, _ in places.values()} - plain.keys()),
        ),
    )
    expected = expected_of_file(places, shapes)
    found = {
        name: tensor
        for name, tensor in plain.items()
        if name in expected or not name.startswith(family.spare_prefixes)
    }
    check_tensors(found, expected, WEIGHTS)
    return read_places(places, plain)


def expected_of_file(places: Places, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shapes of a file's tensors, by its names; some hold several of ours.

    Args:
        places: where the file has each of ours.
        shapes: of ours.
    """
    return {
        name: (shapes[ours][0] * (part[1] if part else 1), *shapes[ours][1:])
        for ours, (name, part) in places.items()
    }


def read_places(places: Places, tensors: Mapping[str, StoredTensor]) -> FindTensor:
    """Return a function that reads a tensor by our name from its place among a file's tensors."""

    def read_by_our_name(our_name: str) -> Tensor:
        """Read the tensor of this name; where the checkpoint fuses several, its part alone."""
        name, part = places[our_name]
        tensor = tensors[name].read()
        if part is None:
            return tensor
        index, count = part
        return tensor.chunk(count)[index]

    return read_by_our_name


def by_bare_name(tensors: Mapping[str, StoredTensor], family: Family) -> dict[str, StoredTensor]:
    """Return the tensors by their current names in a model without a task head."""
    return {_bare_name(name, family): tensor for name, tensor in tensors.items()}


def find_places(our_names: Iterable[str], names: TensorNames) -> Places:
    """Return where a checkpoint with these names stores our tensors, without those it lacks."""
    found: Places = {}
    for our_name in our_names:
        base, _, kind = our_name.rpartition(".")
        layer = base.split(".")[1] if base.startswith("layers.") else ""
        short = base.rpartition(".")[2]
        key = f"layers.{{i}}.{short}" if layer else base
        if key in names:
            found[our_name] = (f"{names[key].format(i=layer)}.{kind}", None)
            continue
        for whole, parts in PARTS_OF_FUSED.items():
            if short in parts and f"layers.{{i}}.{whole}" in names:
                name = names[f"layers.{{i}}.{whole}"].format(i=layer)
                found[our_name] = (f"{name}.{kind}", (parts.index(short), len(parts)))
    return found


def _bare_name(name: str, family: Family) -> str:
    """Return a tensor's current name, without the prefix of a model with a task head."""
    for prefix in family.prefixes:
        name = name.removeprefix(prefix)
    for old, new in family.renamed_prefixes.items():
        name = new + name.removeprefix(old) if name.startswith(old) else name
    for old, new in OLD_SUFFIXES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name
