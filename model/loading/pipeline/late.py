"""Read from sentence-transformers' MultiVectorEncoder how queries and documents are read.

modules.json                        Transformer, Dense .., MultiVectorMask, Normalize
sentence_bert_config.json           query_length, document_length, query_expansion
2_MultiVectorMask/config.json       the skiplist, and the sides that it is for
config_sentence_transformers.json   prompts of either side

Source: sentence-transformers 6.2, base/modules/transformer.py and multi_vector_encoder/.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.config import EncoderConfig, Side
from model.errors import CheckpointError, refuse_unsupported
from model.loading.files import CONFIG, read_object
from model.loading.modules import (
    MODULES_FILE,
    PROMPTS_FILE,
    find_misfit,
    read_modules,
    read_optional,
    read_transformer_settings,
)
from model.loading.pipeline.keys import SETTINGS_FILE, TOKENS_OUTPUT
from model.loading.pipeline.layers import read_input_and_output, read_normalized_input
from model.loading.sentence_transformers import read_max_tokens, read_prompts
from model.loading.tokenizer_settings import SPECIAL_TOKENS_FILE, TOKENIZER_CONFIG
from model.text.frame import Role, Token
from model.text.tokenizer import Tokenizer

MASK_TOKENS = ("[MASK]", "<mask>")  # tried where a tokenizer's files do not name one
QUERY_EXPANSIONS = ("fixed", "min")  # strategies of query_expansion
# PyLate's, refused here: sentence-transformers writes them elsewhere
PYLATE_KEYS = {
    *("query_prefix", "document_prefix", "query_length", "document_length", "query_expansion"),
    *("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"),
    "skiplist_words",
}


def read_roles(folder: Path, config: EncoderConfig, tokenizer: Tokenizer) -> Mapping[Side, Role]:
    """Return how queries and documents are read.

    Raises:
        CheckpointError: a choice is malformed or not supported, or the vocabulary lacks a token.
    """
    modules = read_modules(folder)
    _check_module_order(modules)
    _check_pylate_keys(read_optional(folder / PROMPTS_FILE))
    stored, prompts = read_transformer_settings(modules[0][1]), read_prompts(folder).texts
    masks = [read_object(path / CONFIG) for kind, path in modules if kind == "MultiVectorMask"]
    skipped = _read_skipped(masks[0] if masks else {}, tokenizer)
    limit = read_max_tokens(folder, config.max_tokens)
    query, document = (
        min(_read_length(stored, f"{side}_length") or limit, config.max_tokens)
        for side in ("query", "document")
    )
    reading = Role(query, skipped=skipped["query"], prompt=prompts.get("query", ""))
    if (expansion := stored.get("query_expansion")) is not None:
        if not masks:
            raise CheckpointError(f"{MODULES_FILE}: query_expansion without a MultiVectorMask")
        reading = _fill_queries(reading, expansion, stored, folder, config, tokenizer)
    return {
        "query": reading,
        "document": Role(document, skipped=skipped["document"], prompt=prompts.get("document", "")),
    }


def read_mask_token(folder: Path, tokenizer: Tokenizer) -> Token:
    """Return the token that fills up a query.

    Raises:
        CheckpointError: the tokenizer has no mask token.
    """
    names = [name] if (name := read_special_token(folder, "mask_token")) else MASK_TOKENS
    for one in names:
        if (id := tokenizer.id_of(one)) is not None:
            return Token(id, one)
    raise CheckpointError("queries are to be filled up, and the tokenizer has no mask token")


def read_special_token(folder: Path, kind: str) -> str | None:
    """Return the text of a special token, such as mask_token, in a tokenizer's files."""
    for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_FILE):
        token = read_optional(folder / name).get(kind)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            return token
    return None


def check_queries(config: EncoderConfig, length: int, hidden: bool, where: str) -> None:
    """Refuse queries that the model is too short for, or filled beyond its windows, unattended.

    Args:
        length: tokens of filled queries.
        hidden: whether they are filled with tokens that no other looks at.
        where: the file that asks for it, for the message.
    """
    if length > config.max_tokens:
        most = f"the model takes {config.max_tokens}"
        raise CheckpointError(f"{where}: queries of {length} tokens, and {most}")
    windows = [window for window in config.windows if window is not None]
    if hidden and any(length > window + 1 for window in windows):
        problem = f"filling that no token looks at, beyond a window of {min(windows)}"
        raise CheckpointError(f"{where}: not supported: {problem}")


