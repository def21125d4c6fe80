"""Digests of a checkpoint: over everything that decides an answer, and over its parts."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.loading.files import CONFIG, TOKENIZER
from model.loading.formats.folder import FolderFormat
from model.loading.modules import find_folders, find_weighed_files, read_overrides
from model.loading.sentence_transformers import Prompts
from model.loading.task_heads import list_digest_facts
from model.pooling import Pooling
from model.task_heads import TaskHead
from model.text.tokenizer import Tokenizer

DIGEST_DIGITS = 12  # hex digits of a digest that are kept


def digest_checkpoint(
    folder: Path,
    files: Sequence[Path],
    form: FolderFormat,
    tokenizer: Tokenizer,
    pooling: Pooling,
    max_tokens: int,
    prompts: Prompts,
    heads: Sequence[TaskHead],
) -> tuple[str, dict[str, str]]:
    """Return the digest of a checkpoint, and those of what decides a vector, by name.

    Args:
        files: of its weights.
    """
    own, weighed = find_folders(folder), find_weighed_files(folder)
    config, words = own.encoder / CONFIG, own.tokenizer / TOKENIZER
    paths = [*files, config, words, *weighed, *form.own_files()]
    sums = {path: hash_file(path) for path in {*paths}}
    over = read_overrides(folder).config
    more = {
        "head": [choice for head in heads for choice in list_digest_facts(folder, head)],
        "tokenizer": tokenizer.choices,
        "config": over,
        **form.digest_facts(),
    }
    facts = {
        "files": [sums[path] for path in paths],
        **vector_facts(pooling, max_tokens, tokenizer.lower_case, prompts),
        **{name: one for name, one in more.items() if one},
    }
    # () is kept since stored digests of vector spaces include it
    layers = [sums[path] for path in weighed], layer_kinds(pooling)
    return hash_facts(facts), {
        "weights": hash_facts([sums[path] for path in (*files, config)], over, ()),
        "tokenizer": hash_facts([sums[words]], tokenizer.choices, ()),
        "dense": hash_facts(*layers),
    }


def vector_facts(
    pooling: Pooling, max_tokens: int, lower_case: bool, prompts: Prompts
) -> dict[str, Any]:
    """Return the settings that sentence-transformers' files decide, by name."""
    steps = layer_kinds(pooling)
    return {
        "pooling": pooling.modes,
        "normalize": pooling.normalize,
        **({"layers": steps} if {"Norm", "Unit"} & {*steps} else {}),
        **({"dimensions": pooling.dimensions} if pooling.dimensions else {}),
        "max_tokens": max_tokens,
        "lower_case": lower_case,
        "prompts": {name: text for name, text in prompts.texts.items() if text},
        "prompt": prompts.find(None),
    }


def layer_kinds(pooling: Pooling) -> list[str]:
    """Return the class names of a pooling's layers."""
    return [type(layer).__name__ for layer in pooling.layers]


def hash_facts(*facts: Any) -> str:
    """Return the digest of values that JSON can hold."""
    written = json.dumps(facts[0] if len(facts) == 1 else facts, sort_keys=True)
    return short_digest(hashlib.sha256(written.encode()))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_digest(total: "hashlib._Hash") -> str:
    """Return `sha256:` and the first DIGEST_DIGITS hex digits of a hash."""
    return f"sha256:{total.hexdigest()[:DIGEST_DIGITS]}"
