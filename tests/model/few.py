"""A tokenizer of 41 words, for tables of few rows."""

import json
import shutil
from pathlib import Path

FEW = Path(__file__).with_name("few.json")
AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast"}  # no class makes it anew


def few(folder: Path) -> None:
    """Give a folder that tokenizer, and no other class."""
    shutil.copy(FEW, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))
