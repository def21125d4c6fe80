"""The formats of checkpoint folders, and which of them a folder has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.loading.linears import Linears
from model.loading.plain import Plain
from model.loading.rerankers import Reranker
from model.loading.vectors import LateInteraction

FORMATS = (Reranker, Linears, LateInteraction, Plain)  # the first that fits counts


def find_format(folder: Path, raw: Mapping[str, Any]) -> Plain:
    """Find a folder's format.

    Args:
        raw: config.json.

    Raises:
        CheckpointError: a file of the format is missing.
    """
    return next(kind(folder, raw) for kind in FORMATS if kind.fits(folder, raw))
