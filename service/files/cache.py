"""Headlight's folder in the user's cache, and atomic writes of files there."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the path of Headlight's cache folder, which need not exist.

    Raises:
        OSError: the user has no home directory.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(cache) if cache else Path.home() / ".cache"
    except RuntimeError as error:  # a user without a home, as in many containers
        raise OSError(str(error)) from error
    return root / "headlight"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, and create its folder if there is none.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