def _fill_queries(
    role: Role,
    expansion: Any,
    stored: Mapping[str, Any],
    folder: Path,
    config: EncoderConfig,
    tokenizer: Tokenizer,
) -> Role:
    """Add the filling that query_expansion describes to the role of queries."""
    known = {"strategy", "attend", "token", "length"}
    if not isinstance(expansion, Mapping) or not set(expansion) <= known:
        raise CheckpointError(f"{SETTINGS_FILE}: not supported: query_expansion {expansion!r}")
    length, attended = _read_length(expansion, "length"), expansion.get("attend", False)
    strategy, name = expansion.get("strategy"), expansion.get("token")
    if length is None or strategy not in QUERY_EXPANSIONS or not isinstance(attended, bool):
        raise CheckpointError(
            f"{SETTINGS_FILE}: not supported: query_expansion {dict(expansion)!r}"
        )
    if (_read_length(stored, "query_length") or length) < length:
        raise CheckpointError(
            f"{SETTINGS_FILE}: query_length is less than {length}, of query_expansion"
        )
    check_queries(config, length, not attended, SETTINGS_FILE)
    if name is None:
        filling = read_mask_token(folder, tokenizer)
    elif (id := tokenizer.id_of(name)) is not None:
        filling = Token(id, name)
    else:
        raise CheckpointError(f"{SETTINGS_FILE}: the tokenizer lacks {name!r}, of query_expansion")
    longest = length if strategy == "fixed" else max(role.length, length)
    return replace(role, length=longest, filling=filling, attended=attended, floor=length)


def _check_module_order(modules: Sequence[tuple[str, Path]]) -> None:
    """Refuse an unsupported order of modules: all Dense must precede the tokens' Normalize."""
    kinds = [kind for kind, _ in modules]
    named = [kind for kind in kinds if kind != "MultiVectorMask"]
    dense = named.count("Dense")
    order = ["Transformer", *["Dense"] * dense, "Normalize"]
    culprit = find_misfit(named, order) or (None if dense else "no Dense")
    if kinds.count("MultiVectorMask") > 1:
        culprit = culprit or "two of MultiVectorMask"
    refuse_unsupported(MODULES_FILE, culprit)
    for kind, path in modules:
        if kind == "Dense":
            read, written = read_input_and_output(read_object(path / CONFIG), TOKENS_OUTPUT)
            if (read, written) != (TOKENS_OUTPUT, TOKENS_OUTPUT):
                names = f"module_input_name {read!r}, module_output_name {written!r}"
                refuse_unsupported(path.name, names)
        if kind == "Normalize" and read_normalized_input(path) != TOKENS_OUTPUT:
            refuse_unsupported(path.name, "vectors of another length than 1")


def _check_pylate_keys(config: Mapping[str, Any]) -> None:
    """Refuse keys of PyLate's files, and any score other than MaxSim."""
    wrong = [f"{key} {config[key]!r}" for key in sorted(PYLATE_KEYS & set(config))]
    if config.get("similarity_fn_name") == "meanmaxsim":
        wrong.append("similarity_fn_name 'meanmaxsim'")
    refuse_unsupported(PROMPTS_FILE, *wrong)


def _read_length(config: Mapping[str, Any], key: str) -> int | None:
    """Return the number of tokens under a key; None where there is none; refuse others."""
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"{SETTINGS_FILE}: expected one token or more as {key}, received {value!r}"
        )
    return value


def _read_skipped(mask: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, frozenset[int]]:
    """Return the ids that get no vector by side; words that the vocabulary lacks have none."""
    words, tasks = mask.get("skiplist_words") or [], mask.get("skiplist_tasks")
    tasks = [tasks] if isinstance(tasks, str) else tasks
    tasks = ["document"] if tasks is None else tasks
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError("MultiVectorMask: expected texts as skiplist_words")
    if not isinstance(tasks, list):
        raise CheckpointError("MultiVectorMask: expected names as skiplist_tasks")
    ids = frozenset(id for word in words if (id := tokenizer.id_of(word)) is not None)
    return {side: ids if side in tasks else frozenset() for side in ("query", "document")}
