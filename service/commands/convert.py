"""`headlight convert`: a model folder that cannot be served as it is -> one that can.

pytorch_model.bin, or its shards            model.safetensors, or as many shards
1_Pooling/ .., 0_Transformer/, a Router's    theirs too: model.safetensors next to each
colbert_linear.pt, sparse_linear.pt         safetensors of that name
vocab.txt, vocab.json, a SentencePiece model   tokenizer.json, where there is none or it contradicts
                                            tokenizer_config.json (files/tokenizers.py)
.json, .txt, .model, .safetensors, .metadata   as they are; nothing else is copied

Each pickle is read in a process of its own (`pickles`), which compares what it wrote with it bit by
bit. Everything is written next to OUT and renamed at the end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from service.commands import pickles
from service.commands.terminal import Failed
from service.files import tokenizers, weights

PICKLE_FILES = ("pytorch_model.bin", "model.pt", "model.bin")  # the first that exists is read
PICKLE_INDEX = "pytorch_model.bin.index.json"  # which shard has each tensor
SAFETENSORS_FILE, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
LINEAR_FILES = ("colbert_linear.pt", "sparse_linear.pt")  # of bge-m3
COPIED_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".metadata")  # copied as they are
MODULE_FOLDERS = ("[0-9]*_*/", "*_[0-9]*_*/")  # globs of folders of modules, and of a Router's
STEP_SECONDS, BYTES_A_SECOND = 120, 20_000_000  # time to read a pickle: fixed, and by size
Say = Callable[[str], None]  # prints a line


@dataclass(frozen=True, slots=True)
class ConvertJob:
    """A pickle to read and the safetensors file to write, relative to their folders."""

    source: str
    target: str


def convert_folder(model: str, out: Path, say: Say) -> None:
    """Write a folder that can be served of a model with pickles, or without a tokenizer.json.

    Args:
        model: a folder or hub id.
        out: a path that does not exist yet, or an empty folder.
        say: called with a line for each step.

    Raises:
        Failed: the model cannot be converted, says why; `out` is as it was.
    """
    out = out.absolute()
    if not out.parent.is_dir():
        raise Failed(f"{out.parent} is not a folder")
    # a link counts as taken too: nothing can be renamed to its target
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise Failed(f"{out} already exists and is not an empty folder")
    try:
        folder = weights.locate_with_pickles(model)
    except weights.ModelNotFound as error:
        raise Failed(str(error)) from error
    shards = _shards_by_tensor(folder)
    jobs = list(_list_jobs(folder, shards))
    lacks_tokenizer = tokenizers.needs_tokenizer(folder)
    if not jobs and not lacks_tokenizer:
        raise Failed(f"{folder} holds no pickle to convert, and needs no other tokenizer.json")
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise Failed(f"cannot write next to {out}: {error.strerror}") from error
    try:
        skipped = _copy_files(folder, staging, {job.source for job in jobs})
        if lacks_tokenizer:
            tokenizers.make_tokenizer(folder, staging)
            count = tokenizers.TEXT_COUNT
            say(f"tokenizer.json: made by transformers, {count} texts read as it does")
        sizes = {job: _convert_pickle(folder / job.source, staging, job, say) for job in jobs}
        if shards:
            _write_index(staging, shards, sizes)
        if skipped:
            say(f"not copied: {', '.join(skipped)}")
        staging.chmod(0o755)
        os.rename(staging, out)
    except OSError as error:
        raise Failed(f"{out}: {error.strerror or error}") from error
    except tokenizers.TokenizerNotMade as error:
        raise Failed(str(error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _shards_by_tensor(folder: Path) -> dict[str, str]:
    """Return the pickle shard of each tensor, by its name; empty if the pickles are no shards."""
    index = folder / PICKLE_INDEX
    preferred = SAFETENSORS_FILE, SAFETENSORS_INDEX, PICKLE_FILES[0]  # read instead of shards
    if any((folder / name).is_file() for name in preferred) or not index.is_file():
        return {}
    try:
        shards = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        names = sorted(set(shards.values()))
        are_local = all(Path(name).name == name and name.endswith(".bin") for name in names)
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{PICKLE_INDEX} has no weight_map") from error
    if not are_local:
        raise Failed(f"{PICKLE_INDEX} names files that are not .bin files of the folder")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise Failed(f"{folder} lacks {', '.join(missing)}")
    return shards


def _list_jobs(folder: Path, shards: dict[str, str]) -> Iterator[ConvertJob]:
    """Yield a job for each pickle of a folder that has no safetensors file next to it."""
    if shards:
        yield from (ConvertJob(name, _shard_name(name)) for name in sorted(set(shards.values())))
    elif not any((folder / name).is_file() for name in (SAFETENSORS_FILE, SAFETENSORS_INDEX)):
        present = [name for name in PICKLE_FILES if (folder / name).is_file()]
        yield from (ConvertJob(name, SAFETENSORS_FILE) for name in present[:1])
    for module in _module_folders(folder):
        has_pickle = (folder / module / PICKLE_FILES[0]).is_file()
        if has_pickle and not (folder / module / SAFETENSORS_FILE).is_file():
            yield ConvertJob(str(module / PICKLE_FILES[0]), str(module / SAFETENSORS_FILE))
    for name in LINEAR_FILES:
        if (folder / name).is_file():
            yield ConvertJob(name, str(Path(name).with_suffix(".safetensors")))


def _module_folders(folder: Path) -> list[Path]:
    """List the module folders of a model folder, relative to it, without symbolic links."""
    folders = {path for name in MODULE_FOLDERS for path in folder.glob(name) if path.is_dir()}
    return sorted(path.relative_to(folder) for path in folders if not path.is_symlink())


def _shard_name(shard: str) -> str:
    """Return the name of the safetensors shard that replaces a pickle shard."""
    return f"{shard.removeprefix('pytorch_').removesuffix('.bin')}.safetensors"


def _convert_pickle(source: Path, staging: Path, job: ConvertJob, say: Say) -> dict[str, int]:
    """Convert the pickle `source` into `staging`; return each tensor's size in bytes, by name."""
    with tempfile.TemporaryDirectory(dir=staging) as folder:
        file = Path(folder) / SAFETENSORS_FILE
        sizes = _run_converter(source, file, job)
        file.chmod(0o644)
        (staging / job.target).parent.mkdir(exist_ok=True)
        file.rename(staging / job.target)
    say(f"{job.source}: {len(sizes)} tensors, {sum(sizes.values()):,} bytes -> {job.target}")
    return sizes


