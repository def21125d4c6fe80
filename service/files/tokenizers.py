"""Makes the tokenizer.json of a model's folder that lacks one, or has one that contradicts it.

transformers converts it (`library`), once, and a hundred texts are tokenized by Headlight with it
and by transformers, and compared. A service keeps the result in the user's cache: a folder of links
to the model's own files, with the tokenizer.json among them.
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
from model.families.tokenizers import BYTE_LEVEL
from model.loading.agreement import Contradiction, model_type, read_tokenizer
from model.loading.files import MERGES, PIECES, TOKENIZER, VOCABULARIES, WORDS
from model.loading.modules import find_folders, read_overrides, read_raw_config
from model.loading.tokenizer_settings import TOKENIZER_CONFIG, read_rules
from model.text.tokenizer import open_tokenizer
from service.files import cache, transformers_process

# Types of model -> the files from which one of that type is made
MODEL_FILES = {"BPE": PIECES, "Unigram": PIECES, "WordPiece": WORDS, BYTE_LEVEL: MERGES}
TIMEOUT_SECONDS = 300  # of the process that converts
KEPT = "2"  # which of our ways to make what the cache keeps; another makes it anew
TEXT_COUNT = 100  # texts to compare
HARD_TEXTS = (  # accents, emoji, scripts, spaces and other things that tokenizers differ in
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
    """A tokenizer.json cannot be made; the message, one line, says why."""


def lacks_tokenizer(folder: Path) -> bool:
    """Tell whether a model's folder has a vocabulary and no tokenizer.json."""
    try:
        own = find_folders(folder).tokenizer
    except CheckpointError:  # broken modules, which loading the model reports
        return False
    if (own / TOKENIZER).is_file():
        return False
    return any((own / name).is_file() for name in VOCABULARIES)


def needs_tokenizer(folder: Path) -> bool:
    """Tell whether a folder lacks a tokenizer.json, or has one that contradicts its other files."""
    if lacks_tokenizer(folder):
        return True
    try:
        _read_tokenizer(folder)
    except Contradiction:
        return True
    except CheckpointError:  # an error that another tokenizer.json does not mend
        return False
    return False


