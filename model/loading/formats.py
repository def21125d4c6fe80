"""Find the format of a checkpoint folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.loading.linears import BgeM3
from model.loading.plain import FolderFormat
from model.loading.rerankers import Reranker
from model.loading.vectors import LateInteraction

FORMATS = (Reranker, BgeM3, LateInteraction, FolderFormat)  # the first that fits is taken


def find_format(folder: Path, raw: Mapping[str, Any]) -> FolderFormat:
    """Return a folder's format, the first of FORMATS that fits.

    Args:
        raw: config.json.

    Raises:
        CheckpointError: a file of the format is missing.
    """
    return next(kind(folder, raw) for kind in FORMATS if kind.fits(folder, raw))
