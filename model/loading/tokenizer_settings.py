"""Read the settings of a tokenizer from a folder's files other than tokenizer.json.

tokenizer_config.json     class, lower-casing, special tokens, token types, side of a cut, length
special_tokens_map.json   special tokens, where tokenizer_config.json has no added_tokens_decoder
added_tokens.json         tokens found in texts, likewise
tokenizer_args            of sentence-transformers, over the first

The service uses tokenizer.json and, of these, the side, the length and whether there are token
types; agreement.py refuses what contradicts tokenizer.json, as transformers 5 reads it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from model.errors import CheckpointError, refuse_unsupported
from model.families.family import Family
from model.families.tokenizers import (
    GENERIC_CLASSES,
    OF_ANOTHER_KIND,
    SPECIAL_TOKENS,
    TOKENIZER_KINDS,
    TokenizerKind,
)
from model.loading.modules import find_folders, read_modules, read_optional, read_overrides
from model.text.pieces import CutSide

TOKENIZER_CONFIG, SPECIAL_TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"
ADDED_TOKENS_FILE, CHAT_TEMPLATES = "added_tokens.json", ("chat_template", "chat_template.jinja")
EXTRA_TOKENS_KEY, OLDER_EXTRA_KEY = "extra_special_tokens", "additional_special_tokens"
TYPES_INPUT = "token_type_ids"  # of model_input_names: the model takes token types
NEEDED_INPUTS = {"input_ids", "attention_mask"}  # of model_input_names
# with these, texts are put into templates, or read by another class or the folder's own code
REFUSED_KEYS = ("auto_map", "fast_tokenizer_files", "init_inputs", "processor_class")
SPLIT_SPECIAL_KEY = "split_special_tokens"  # in a tokenizer.json
OPTIONAL_SWITCHES = ("strip_accents", "add_prefix_space")  # null means the default


@dataclass(frozen=True, slots=True)
class TokenizerRules:
    """The settings of a tokenizer.

    Args:
        kind: the defaults of its class, by which tokenizer.json is judged.
        note: why tokenizer.json is not judged by the class that files name or mean; "": it is.
        named: whether a file names the class; else only what files state is demanded.
        switches: settings that are true or false, by name.
        stated: the names of those that files state.
        special: special tokens by name, as far as files state them; None: there is none.
        extra: special tokens without a name.
        added: tokens found in texts, by id.
        whole: whether `added` are all such tokens; else those of tokenizer.json come before them.
        types: whether a pair's texts are told apart by token types.
        side: where a text is cut if a request does not say; None: as tokenizer.json says.
    """

    kind: TokenizerKind
    note: str
    named: bool
    switches: Mapping[str, bool]
    stated: frozenset[str]
    special: Mapping[str, str | None]
    extra: tuple[str, ...]
    added: Mapping[int, AddedToken]
    whole: bool
    types: bool
    side: CutSide | None

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, as stated or by default; None without one."""
        return self.special[name] if name in self.special else self.kind.special_tokens.get(name)


def read_rules(
    folder: Path, family: Family, config: Mapping[str, Any], found: str = ""
) -> TokenizerRules:
    """Return the settings of a folder's tokenizer.

    Args:
        config: config.json.
        found: the type of the model in tokenizer.json, as TokenizerKind has it; "": not known.

    Raises:
        CheckpointError: a file is broken, or names what is not supported here.
    """
    # with modules.json texts skip the template: pipeline/keys.py refuses modules with messages
    templates = () if read_modules(folder) else CHAT_TEMPLATES
    over, folder = read_overrides(folder).tokenizer, find_folders(folder).tokenizer
    stored = read_optional(folder / TOKENIZER_CONFIG)
    kind, note = _choose_kind(family, stored, config, found)
    stated = {**stored, **over}
    wrong = [key for key in (*REFUSED_KEYS, SPLIT_SPECIAL_KEY) if stated.get(key)]
    wrong += [name for name in templates if stated.get(name) or (folder / name).is_file()]
    refuse_unsupported(TOKENIZER_CONFIG, *wrong)
    whole = "added_tokens_decoder" in stated
    if OLDER_EXTRA_KEY in stated and not stated.get(EXTRA_TOKENS_KEY):
        stated[EXTRA_TOKENS_KEY] = stated.pop(OLDER_EXTRA_KEY)
    named = _pop_named_tokens(stated)
    if not whole:
        stated |= _read_special_tokens(folder, stated, over)
        named |= _pop_named_tokens(stated)
    added = _read_token_decoder(stated) if whole else _read_added_tokens(folder)
    if OLDER_EXTRA_KEY in stated and EXTRA_TOKENS_KEY not in stated:
        stated[EXTRA_TOKENS_KEY] = stated.pop(OLDER_EXTRA_KEY)
    return TokenizerRules(
        kind=kind,
        note=note,
        named=bool(_named_class(stored, config)),
        switches=_read_switches(stated, kind),
        stated=frozenset(key for key in kind.switches if stated.get(key) is not None),
        special=_tokens_by_name(stated, named),
        extra=_unnamed_tokens(stated),
        added=added,
        whole=whole,
        types=_read_types(stated, kind),
        side=_read_truncation_side(stated),
    )


