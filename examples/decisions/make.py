"""Writes a decision model's folder: the bundled encoder with the trained head of this folder.

    python examples/decisions/make.py FOLDER
    headlight serve --model FOLDER

The folder is a Laya checkpoint, which the library `laya` loads too.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from head import expand, read_head
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.files.weights import BUNDLED_MODEL, locate_model

SETTINGS = Path(__file__).with_name("head.json")  # its temperatures
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def write_folder(folder: Path, thin: Mapping[str, Tensor], temperature: list[float]) -> None:
    """Write a Laya checkpoint of the bundled model and a head.

    Args:
        folder: made if it is not there.
        thin: the head's tensors.
        temperature: of each kind of question: choice, score, noul.
    """
    bundled = locate_model(BUNDLED_MODEL).folder
    for name in ("encoder", "tokenizer"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(bundled / "config.json", folder / "encoder")
    for name in TOKENIZER:
        shutil.copy(bundled / name, folder / "tokenizer")
    settings = {
        "encoder": BUNDLED_MODEL,
        "max_len": 512,
        "head_max_len": 192,
        "head_layers": 2,
        "act_costs": {"abstain": 0.5},
        "temperature": temperature,
        "option_layout": "sequential",
    }
    (folder / "rl_agent_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    encoder = load_file(bundled / "model.safetensors")
    del encoder["embeddings.position_ids"]  # 0, 1, ..: no weight, and unknown to laya
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.items()}
    save_file(tensors | expand(thin), folder / "model.safetensors", {"format": "pt"})


def read_temperatures() -> list[float]:
    """Read the committed head's temperatures, by kind of question."""
    return json.loads(SETTINGS.read_text())["temperature"]


def main() -> None:
    """Write the folder that the command names."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_folder(Path(sys.argv[1]), read_head(), read_temperatures())


if __name__ == "__main__":
    main()
