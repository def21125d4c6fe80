"""What a folder's files other than tokenizer.json say about its tokenizer.

tokenizer_config.json     class, lower-casing, special tokens, token types, side of a cut, length
special_tokens_map.json   special tokens, where tokenizer_config.json has no added_tokens_decoder
added_tokens.json         tokens found in texts, likewise
tokenizer_args            of sentence-transformers, over the first

Served are tokenizer.json and, of these, the side, the length and whether there are token types;
agreement.py refuses what contradicts tokenizer.json, by transformers 5's reading of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from model.errors import CheckpointError
from model.families.family import Family
from model.families.tokenizers import (
    GENERIC_CLASSES,
    SPECIAL_TOKENS,
    TOKENIZER_KINDS,
    TokenizerKind,
)
from model.loading.modules import find_encoder_folder, read_modules, read_optional, read_overrides
from model.text.pieces import CutSide

TOKENIZER_CONFIG, SPECIAL_TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"
ADDED_TOKENS_FILE, CHAT_TEMPLATES = "added_tokens.json", ("chat_template", "chat_template.jinja")
EXTRA_TOKENS_KEY, OLDER_EXTRA_KEY = "extra_special_tokens", "additional_special_tokens"
TYPES_INPUT = "token_type_ids"
NEEDED_INPUTS = {"input_ids", "attention_mask"}
# each would have texts put into others, or read by another class or the folder's own code
REFUSED_KEYS = ("auto_map", "fast_tokenizer_files", "init_inputs", "processor_class")
SPLIT_SPECIAL_KEY = "split_special_tokens"  # in a tokenizer.json
OPTIONAL_SWITCHES = ("strip_accents", "add_prefix_space")  # null is as if they were left out


@dataclass(frozen=True, slots=True)
class TokenizerRules:
    """What is said about a tokenizer.

    Args:
        kind: what its class has; FILE: what tokenizer.json has.
        switches: what its kind may do or not, by name.
        special: what is said of special tokens, by name; None where one is taken away.
        extra: special tokens without a name.
        added: tokens found in texts, by id.
        whole: whether those are all; else the file's own come with them, and before them.
        types: whether a pair's texts are told apart by token types.
        side: where a text is cut if a request does not say; None: as tokenizer.json says.
    """

    kind: TokenizerKind
    switches: Mapping[str, bool]
    special: Mapping[str, str | None]
    extra: tuple[str, ...]
    added: Mapping[int, AddedToken]
    whole: bool
    types: bool
    side: CutSide | None

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token: as is said, else by default; None without one."""
        return self.special[name] if name in self.special else self.kind.special_tokens.get(name)


def read_rules(folder: Path, family: Family, config: Mapping[str, Any]) -> TokenizerRules:
    """Read what a folder's files say about its tokenizer.

    Args:
        config: config.json.

    Raises:
        CheckpointError: a file is broken, or names what is not supported here.
    """
    # with modules.json texts go round it: pipeline/keys.py refuses modules that take messages
    templates = () if read_modules(folder) else CHAT_TEMPLATES
    over, folder = read_overrides(folder).tokenizer, find_encoder_folder(folder)
    stored = read_optional(folder / TOKENIZER_CONFIG)
    kind = TOKENIZER_KINDS[read_class(family, stored, config)]
    said = {**stored, **over}
    wrong = [key for key in (*REFUSED_KEYS, SPLIT_SPECIAL_KEY) if said.get(key)]
    wrong += [name for name in templates if said.get(name) or (folder / name).is_file()]
    if wrong:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: not supported: {', '.join(wrong)}")
    whole = "added_tokens_decoder" in said
    if OLDER_EXTRA_KEY in said and not said.get(EXTRA_TOKENS_KEY):
        said[EXTRA_TOKENS_KEY] = said.pop(OLDER_EXTRA_KEY)
    named = _take_named_tokens(said)
    if not whole:
        said |= _read_special_tokens(folder, said, over)
        named |= _take_named_tokens(said)
    added = _read_token_decoder(said) if whole else _read_added_tokens(folder)
    if OLDER_EXTRA_KEY in said and EXTRA_TOKENS_KEY not in said:
        said[EXTRA_TOKENS_KEY] = said.pop(OLDER_EXTRA_KEY)
    return TokenizerRules(
        kind=kind,
        switches=_read_switches(said, kind),
        special=_tokens_by_name(said, named),
        extra=_unnamed_tokens(said),
        added=added,
        whole=whole,
        types=_read_types(said, kind),
        side=_read_truncation_side(said),
    )


def read_longest(folder: Path, stored: object) -> int | None:
    """Read the longest sequence, special tokens included; None where no file says.

    Args:
        stored: what sentence-transformers itself stored.

    Raises:
        CheckpointError: it is not a number.
    """
    config, over = (
        read_optional(find_encoder_folder(folder) / TOKENIZER_CONFIG),
        read_overrides(folder).tokenizer,
    )
    limit = over.get("model_max_length") or stored
    for key in ("model_max_length", "max_len"):
        limit = limit or config.get(key)
    if limit is None or limit == math.inf:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
        raise CheckpointError(f"the longest sequence is no number of tokens: {limit!r}")
    return int(limit)


