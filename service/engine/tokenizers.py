"""A folder without a tokenizer.json, or with a contradicted one -> the tokenizer.json it needs.

transformers makes it (`library`), once, and what Headlight then reads of a hundred texts is
compared with what the library reads of them. A service keeps what it made in the user's cache: a
folder of links to the model's own files, with the tokenizer.json among them.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.errors import CheckpointError, advise_tokenizer
from model.families import read_config_and_family
from model.families.family import Family
from model.loading.agreement import Contradiction, read_tokenizer
from model.loading.files import TOKENIZER, VOCABULARIES
from model.loading.modules import find_encoder_folder, read_overrides, read_raw_config
from model.loading.tokenizer_settings import read_rules
from service.engine import cache, library

SECONDS = 300
TEXT_COUNT = 100  # texts compared
HARD_TEXTS = (  # what tokenizers differ in
    "Caf\u00e9 cafe\u0301 NA\u00cfVE \u00c5se \u00e6\u00df \u0130stanbul",
    "\U0001f469\u200d\U0001f4bb wrote \U0001f600\U0001f600 code",
    "\u6f22\u5b57\u3068\u304b\u306a \ud55c\uad6d\uc5b4, \u4f60\u597d\u4e16\u754c",
    "  two  spaces\tand\nlines ",
    "a\u0000b\u0007c \u200b\ufeffd \ufffd",
    "\ufb01n \u00bd ``quoted'' \u0639\u0631\u0628\u064a \u0e44\u0e17\u0e22",
    "[MASK] in <mask> a [SEP] text </s> <unk> [UNK] <|endoftext|>",
    "don't U.S. e-mail: a.b@c.de, $1,000.00 (50%) https://example.org/?q=1&x=_y",
    "supercalifragilisticexpialidocious " + "x" * 120,
    "",
)


class TokenizerNotMade(Exception):
    """No tokenizer.json can be made; the message is one line."""


def lacks_tokenizer(folder: Path) -> bool:
    """Tell whether a folder has a vocabulary, and no tokenizer.json."""
    try:
        own = find_encoder_folder(folder)
    except CheckpointError:  # of broken modules, as who loads it says
        return False
    return not (own / TOKENIZER).is_file() and any((own / n).is_file() for n in VOCABULARIES)


def needs_tokenizer(folder: Path) -> bool:
    """Tell whether a folder's tokenizer.json is to be made, or made anew."""
    if lacks_tokenizer(folder):
        return True
    try:
        _read_tokenizer(folder)
    except Contradiction:
        return True
    except CheckpointError:  # whatever else is wrong, no other tokenizer.json helps
        return False
    return False


def is_possible() -> bool:
    """Tell whether the extra `convert` is installed."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "sentencepiece"))


def make_tokenizer(folder: Path, target: Path) -> None:
    """Make a folder's tokenizer.json in a copy of it.

    Args:
        target: the copy, or a folder of links; its tokenizer.json is written.

    Raises:
        TokenizerNotMade: the extra is missing, the library has no such tokenizer, or what is read
            of the file differs from what the library reads.
    """
    own, made = find_encoder_folder(folder), find_encoder_folder(target) / TOKENIZER
    try:
        read_rules(folder, _find_family(folder), read_raw_config(folder))
        settings = dict(read_overrides(folder).tokenizer)
    except CheckpointError as error:
        raise TokenizerNotMade(str(error)) from error
    if not is_possible():
        raise TokenizerNotMade(
            f"{TOKENIZER} is made with transformers: pip install 'headlight[convert]'"
        )
    texts = _test_texts()
    made.unlink(missing_ok=True)  # a link, in a folder of links
    theirs = _run_library(own, made, {"settings": settings, "texts": texts})
    try:
        tokenizer = _read_tokenizer(target)
        many = [(text[0],) if len(text) == 1 else (text[0], text[1]) for text in texts]
        found = tokenizer(many, sys.maxsize)
    except CheckpointError as error:
        raise TokenizerNotMade(
            f"the {TOKENIZER} that transformers makes is not read: {error}"
        ) from error
    for text, one, (ids, types, offsets) in zip(texts, found, theirs, strict=True):
        same = one.token_ids == ids and list(map(list, one.offsets)) == offsets
        if not same or one.types != (types or [0] * len(ids)):
            told = f"transformers reads {text[0]!r} otherwise than the {TOKENIZER} that it makes"
            raise TokenizerNotMade(told)


def prepare_folder(folder: Path, name: str) -> Path:
    """Return a folder to serve a model from: its own, or one with the tokenizer.json it lacks.

    Args:
        name: of the model, as the user gave it.

    Raises:
        TokenizerNotMade: it cannot be made, or not be kept.
    """
    if not lacks_tokenizer(folder):
        return folder
    if not is_possible():
        raise TokenizerNotMade(f"{folder} lacks {TOKENIZER}: {advise_tokenizer(name)}")
    try:
        kept = cache.cache_folder() / "tokenizers" / _name_folder(folder)
        if not kept.is_dir():
            kept.parent.mkdir(parents=True, exist_ok=True)
            _keep_folder(folder, kept)
    except OSError as error:
        told = f"{error.filename or 'the cache'}: {error.strerror or error}"
        raise TokenizerNotMade(f"{told}; {advise_tokenizer(name)}") from error
    return kept


def _keep_folder(folder: Path, kept: Path) -> None:
    """Make the folder of links; of several processes that do so, the first one's stays."""
    made = Path(tempfile.mkdtemp(prefix=f".{kept.name}.", dir=kept.parent))
    try:
        for path in _list_files(folder):
            link = made / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.absolute())
        make_tokenizer(folder, made)
        try:
            os.rename(made, kept)
        except OSError:
            if not kept.is_dir():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _name_folder(folder: Path) -> str:
    """Name what is made of a folder: by its files, and by what makes it."""
    parts = [str(folder.absolute()), importlib.metadata.version("transformers")]
    for path in _list_files(folder):
        facts = path.stat()
        parts.append(f"{path.relative_to(folder)} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _find_family(folder: Path) -> Family:
    return read_config_and_family(read_raw_config(folder))[1]


def _read_tokenizer(folder: Path) -> Any:
    return read_tokenizer(folder, _find_family(folder), read_raw_config(folder))[0]


def _test_texts() -> list[list[str]]:
    """Return texts and pairs of them."""
    words = " ".join(HARD_TEXTS).split()
    count = TEXT_COUNT + 1 - 2 * len(HARD_TEXTS)
    texts = [*HARD_TEXTS, *(" ".join(words[i % len(words) :][: 1 + i % 7]) for i in range(count))]
    filled = [
        text for text in HARD_TEXTS if text
    ]  # the library takes an empty second text for none
    pairs = zip(filled, [*filled[3:], *filled[:3]], strict=True)
    return [*([text] for text in texts), *map(list, pairs)]


def _run_library(folder: Path, target: Path, asked: dict[str, Any]) -> list[Any]:
    """Run the library over a folder.

    Raises:
        TokenizerNotMade: how it ended, in one line.
    """
    command: Sequence[str] = (sys.executable, "-I", library.__file__, str(folder), str(target))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "LANG": "C.UTF-8"},
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise TokenizerNotMade(
            f"{TOKENIZER} is not made: transformers took over {SECONDS} s"
        ) from None
    if done.returncode == 0:
        found: list[Any] = json.loads(done.stdout)
        return found
    reason = (done.stderr.splitlines() or [f"its process ended with {done.returncode}"])[-1]
    raise TokenizerNotMade(f"{TOKENIZER} is not made of {folder}: {reason}")