def _run_converter(source: Path, target: Path, job: ConvertJob) -> dict[str, int]:
    """Convert a pickle in a process of its own; return each tensor's size in bytes, by its name.

    Raises:
        Failed: the process refused the pickle or broke off; says why in one line.
    """
    seconds = STEP_SECONDS + source.stat().st_size // BYTES_A_SECOND
    command = [sys.executable, "-I", pickles.__file__]
    command += [str(source.resolve()), str(target), str(seconds)]
    environment = {"OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=target.parent,
            env=environment,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{job.source} is refused: not read within {seconds} s") from None
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    lines = done.stderr.decode("utf-8", "replace").splitlines() or ["no reason given"]
    reason = lines[-1]
    if done.returncode < 0:
        reason = f"its process ended by {signal.Signals(-done.returncode).name}, as at a bound"
    elif done.returncode != pickles.REFUSED_EXIT_CODE:
        reason = f"its process failed: {reason}"
    raise Failed(f"{job.source} is refused: {reason}")


def _write_index(
    staging: Path, shards: dict[str, str], sizes: dict[ConvertJob, dict[str, int]]
) -> None:
    """Write the index of the safetensors shards, from the pickles' shards and tensor sizes.

    Raises:
        Failed: the pickles hold other tensors than their index says.
    """
    read = {name: job.source for job, tensors in sizes.items() for name in tensors}
    read = {name: shard for name, shard in read.items() if shard in shards.values()}
    if read != shards:
        wrong = sorted({name for name, _ in read.items() ^ shards.items()})
        raise Failed(f"{PICKLE_INDEX} and the shards differ: {', '.join(map(repr, wrong[:5]))}")
    shard_sizes = [tensors for job, tensors in sizes.items() if job.source in shards.values()]
    total = sum(sum(tensors.values()) for tensors in shard_sizes)
    weight_map = {name: _shard_name(shard) for name, shard in sorted(shards.items())}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (staging / SAFETENSORS_INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _copy_files(folder: Path, staging: Path, converted: set[str]) -> list[str]:
    """Copy the files that a model is served from, all but its `converted` pickles.

    Returns:
        The names of other files and of folders that are not copied.
    """
    modules = _module_folders(folder)
    paths = sorted(path for place in [Path(), *modules] for path in (folder / place).iterdir())
    folders = [path for path in paths if path.is_dir() and path.name != staging.name]
    inner = (path.relative_to(folder) for path in folders)
    skipped = [f"{relative}/" for relative in inner if relative not in modules]
    for path in paths:
        if not path.is_file():
            continue
        relative = path.relative_to(folder)
        if path.suffix not in COPIED_SUFFIXES or path.name == PICKLE_INDEX:
            skipped.append(str(relative))
        elif not (staging / relative).exists():
            (staging / relative).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, staging / relative)
    return [name for name in skipped if name not in {*converted, PICKLE_INDEX}]
