"""A tokenizer of 41 words, for tables of few rows."""

import json
import shutil
from pathlib import Path

SMALL_TOKENIZER = Path(__file__).with_name("small_tokenizer.json")
AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast"}  # no class makes it anew


def save_small_tokenizer(folder: Path) -> None:
    """Give a folder that tokenizer, and no other class."""
    shutil.copy(SMALL_TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))