def _read_special_tokens(
    folder: Path, said: Mapping[str, Any], over: Mapping[str, Any]
) -> dict[str, Any]:
    """Read special_tokens_map.json, which overrides tokenizer_config.json but not arguments."""
    found = {}
    for key, value in read_optional(folder / SPECIAL_TOKENS_FILE).items():
        if over.get(key):
            continue
        if key == EXTRA_TOKENS_KEY and isinstance(value, list):
            there = list(said.get(key) or ())
            value = there + [new for one in value if (new := _token_text(one)) not in there]
        found[key] = value if key == EXTRA_TOKENS_KEY else _token_text(value)
    return found


def _token_text(mark: Any) -> Any:
    """Return the text of a token of special_tokens_map.json, where an object is one."""
    return (
        _read_added_token(SPECIAL_TOKENS_FILE, mark).content if isinstance(mark, Mapping) else mark
    )


def _take_named_tokens(said: dict[str, Any]) -> dict[str, Any]:
    """Take out special tokens that have names of their own."""
    return (
        dict(said.pop(EXTRA_TOKENS_KEY)) if isinstance(said.get(EXTRA_TOKENS_KEY), Mapping) else {}
    )


def _tokens_by_name(said: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, str | None]:
    """Return special tokens by name, those with transformers' names and others."""
    marks = {name: said[name] for name in SPECIAL_TOKENS if name in said}
    others = {
        name: mark
        for name, mark in said.items()
        if name.endswith("_token")
        and name not in SPECIAL_TOKENS
        and isinstance(mark, str | Mapping)
    }
    others |= named
    return {
        name: None if mark is None else _check_token_text(name, mark)
        for name, mark in (marks | others).items()
    }


def _unnamed_tokens(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the special tokens without a name."""
    extra = [] if said.get(EXTRA_TOKENS_KEY) is None else said[EXTRA_TOKENS_KEY]
    if not isinstance(extra, list):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {EXTRA_TOKENS_KEY} is no list")
    return tuple(_check_token_text(EXTRA_TOKENS_KEY, mark) for mark in extra)


def _check_token_text(name: str, mark: Any) -> str:
    if isinstance(mark, str):
        return mark
    if isinstance(mark, Mapping) and mark.get("__type") == "AddedToken":
        return _read_added_token(name, {k: v for k, v in mark.items() if k != "__type"}).content
    raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {mark!r}")


def _read_token_decoder(said: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Read added_tokens_decoder: tokens by id."""
    name, stored = "added_tokens_decoder", said["added_tokens_decoder"]
    try:
        return {int(id): _read_added_token(name, token) for id, token in stored.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} has no tokens by id") from error


def _read_added_tokens(folder: Path) -> dict[int, AddedToken]:
    """Read added_tokens.json: ids by token; as in transformers, the last token has a shared id."""
    stored = read_optional(folder / ADDED_TOKENS_FILE)
    if not all(type(id) is int for id in stored.values()):
        raise CheckpointError(f"{ADDED_TOKENS_FILE} has no ids by token")
    return {id: AddedToken(text) for text, id in stored.items()}


def _read_added_token(name: str, token: Any) -> AddedToken:
    try:
        return AddedToken(**token)
    except TypeError as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {token!r}") from error


def _read_types(said: Mapping[str, Any], kind: TokenizerKind) -> bool:
    """Tell whether pairs get token types."""
    names = said.get("model_input_names")
    if names is None:
        return kind.types
    if not isinstance(names, list) or not NEEDED_INPUTS <= {*map(str, names)}:
        wanted = " and ".join(sorted(NEEDED_INPUTS))
        raise CheckpointError(f"{TOKENIZER_CONFIG}: model_input_names lacks {wanted}: {names!r}")
    return TYPES_INPUT in names


def _read_truncation_side(said: Mapping[str, Any]) -> Any:
    side = said.get("truncation_side")
    if side not in (None, "right", "left"):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: truncation_side {side!r} is no side")
    return side


def _read_switches(said: Mapping[str, Any], kind: TokenizerKind) -> dict[str, bool]:
    """Return what a tokenizer of a kind does or not, by the names of the settings."""
    found: dict[str, bool] = {}
    for key, own in kind.switches.items():
        value = said.get(key, own)
        if value is None and key in OPTIONAL_SWITCHES:
            value = found["do_lower_case"] if own is None else own
        if not isinstance(value, bool):
            told = f"{key} is neither true nor false: {value!r}"
            raise CheckpointError(f"{TOKENIZER_CONFIG}: {told}")
        found[key] = value
    return found


def read_class(family: Family, settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Read the name of the class, one of KINDS.

    Args:
        settings: tokenizer_config.json.

    Raises:
        CheckpointError: the files name a class that is not known here.
    """
    own = family.tokenizer_class
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or own
    if own in GENERIC_CLASSES or named in GENERIC_CLASSES:
        return GENERIC_CLASSES[
            0
        ]  # a family without a class has its file read as it is, whatever is named
    name = named.removesuffix("Fast") if isinstance(named, str) else named
    if not isinstance(name, str) or name not in TOKENIZER_KINDS:
        known = ", ".join(sorted({*TOKENIZER_KINDS} - {*GENERIC_CLASSES[1:]}))
        raise CheckpointError(f"tokenizer_class {named!r} is not supported; these are: {known}")
    return name
