"""A folder that is not served as it is -> one that is: what it lacks is made, the rest copied.

pytorch_model.bin, or its shards            model.safetensors, or as many shards
1_Pooling/ .., 0_Transformer/, a Router's    theirs too: model.safetensors next to each
colbert_linear.pt, sparse_linear.pt         safetensors of that name
vocab.txt, vocab.json, a SentencePiece model   tokenizer.json, where there is none or it contradicts
                                            tokenizer_config.json (engine/tokenizers.py)
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
from service.engine import tokenizers, weights

PICKLE_FILES = ("pytorch_model.bin", "model.pt", "model.bin")
PICKLE_INDEX = "pytorch_model.bin.index.json"
SAFETENSORS_FILE, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
LINEAR_FILES = ("colbert_linear.pt", "sparse_linear.pt")  # of bge-m3
COPIED_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".metadata")
MODULE_FOLDERS = ("[0-9]*_*/", "*_[0-9]*_*/")  # of modules, and of a Router's
STEP_SECONDS, BYTES_A_SECOND = 120, 20_000_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConvertJob:
    """A pickle, and the file that is made of it; both relative to their folders."""

    source: str
    target: str


def convert_folder(model: str, out: Path, say: Say) -> None:
    """Make a folder that serves of a folder or hub id with pickles, or without a tokenizer.json.

    Args:
        out: a path that does not exist yet, or an empty folder.
        say: is told each step in a line.

    Raises:
        Failed: why not; OUT is as it was.
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
    tokenizer = tokenizers.needs_tokenizer(folder)
    if not jobs and not tokenizer:
        raise Failed(f"{folder} holds no pickle to convert, and needs no other tokenizer.json")
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise Failed(f"cannot write next to {out}: {error.strerror}") from error
    try:
        left = _copy_files(folder, made, {job.source for job in jobs})
        if tokenizer:
            tokenizers.make_tokenizer(folder, made)
            count = tokenizers.TEXT_COUNT
            say(f"tokenizer.json: made by transformers, {count} texts read as it does")
        sizes = {job: _convert_pickle(folder / job.source, made, job, say) for job in jobs}
        if shards:
            _write_index(made, shards, sizes)
        if left:
            say(f"not copied: {', '.join(left)}")
        made.chmod(0o755)
        os.rename(made, out)
    except OSError as error:
        raise Failed(f"{out}: {error.strerror or error}") from error
    except tokenizers.TokenizerNotMade as error:
        raise Failed(str(error)) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _shards_by_tensor(folder: Path) -> dict[str, str]:
    """Find which shard has each tensor, in a folder whose pickles are shards; empty otherwise."""
    path, others = (
        folder / PICKLE_INDEX,
        (SAFETENSORS_FILE, SAFETENSORS_INDEX, PICKLE_FILES[0]),
    )  # which go before it
    if any((folder / name).is_file() for name in others) or not path.is_file():
        return {}
    try:
        shards = dict(json.loads(path.read_text("utf-8"))["weight_map"])
        names = sorted(set(shards.values()))
        inside = all(Path(name).name == name and name.endswith(".bin") for name in names)
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{PICKLE_INDEX} has no weight_map") from error
    if not inside:
        raise Failed(f"{PICKLE_INDEX} names files that are not .bin files of the folder")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise Failed(f"{folder} lacks {', '.join(missing)}")
    return shards


def _list_jobs(folder: Path, shards: dict[str, str]) -> Iterator[ConvertJob]:
    """List the pickles of a folder, but those that have safetensors next to them."""
    if shards:
        yield from (ConvertJob(name, _shard_name(name)) for name in sorted(set(shards.values())))
    elif not any((folder / name).is_file() for name in (SAFETENSORS_FILE, SAFETENSORS_INDEX)):
        whole = [name for name in PICKLE_FILES if (folder / name).is_file()]
        yield from (ConvertJob(name, SAFETENSORS_FILE) for name in whole[:1])
    for inside in _module_folders(folder):
        there = (folder / inside / PICKLE_FILES[0]).is_file()
        if there and not (folder / inside / SAFETENSORS_FILE).is_file():
            yield ConvertJob(str(inside / PICKLE_FILES[0]), str(inside / SAFETENSORS_FILE))
    for name in LINEAR_FILES:
        if (folder / name).is_file():
            yield ConvertJob(name, str(Path(name).with_suffix(".safetensors")))


def _module_folders(folder: Path) -> list[Path]:
    """List the folders of modules, relative to theirs; a link may lead anywhere, and is none."""
    found = {path for name in MODULE_FOLDERS for path in folder.glob(name) if path.is_dir()}
    return sorted(path.relative_to(folder) for path in found if not path.is_symlink())


def _shard_name(shard: str) -> str:
    return f"{shard.removeprefix('pytorch_').removesuffix('.bin')}.safetensors"


def _convert_pickle(source: Path, made: Path, job: ConvertJob, say: Say) -> dict[str, int]:
    """Convert one pickle.

    Returns:
        The bytes of each tensor by its name.
    """
    with tempfile.TemporaryDirectory(dir=made) as folder:
        file = Path(folder) / SAFETENSORS_FILE
        sizes = _run_reader(source, file, job)
        file.chmod(0o644)
        (made / job.target).parent.mkdir(exist_ok=True)
        file.rename(made / job.target)
    say(f"{job.source}: {len(sizes)} tensors, {sum(sizes.values()):,} bytes -> {job.target}")
    return sizes


def _run_reader(source: Path, target: Path, job: ConvertJob) -> dict[str, int]:
    """Run the process that reads one pickle.

    Returns:
        The bytes of each tensor by its name.

    Raises:
        Failed: how it ended, in one line.
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
    made: Path, shards: dict[str, str], sizes: dict[ConvertJob, dict[str, int]]
) -> None:
    """Write which of the new shards has each tensor.

    Raises:
        Failed: the index is not that of the shards.
    """
    found = {name: job.source for job, tensors in sizes.items() for name in tensors}
    found = {name: shard for name, shard in found.items() if shard in shards.values()}
    if found != shards:
        wrong = sorted({name for name, _ in found.items() ^ shards.items()})
        raise Failed(f"{PICKLE_INDEX} and the shards differ: {', '.join(map(repr, wrong[:5]))}")
    of_shards = [tensors for job, tensors in sizes.items() if job.source in shards.values()]
    total = sum(sum(tensors.values()) for tensors in of_shards)
    named = {name: _shard_name(shard) for name, shard in sorted(shards.items())}
    index = {"metadata": {"total_size": total}, "weight_map": named}
    (made / SAFETENSORS_INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _copy_files(folder: Path, made: Path, converted: set[str]) -> list[str]:
    """Copy what a model is served from.

    Returns:
        What is left out, folders included, except the pickles that were converted.
    """
    modules = _module_folders(folder)
    every = sorted(path for one in [Path(), *modules] for path in (folder / one).iterdir())
    folders = [path for path in every if path.is_dir() and path.name != made.name]
    inner = (path.relative_to(folder) for path in folders)
    left = [f"{inside}/" for inside in inner if inside not in modules]
    for path in every:
        if not path.is_file():
            continue
        inside = path.relative_to(folder)
        if path.suffix not in COPIED_SUFFIXES or path.name == PICKLE_INDEX:
            left.append(str(inside))
        elif not (made / inside).exists():
            (made / inside).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, made / inside)
    return [name for name in left if name not in {*converted, PICKLE_INDEX}]
