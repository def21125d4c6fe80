"""One pickle -> one safetensors file, or the two compared, in a process that can do little else.

    python -I pickles.py write|compare PICKLE SAFETENSORS SECONDS

torch.load(weights_only=True) builds tensors and plain containers, and runs no code of the file. In
case it has a flaw, the process that calls it has no network, starts no program, writes into one
folder only, and has limits on memory and time; it prints a JSON object that says, among other
things, which of these the kernel grants. A refusal is one line on stderr, and status REFUSED. The
file imports nothing of ours, so that it runs by its path.
"""

import ctypes
import json
import os
import pickle
import re
import resource
import struct
import sys
from pathlib import Path
from typing import Any

REFUSED = 3
MIB = 2**20
# over what Python and torch have mapped: the file itself, its tensors as bytes, and one more
FILES_IN_MEMORY, SPARE_MEMORY = 3, 512 * MIB
OPEN_FILES = 64
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
# Landlock: system calls, and rights by the version of its interface that has them
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, REMOVE_FILE, MAKE_REGULAR = 1, 1 << 1, 1 << 5, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14
CHANGES = sum(1 << bit for bit in range(4, 13))  # make or remove anything
TCP = 3
GLOBAL = re.compile(r"GLOBAL (\S+)")


class Refused(Exception):
    """The file is not what it should be; the message is one line."""


def main(action: str, source: Path, target: Path, seconds: int) -> None:
    """Write the safetensors of a pickle, or compare the two.

    Args:
        seconds: of processor time.

    Raises:
        Refused: the file is not what it should be, or asks for too much.
    """
    held = confine(target.parent)
    import torch  # the namespaces above want a process of one thread

    bound(source.stat().st_size, seconds)
    try:
        tensors = load(torch, source)
        report = {"write": write, "compare": compare}[action](torch, tensors, target)
    except (MemoryError, RuntimeError) as error:  # the second is torch's allocator
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise Refused("it asks for more memory than its size explains") from None
    print(json.dumps({"held": held, **report}))


def confine(folder: Path) -> dict[str, str | None]:
    """Drop every right that reading a pickle does not need.

    Args:
        folder: that may be written to.

    Returns:
        The confinement of the network and of files; None for what the kernel does not grant.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    network = None
    if any(libc.unshare(flags) == 0 for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET)):
        network = "a network namespace of its own"
    files, tcp = landlock(libc, folder)
    return {"network": network or tcp, "files": files}


def landlock(libc: ctypes.CDLL, folder: Path) -> tuple[str | None, str | None]:
    """Keep files from being written and programs from being started, but for files of a folder."""

    def call(number: int, *arguments: Any) -> int:
        return int(libc.syscall(ctypes.c_long(number), *arguments))

    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return None, None
    writing = (
        WRITE_FILE | CHANGES | (REFER if version > 1 else 0) | (TRUNCATE if version > 2 else 0)
    )
    rules = struct.pack("<QQ", EXECUTE | writing, TCP)[: 16 if version > 3 else 8]
    ruleset = call(CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    inside = os.open(folder, os.O_PATH)
    allowed = WRITE_FILE | MAKE_REGULAR | REMOVE_FILE | (writing & TRUNCATE)
    rule = struct.pack("<Qi", allowed, inside)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = (
        ruleset >= 0
        and call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0)) == 0
        and call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) == 0
    )
    if not done:
        return None, None
    return "Landlock", "Landlock, TCP alone" if version > 3 else None


def bound(size: int, seconds: int) -> None:
    """Bound memory and processor time by what a file of this size explains."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + FILES_IN_MEMORY * size + SPARE_MEMORY
    limit(resource.RLIMIT_AS, most)
    limit(resource.RLIMIT_FSIZE, 2 * size + SPARE_MEMORY)
    limit(resource.RLIMIT_CPU, seconds)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)


def limit(kind: int, most: int) -> None:
    """Take no more than this, or than the shell that called leaves."""
    _, left = resource.getrlimit(kind)
    most = most if left == resource.RLIM_INFINITY else min(most, left)
    resource.setrlimit(kind, (most, most))


def load(torch: Any, source: Path) -> dict[str, Any]:
    """Read the tensors of a pickle by name.

    Raises:
        Refused: it holds anything else, or cannot be read so.
    """
    try:
        with source.open("rb") as file:
            today = file.read(4) == b"PK\x03\x04"  # whose numbers stay in the file until wanted
        tensors = torch.load(source, mmap=today, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        wanted = GLOBAL.search(str(error))
        if wanted:
            raise Refused(
                f"it asks for {wanted[1]}, which is not a tensor; it may run code"
            ) from error
        raise Refused(f"it is not a pickle of tensors: {line(error)}") from error
    except Exception as error:  # the file may be anything
        if "allocate" in str(error):
            raise MemoryError from error
        raise Refused(f"torch cannot read it: {line(error)}") from error
    if not isinstance(tensors, dict) or not tensors:
        raise Refused("it holds no tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise Refused(f"its entry {str(name)[:80]!r} is not a named tensor")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            raise Refused(f"its tensor {name[:80]!r} is not dense numbers")
    return tensors


def write(torch: Any, tensors: dict[str, Any], target: Path) -> dict[str, Any]:
    """Write the tensors; those that share memory are written once for each name."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        whole = tensor.is_contiguous() and tensor.nbytes == storage.nbytes()
        alone = storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        plain[name] = (
            tensor.detach()
            if whole and alone
            else tensor.detach().clone(memory_format=torch.contiguous_format)
        )
    save_file(plain, target, metadata={"format": "pt"})
    return {"bytes": {name: tensor.nbytes for name, tensor in plain.items()}}


def compare(torch: Any, tensors: dict[str, Any], target: Path) -> dict[str, Any]:
    """Compare what was written with the pickle: names, dtypes, shapes, bits.

    Raises:
        Refused: they differ.
    """
    from safetensors import safe_open

    with safe_open(target, framework="pt") as file:
        if set(file.keys()) != tensors.keys():
            raise Refused("what was written has other names")
        for name, tensor in tensors.items():
            written = file.get_tensor(name)
            same = written.dtype == tensor.dtype and written.shape == tensor.shape
            if not same or not torch.equal(bits(torch, written), bits(torch, tensor)):
                raise Refused(f"what was written of {name[:80]!r} differs")
    return {"bytes": {}}


def bits(torch: Any, tensor: Any) -> Any:
    """View a tensor's numbers as bytes, (bytes,)."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def line(error: Exception) -> str:
    """Write the first sentence of an error in one line."""
    return " ".join(str(error).split(". ")[0].split())[:200] or type(error).__name__


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    except Refused as refusal:
        sys.stderr.write(f"{refusal}\n")
        raise SystemExit(REFUSED) from None