def read_longest(folder: Path, stored: object) -> int | None:
    """Return the most tokens of a sequence, special ones included; None where no file says.

    Args:
        stored: sentence-transformers' max_seq_length, if any.

    Raises:
        CheckpointError: it is not a number.
    """
    config = read_optional(find_folders(folder).tokenizer / TOKENIZER_CONFIG)
    limit = read_overrides(folder).tokenizer.get("model_max_length") or stored
    for key in ("model_max_length", "max_len"):
        limit = limit or config.get(key)
    if limit is None or limit == math.inf:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
        raise CheckpointError(f"the longest sequence is no number of tokens: {limit!r}")
    return int(limit)


def _read_special_tokens(
    folder: Path, stated: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return special_tokens_map.json, which overrides tokenizer_config.json but not arguments."""
    found = {}
    for key, value in read_optional(folder / SPECIAL_TOKENS_FILE).items():
        if arguments.get(key):
            continue
        if key == EXTRA_TOKENS_KEY and isinstance(value, list):
            known = list(stated.get(key) or ())
            value = known + [new for token in value if (new := _token_text(token)) not in known]
        found[key] = value if key == EXTRA_TOKENS_KEY else _token_text(value)
    return found


def _token_text(mark: Any) -> Any:
    """Return the text of a token, which special_tokens_map.json may write as an object."""
    return (
        _read_added_token(SPECIAL_TOKENS_FILE, mark).content if isinstance(mark, Mapping) else mark
    )


def _pop_named_tokens(stated: dict[str, Any]) -> dict[str, Any]:
    """Remove the extra special tokens if they are given by name, and return them."""
    is_by_name = isinstance(stated.get(EXTRA_TOKENS_KEY), Mapping)
    return dict(stated.pop(EXTRA_TOKENS_KEY)) if is_by_name else {}


def _tokens_by_name(stated: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the text of each special token by name; None where a file says that there is none.

    Args:
        stated: all settings; those of SPECIAL_TOKENS count, and others that end in _token.
        named: extra special tokens by name, which override those others.
    """
    marks = {name: stated[name] for name in SPECIAL_TOKENS if name in stated}
    others = {
        name: mark
        for name, mark in stated.items()
        if name.endswith("_token")
        and name not in SPECIAL_TOKENS
        and isinstance(mark, str | Mapping)
    }
    others |= named
    return {
        name: None if mark is None else _check_token_text(name, mark)
        for name, mark in (marks | others).items()
    }


def _unnamed_tokens(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the extra special tokens, which have no names."""
    extra = [] if stated.get(EXTRA_TOKENS_KEY) is None else stated[EXTRA_TOKENS_KEY]
    if not isinstance(extra, list):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {EXTRA_TOKENS_KEY} is no list")
    return tuple(_check_token_text(EXTRA_TOKENS_KEY, mark) for mark in extra)


def _check_token_text(name: str, mark: Any) -> str:
    """Return the text of a special token; refuse what is none."""
    if isinstance(mark, str):
        return mark
    if isinstance(mark, Mapping) and mark.get("__type") == "AddedToken":
        return _read_added_token(name, {k: v for k, v in mark.items() if k != "__type"}).content
    raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {mark!r}")


def _read_token_decoder(stated: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return added_tokens_decoder: tokens by id."""
    name, stored = "added_tokens_decoder", stated["added_tokens_decoder"]
    try:
        return {int(id): _read_added_token(name, token) for id, token in stored.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} has no tokens by id") from error


def _read_added_tokens(folder: Path) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json by id; a shared id is the last one's."""
    stored = read_optional(folder / ADDED_TOKENS_FILE)
    if not all(type(id) is int for id in stored.values()):
        raise CheckpointError(f"{ADDED_TOKENS_FILE} has no ids by token")
    return {id: AddedToken(text) for text, id in stored.items()}


def _read_added_token(name: str, token: Any) -> AddedToken:
    """Return the token that a JSON object describes; `name` says in messages where it stands."""
    try:
        return AddedToken(**token)
    except TypeError as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {token!r}") from error


def _read_types(stated: Mapping[str, Any], kind: TokenizerKind) -> bool:
    """Tell whether a pair's texts get token types."""
    names = stated.get("model_input_names")
    if names is None:
        return kind.types
    if not isinstance(names, list) or not NEEDED_INPUTS <= {*map(str, names)}:
        wanted = " and ".join(sorted(NEEDED_INPUTS))
        raise CheckpointError(f"{TOKENIZER_CONFIG}: model_input_names lacks {wanted}: {names!r}")
    return TYPES_INPUT in names


def _read_truncation_side(stated: Mapping[str, Any]) -> Any:
    """Return the side at which texts are cut, "right" or "left"; None: not stated."""
    side = stated.get("truncation_side")
    if side not in (None, "right", "left"):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: truncation_side {side!r} is no side")
    return side


def _read_switches(stated: Mapping[str, Any], kind: TokenizerKind) -> dict[str, bool]:
    """Return the settings that are true or false, with the defaults of the tokenizer's kind."""
    found: dict[str, bool] = {}
    for key, default in kind.switches.items():
        value = stated.get(key, default)
        if value is None and key in OPTIONAL_SWITCHES:
            value = found["do_lower_case"] if default is None else default
        if not isinstance(value, bool):
            problem = f"{key} is neither true nor false: {value!r}"
            raise CheckpointError(f"{TOKENIZER_CONFIG}: {problem}")
        found[key] = value
    return found


def _choose_kind(
    family: Family, settings: Mapping[str, Any], config: Mapping[str, Any], found: str
) -> tuple[TokenizerKind, str]:
    """Return the kind by which tokenizer.json is judged, and why it is not that of the class."""
    name = read_class(family, settings, config)
    kind = TOKENIZER_KINDS[name]
    if not found or kind.model in ("", found):
        return kind, ""
    who = f"tokenizer_class {name}"
    if not _named_class(settings, config):
        who = f"no file names a class; the family's, {name},"
    return OF_ANOTHER_KIND, f"{who} is of {kind.model}, and the file holds {found}"


def read_class(family: Family, settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the name of the tokenizer's class, a key of TOKENIZER_KINDS.

    Args:
        settings: tokenizer_config.json.
        config: config.json.

    Raises:
        CheckpointError: the files name a class that is not known here.
    """
    own = family.tokenizer_class
    named = _named_class(settings, config) or own
    if own in GENERIC_CLASSES or named in GENERIC_CLASSES:
        # a family without a class has its file read as it is, even if a class is named
        return GENERIC_CLASSES[0]
    name = named.removesuffix("Fast") if isinstance(named, str) else named
    if not isinstance(name, str) or name not in TOKENIZER_KINDS:
        known = ", ".join(sorted({*TOKENIZER_KINDS} - {*GENERIC_CLASSES[1:]}))
        raise CheckpointError(f"tokenizer_class {named!r} is not supported; these are: {known}")
    return name


def _named_class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return what the files name as the tokenizer's class; nothing if they name none."""
    return settings.get("tokenizer_class") or config.get("tokenizer_class")