def is_possible() -> bool:
    """Tell whether the extra `convert` is installed."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "sentencepiece"))


def make_tokenizer(folder: Path, target: Path) -> None:
    """Convert a folder's tokenizer, write it to a copy of the folder, and compare both.

    Args:
        target: the copy, or a folder of links, whose tokenizer.json is written.

    Raises:
        TokenizerNotMade: the extra `convert` is missing, transformers has no such tokenizer, makes
            one of another kind than the folder holds, or tokenizes texts otherwise than Headlight
            does with the new file.
    """
    own, written = find_folders(folder).tokenizer, find_folders(target).tokenizer / TOKENIZER
    try:
        read_rules(folder, _find_family(folder), read_raw_config(folder))
        settings = dict(read_overrides(folder).tokenizer)
    except CheckpointError as error:
        raise TokenizerNotMade(str(error)) from error
    if not is_possible():
        raise TokenizerNotMade(
            f"{TOKENIZER} is made with transformers: pip install 'headlight-serve[convert]'"
        )
    texts = _test_texts()
    written.unlink(missing_ok=True)  # a link, in a folder of links
    theirs = _run_library(own, written, {"settings": settings, "texts": texts})
    try:
        _check_kind(own, model_type(open_tokenizer(written)))
        tokenizer = _read_tokenizer(target)
        inputs = [(text[0],) if len(text) == 1 else (text[0], text[1]) for text in texts]
        ours = tokenizer(inputs, sys.maxsize)
    except CheckpointError as error:
        # its advice would name the copy
        problem = error.problem if isinstance(error, Contradiction) else error
        raise TokenizerNotMade(
            f"the {TOKENIZER} that transformers makes is not read: {problem}"
        ) from error
    for text, our, (ids, types, offsets) in zip(texts, ours, theirs, strict=True):
        same = our.token_ids == ids and list(map(list, our.offsets)) == offsets
        if not same or our.types != (types or [0] * len(ids)):
            reason = f"transformers reads {text[0]!r} otherwise than the {TOKENIZER} that it makes"
            raise TokenizerNotMade(reason)


def _check_kind(folder: Path, made: str) -> None:
    """Refuse a tokenizer that does not have the words of the one it is made of.

    Args:
        folder: of the tokenizer's files.
        made: the type of the model that transformers made.

    Raises:
        TokenizerNotMade: the type is another than that of the folder's tokenizer.json, or than its
            vocabulary has.
    """
    if (folder / TOKENIZER).is_file():
        found = [model_type(open_tokenizer(folder / TOKENIZER))]
    else:
        present = {name for name in VOCABULARIES if (folder / name).is_file()}
        found = [type for type, names in MODEL_FILES.items() if not present.isdisjoint(names)]
    if made not in found:
        what = f"transformers makes {made} of it, and its files hold {' or '.join(found)}"
        raise TokenizerNotMade(
            f"{TOKENIZER} is not made of {folder}: {what}; name the class in {TOKENIZER_CONFIG}"
        )


def prepare_folder(folder: Path, name: str) -> Path:
    """Return a folder to serve a model from: its own, or one of links with a tokenizer.json made.

    Args:
        name: name of the model as the user gave it, for messages.

    Raises:
        TokenizerNotMade: the tokenizer.json cannot be made, or cannot be written to the cache.
    """
    if not lacks_tokenizer(folder):
        return folder
    if not is_possible():
        raise TokenizerNotMade(f"{folder} lacks {TOKENIZER}: {advise_tokenizer(name)}")
    if not any(find_folders(folder).weights.glob("*.safetensors")):
        return folder  # nothing to serve: loading it says what to convert, by the folder's own name
    try:
        cached = cache.cache_folder() / "tokenizers" / _digest_folder(folder)
        if not cached.is_dir():
            cached.parent.mkdir(parents=True, exist_ok=True)
            _fill_cached_folder(folder, cached)
    except OSError as error:
        reason = f"{error.filename or 'the cache'}: {error.strerror or error}"
        raise TokenizerNotMade(f"{reason}; {advise_tokenizer(name)}") from error
    return cached


def _fill_cached_folder(folder: Path, cached: Path) -> None:
    """Link a model's files in a new folder, make its tokenizer.json, and move it to `cached`.

    If another process was faster, its folder stays.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{cached.name}.", dir=cached.parent))
    try:
        for path in _list_files(folder):
            link = temporary / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.absolute())
        make_tokenizer(folder, temporary)
        try:
            os.rename(temporary, cached)
        except OSError:
            if not cached.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _digest_folder(folder: Path) -> str:
    """Return a digest of a folder's path, its files' sizes and times, and transformers' version."""
    parts = [str(folder.absolute()), importlib.metadata.version("transformers"), KEPT]
    for path in _list_files(folder):
        stat = path.stat()
        parts.append(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _list_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _find_family(folder: Path) -> Family:
    """Return the model family that a folder's config.json names."""
    return read_config_and_family(read_raw_config(folder))[1]


def _read_tokenizer(folder: Path) -> Any:
    """Return Headlight's tokenizer of a model's folder."""
    return read_tokenizer(folder, _find_family(folder), read_raw_config(folder))[0]


def _test_texts() -> list[list[str]]:
    """Return the texts, and pairs of texts, to compare two tokenizers by."""
    words = " ".join(HARD_TEXTS).split()
    count = TEXT_COUNT + 1 - 2 * len(HARD_TEXTS)
    texts = [*HARD_TEXTS, *(" ".join(words[i % len(words) :][: 1 + i % 7]) for i in range(count))]
    filled = [text for text in HARD_TEXTS if text]  # transformers ignores an empty second text
    pairs = zip(filled, [*filled[3:], *filled[:3]], strict=True)
    return [*([text] for text in texts), *map(list, pairs)]


def _run_library(folder: Path, target: Path, arguments: dict[str, Any]) -> list[Any]:
    """Run `make_tokenizer` of transformers_process.py in a process of its own.

    Raises:
        TokenizerNotMade: how the process failed, in one line.
    """
    command: Sequence[str] = (
        sys.executable,
        "-I",
        transformers_process.__file__,
        str(folder),
        str(target),
    )
    try:
        process = subprocess.run(
            command,
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "LANG": "C.UTF-8"},
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise TokenizerNotMade(
            f"{TOKENIZER} is not made: transformers took over {TIMEOUT_SECONDS} s"
        ) from None
    if process.returncode == 0:
        encodings: list[Any] = json.loads(process.stdout)
        return encodings
    reason = (process.stderr.splitlines() or [f"its process ended with {process.returncode}"])[-1]
    raise TokenizerNotMade(f"{TOKENIZER} is not made of {folder}: {reason}")
