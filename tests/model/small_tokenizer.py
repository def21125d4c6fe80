"""Tokenizers for tables of few rows: one of 41 words, and the bundled one cut to 4000."""

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

from transformers import AutoTokenizer

from service.files.weights import BUNDLED_MODEL, locate_model

SMALL_TOKENIZER = Path(__file__).with_name("small_tokenizer.json")
AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast"}  # no class makes it anew
FEW = 4000  # a checkpoint of them loads in a fifth of the time that all 30522 take


def save_small_tokenizer(folder: Path) -> None:
    """Give a folder that tokenizer, and no other class."""
    shutil.copy(SMALL_TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))


@cache
def _few_words(count: int) -> dict[str, str]:
    """The files of the bundled tokenizer, cut."""
    with tempfile.TemporaryDirectory() as folder:
        AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder).save_pretrained(folder)
        files = {path.name: path.read_text("utf-8") for path in Path(folder).iterdir()}
    whole = json.loads(files["tokenizer.json"])
    words = whole["model"]["vocab"]
    whole["model"]["vocab"] = {word: place for word, place in words.items() if place < count}
    return {**files, "tokenizer.json": json.dumps(whole)}


def save_few_words(folder: Path, count: int = FEW) -> None:
    """Give a folder the bundled tokenizer with its first words alone, as transformers saves it."""
    folder.mkdir(exist_ok=True)
    for name, text in _few_words(count).items():
        (folder / name).write_text(text, "utf-8")


def few_words(count: int = FEW) -> Any:
    """That tokenizer, a new one each time."""
    with tempfile.TemporaryDirectory() as folder:
        save_few_words(Path(folder), count)
        return AutoTokenizer.from_pretrained(folder)
