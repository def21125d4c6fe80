"""The special tokens that a folder's files name, in the order in which transformers adds them.

tokenizer_config.json      by role (cls_token ..); added_tokens_decoder: by id
special_tokens_map.json    by role, and added_tokens.json, text to id: of older folders, which have
                           no added_tokens_decoder

Source: transformers 5, tokenization_utils_base.py, `_from_pretrained`, and
tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from model.errors import CheckpointError
from model.loading.modules import read_optional

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
KEYS = tuple(f"{role}_token" for role in ROLES)
SPECIAL, LEGACY = "special_tokens_map.json", "added_tokens.json"
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
BY_ID = "added_tokens_decoder"
Token = str | AddedToken


@dataclass(slots=True)
class Added:
    """What is added to a vocabulary, and what is special in it.

    Args:
        roles: a token for each of KEYS that has one.
        others: special ones without a role; None where no file mentions them.
        by_id: of added_tokens_decoder or added_tokens.json, in the order of their ids.
        extra: whether the others have their new name, and not only additional_special_tokens of
            special_tokens_map.json, before which a SentencePiece model's own go.
    """

    roles: dict[str, Token]
    others: list[Token] | None
    by_id: list[AddedToken]
    extra: bool

    def put(self, library: Library) -> None:
        """Add them to a tokenizer that has none."""
        tokens: list[Token] = [*self.by_id]
        known = {text_of(token) for token in tokens}
        for key in KEYS:
            token = self.roles.get(key)
            if token is not None and text_of(token) not in known and token not in tokens:
                tokens.append(token)
        for token in self.others or []:
            if text_of(token) not in known and token not in tokens:
                tokens.append(token)
        named = {text_of(token) for token in self.roles.values()}
        library.add_tokens([_special(token, named) for token in tokens])


def read_added(
    folder: Path,
    config: Mapping[str, Any],
    defaults: Mapping[str, str],
    settled: Collection[str] = (),
) -> Added:
    """Read the tokens of a folder.

    Args:
        config: its tokenizer_config.json.
        defaults: a token for each role that the kind of tokenizer has one for.
        settled: keys for which special_tokens_map.json no longer counts.

    Raises:
        CheckpointError: a token is written in a way that is not known.
    """
    entries = dict(config)
    if not entries.get(EXTRA) and ADDITIONAL in entries:
        entries[EXTRA] = entries.pop(ADDITIONAL)
    by_id = dict[int, AddedToken]()
    if BY_ID in config:
        by_id = _decoder(config[BY_ID])
    else:
        for key, value in read_optional(folder / SPECIAL).items():
            if key not in settled:
                entries[key] = _of_map(value, entries.get(key) if key == EXTRA else None)
    others = _others(entries[EXTRA] if EXTRA in entries else entries.get(ADDITIONAL))
    own = [key for key in entries if key.endswith("_token") and key not in KEYS]
    if wrong := [key for key in own if isinstance(entries[key], str | dict | AddedToken)]:
        raise CheckpointError(f"a special token of its own is not supported: {', '.join(wrong)}")
    if wrong := [key for key in defaults if entries.get(key, defaults[key]) is None]:
        raise CheckpointError(f"{', '.join(wrong)} may not be null")
    roles = {key: _token(entries[key]) for key in KEYS if entries.get(key) is not None}
    if BY_ID not in config:
        # as they are written: transformers does not unwrap an object of tokenizer_config.json
        written = [*map(entries.get, KEYS), *(entries.get(EXTRA) or [])]
        named = {text_of(token) for token in written if isinstance(token, str | AddedToken)}
        by_id = _legacy(read_optional(folder / LEGACY), named)
    texts = {text_of(token): token for token in by_id.values()}
    roles = {key: texts.get(text_of(token), token) for key, token in roles.items()}
    return Added(
        {**defaults, **roles}, others, [by_id[id] for id in sorted(by_id)], EXTRA in entries
    )


def _others(tokens: Any) -> list[Token] | None:
    """Return the special tokens without a role."""
    if not tokens and not isinstance(tokens, list):
        return None
    if not isinstance(tokens, list):
        raise CheckpointError(f"{EXTRA} are supported as a list")
    return [_token(token) for token in tokens]


def _of_map(value: Any, before: Any) -> Any:
    """Return an entry of special_tokens_map.json; a list goes after what was there `before`."""
    if isinstance(value, dict):
        return _made({**value, "special": True})
    if isinstance(value, list) and before:
        return [*before, *(token for token in value if token not in before)]
    return value


def _decoder(entries: Any) -> dict[int, AddedToken]:
    try:
        return {int(id): _made(token) for id, token in entries.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{BY_ID} is not tokens by id: {error}") from error


def _legacy(entries: Mapping[str, Any], named: set[str]) -> dict[int, AddedToken]:
    if not all(type(id) is int for id in entries.values()):
        raise CheckpointError(f"{LEGACY} is not ids by token")
    return {
        id: AddedToken(
            text, rstrip=False, lstrip=False, normalized=text not in named, special=text in named
        )
        for text, id in entries.items()
    }


def _token(value: Any) -> Token:
    """Return a token as a file writes it: its text, or an object that says it is one."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _made({key: entry for key, entry in value.items() if key != "__type"})
    if not isinstance(value, str | AddedToken):
        raise CheckpointError(f"not a special token: {value!r}")
    return value


def _made(entry: Any) -> AddedToken:
    try:
        return AddedToken(**entry)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not a special token: {entry!r}") from error


def text_of(token: Token) -> str:
    """Return the text that a token stands for."""
    return token if isinstance(token, str) else token.content


def _special(token: Token, named: set[str]) -> AddedToken:
    """Return a token as it is added: one with a role is special."""
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if not token.special and token.content in named:
        token.special = True
    return token
