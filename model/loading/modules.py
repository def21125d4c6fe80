"""Which modules of sentence-transformers a folder has, and what each is.

modules.json   Transformer, Pooling, Dense .., Normalize, in this order; PyLate's Dense per token
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.errors import CheckpointError
from model.loading.files import CONFIG, WEIGHTS, read_json, read_object

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
PYLATE = "pylate.models.Dense.Dense"  # a Dense layer for each token


def read_optional(path: Path) -> Mapping[str, Any]:
    """The object of a JSON file that need not be there."""
    return read_object(path) if path.is_file() else {}


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of every module; none in a plain folder."""
    if not (folder / MODULES).is_file():
        return []
    try:
        entries = [
            (_kind(entry["type"]), folder / entry["path"]) for entry in read_json(folder / MODULES)
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{MODULES} has an entry without type and path") from error
    inside = folder.absolute()
    for _, path in entries:
        if ".." in path.parts or not path.absolute().is_relative_to(inside):
            raise CheckpointError(f"{MODULES} names a folder outside: {path}")
    return entries


def _kind(name: str) -> str:
    """A class of sentence-transformers without its place there; any other as it is."""
    # another library's class of the same name may compute anything
    return name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name


def token_layers(folder: Path) -> list[Path]:
    """The folders of the Dense modules that PyLate has behind a Transformer; none elsewhere.

    It writes them as its own or, converted, as sentence-transformers' without their Pooling.
    """
    (first, _), *others = read_modules(folder) or [("", folder)]
    kinds = {kind for kind, _ in others}
    own = read_optional(folder / PROMPTS).get("model_type") == "ColBERT" if kinds else False
    if first != "Transformer" or not kinds or not kinds <= {"Dense", PYLATE}:
        return []
    return [path for _, path in others] if own or PYLATE in kinds else []


def dense_files(folder: Path) -> list[Path]:
    """The files of the Dense modules, in a fixed order."""
    paths = [path for kind, path in read_modules(folder) if kind in ("Dense", PYLATE)]
    return [path / name for path in paths for name in (WEIGHTS, CONFIG)]
