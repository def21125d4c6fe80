"""One pickle -> one safetensors file, in a process of its own with limits on memory and time.

    python -I pickles.py PICKLE SAFETENSORS SECONDS

torch.load(weights_only=True) builds tensors and plain containers, and runs no code of the file
unless it has a flaw: it had two (SECURITY.md). What was written is compared with what was read,
bit by bit. The process prints a JSON object; a refusal is a line on stderr and REFUSED_EXIT_CODE.
The file imports nothing of ours, so that it runs by its path.
"""

import json
import pickle
import re
import resource
import sys
from pathlib import Path
from typing import Any

REFUSED_EXIT_CODE = 3  # the process's status after Unconvertible
MIB = 2**20  # bytes
# Memory beyond what Python and torch have mapped: the file, its tensors, the output and one more
# copy of it; and a fixed part
FILES_IN_MEMORY, SPARE_MEMORY = 4, 512 * MIB
OPEN_FILES = 64  # most at a time
GLOBAL_NAME = re.compile(r"GLOBAL (\S+)")  # in torch's message on a class it does not load


class Unconvertible(Exception):
    """The file is not what it should be; the message is one line."""


def main(source: Path, target: Path, seconds: int) -> None:
    """Convert a pickle to safetensors, compare the two, and print each tensor's bytes as JSON.

    Args:
        seconds: bound of the CPU time.

    Raises:
        Unconvertible: the file is not what it should be, or asks for too much.
    """
    import torch  # slow, and the bound on memory counts from here

    limit_resources(source.stat().st_size, seconds)
    try:
        tensors = load_pickle(torch, source)
        sizes = write_safetensors(torch, tensors, target)
        compare_tensors(torch, tensors, target)
    except (MemoryError, RuntimeError) as error:  # the second is torch's allocator
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise Unconvertible("it asks for more memory than its size explains") from None
    print(json.dumps(sizes))


def limit_resources(size: int, seconds: int) -> None:
    """Bound this process's memory, output, CPU time and open files for a pickle of `size` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + FILES_IN_MEMORY * size + SPARE_MEMORY
    lower_limit(resource.RLIMIT_AS, most)
    lower_limit(resource.RLIMIT_FSIZE, 2 * size + SPARE_MEMORY)
    lower_limit(resource.RLIMIT_CPU, seconds)
    lower_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    lower_limit(resource.RLIMIT_CORE, 0)


def lower_limit(limit: int, most: int) -> None:
    """Set one of the process's RLIMIT_* to `most`, or leave it where it is lower already."""
    _, before = resource.getrlimit(limit)
    most = most if before == resource.RLIM_INFINITY else min(most, before)
    resource.setrlimit(limit, (most, most))


def load_pickle(torch: Any, source: Path) -> dict[str, Any]:
    """Read the tensors of a pickle by name; `torch` is the module, imported late by `main`.

    Raises:
        Unconvertible: it holds something other than dense tensors by name, or cannot be read.
    """
    try:
        with source.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"  # which can be mapped to memory
        tensors = torch.load(source, mmap=is_zip, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        refused = GLOBAL_NAME.search(str(error))
        if refused:
            raise Unconvertible(
                f"it asks for {refused[1]}, which is not a tensor; it may run code"
            ) from error
        raise Unconvertible(f"it is not a pickle of tensors: {first_sentence(error)}") from error
    except Exception as error:  # the file may be anything
        if "allocate" in str(error):
            raise MemoryError from error
        raise Unconvertible(f"torch cannot read it: {first_sentence(error)}") from error
    if not isinstance(tensors, dict) or not tensors:
        raise Unconvertible("it holds no tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise Unconvertible(f"its entry {str(name)[:80]!r} is not a named tensor")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            raise Unconvertible(f"its tensor {name[:80]!r} is not dense numbers")
    return tensors


def write_safetensors(torch: Any, tensors: dict[str, Any], target: Path) -> dict[str, int]:
    """Write tensors, shared memory once for each name; return the bytes of each by its name."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        is_whole = tensor.is_contiguous() and tensor.nbytes == storage.nbytes()
        is_first = storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        copies[name] = (
            tensor.detach()
            if is_whole and is_first
            else tensor.detach().clone(memory_format=torch.contiguous_format)
        )
    save_file(copies, target, metadata={"format": "pt"})
    return {name: tensor.nbytes for name, tensor in copies.items()}


def compare_tensors(torch: Any, tensors: dict[str, Any], target: Path) -> None:
    """Compare what was written with the pickle: names, dtypes, shapes, bits.

    Raises:
        Unconvertible: they differ.
    """
    from safetensors import safe_open

    with safe_open(target, framework="pt") as file:
        if set(file.keys()) != tensors.keys():
            raise Unconvertible("what was written has other names")
        for name, tensor in tensors.items():
            written = file.get_tensor(name)
            same = written.dtype == tensor.dtype and written.shape == tensor.shape
            if not same or not torch.equal(as_bytes(torch, written), as_bytes(torch, tensor)):
                raise Unconvertible(f"what was written of {name[:80]!r} differs")


def as_bytes(torch: Any, tensor: Any) -> Any:
    """View a tensor's numbers as bytes, (bytes,)."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message, in one line of at most 200 characters."""
    return " ".join(str(error).split(". ")[0].split())[:200] or type(error).__name__


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except Unconvertible as refusal:
        sys.stderr.write(f"{refusal}\n")
        raise SystemExit(REFUSED_EXIT_CODE) from None
