"""Find the format of a checkpoint folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.loading.formats.bge_m3 import BgeM3
from model.loading.formats.colbert import LateInteraction
from model.loading.formats.folder import FolderFormat
from model.loading.formats.laya import Laya
from model.loading.formats.rerankers import Reranker

FORMATS = (Laya, Reranker, BgeM3, LateInteraction, FolderFormat)  # the first that fits is taken


def find_format(folder: Path, raw: Mapping[str, Any]) -> FolderFormat:
    """Return a folder's format, the first of FORMATS that fits.

    Args:
        raw: config.json.

    Raises:
        CheckpointError: a file of the format is missing.
    """
    return next(kind(folder, raw) for kind in FORMATS if kind.fits(folder, raw))
