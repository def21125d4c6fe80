"""Find the files of a checkpoint folder, and read its JSON."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model.errors import CheckpointError, advise_conversion, advise_tokenizer

CONFIG, TOKENIZER, ADAPTER = "config.json", "tokenizer.json", "adapter_config.json"
LAYA = "rl_agent_config.json"  # of a decision model, see formats/laya.py
GLINER = "gliner_config.json"  # of another kind of model, refused
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
WORDS, MERGES = ("vocab.txt",), ("vocab.json",)
PIECES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
VOCABULARIES = (*WORDS, *MERGES, *PIECES)  # files from which tokenizer.json can be made
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # how a Git-LFS pointer begins
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.bin")  # refused


class ModelFolders(NamedTuple):
    """The folders of a checkpoint's files; most have all in one.

    Args:
        encoder: of config.json.
        tokenizer: of tokenizer.json and the files next to it.
        weights: of the safetensors.
    """

    encoder: Path
    tokenizer: Path
    weights: Path


def check_fetched(paths: Iterable[Path]) -> None:
    """Refuse files that are Git-LFS pointers instead of their content.

    Raises:
        CheckpointError: names each pointer.
    """
    pointers = []
    for path in paths:
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                pointers.append(path.name)
    if pointers:
        what = "a Git-LFS pointer" if len(pointers) == 1 else "Git-LFS pointers"
        raise CheckpointError(
            f"{', '.join(pointers)}: {what}, not the file's content: git lfs pull"
        )


def read_json(path: Path) -> Any:
    """Return the value that a JSON file holds.

    Raises:
        CheckpointError: the file is missing or broken, or a Git-LFS pointer.
    """
    try:
        check_fetched([path])
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} lacks {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error


def read_object(path: Path) -> Mapping[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        CheckpointError: the file is missing or broken, or holds something else.
    """
    entries = read_json(path)
    if not isinstance(entries, Mapping):
        raise CheckpointError(f"{path.name} is not a JSON object")
    return entries


def find_adapters(folder: Path) -> list[str]:
    """Return the paths of adapter configs in a folder's subfolders, relative to it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob(f"*/{ADAPTER}"))


def find_weight_files(folders: ModelFolders, whole: Path) -> list[Path]:
    """Find the safetensors files of a model, in a fixed order.

    Args:
        folders: the folders of its files.
        whole: of the model.

    Raises:
        CheckpointError: a folder lacks a file that every checkpoint has, has a pickle or a
            Git-LFS pointer instead, or holds an adapter too.
    """
    encoder, tokenizer, folder = folders
    if (folder / ADAPTER).is_file():
        hint = "is not applied from a model's folder: move it and its weights to one of their own"
        raise CheckpointError(f"{ADAPTER} {hint}, and serve them with --adapter NAME=FOLDER")
    if (whole / GLINER).is_file():
        raise CheckpointError(f"{GLINER}: not supported: a GLiNER is served by gliner.serve")
    missing = [path for path in (encoder / CONFIG, tokenizer / TOKENIZER) if not path.is_file()]
    if tokenizer / TOKENIZER in missing:
        if any((tokenizer / name).is_file() for name in VOCABULARIES):
            raise CheckpointError(f"{tokenizer} lacks {TOKENIZER}: {advise_tokenizer(str(whole))}")
    # where both are present transformers reads the one file and ignores the index
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        try:
            shards = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
            outside = any("/" in shard or "\\" in shard for shard in shards)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{INDEX} has no weight_map") from error
        if outside:
            raise CheckpointError(f"{INDEX} names files outside the folder")
        missing += [folder / shard for shard in shards if not (folder / shard).is_file()]
    else:
        shards = [WEIGHTS]
        pickles = [name for name in PICKLES if (folder / name).is_file()]
        if not (folder / WEIGHTS).is_file() and pickles:
            check_fetched([folder / pickles[0]])
            what = f"{pickles[0]} is a pickle, which can run code"
            raise CheckpointError(f"{what}; {advise_conversion(str(whole))}")
        missing += [] if (folder / WEIGHTS).is_file() else [folder / WEIGHTS]
    if missing:
        names = ", ".join(str(path.relative_to(folder)) for path in missing)
        raise CheckpointError(f"{folder} lacks {names}")
    files = [folder / shard for shard in shards]
    check_fetched([*files, tokenizer / TOKENIZER])
    return files
