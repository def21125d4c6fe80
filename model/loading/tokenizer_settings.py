"""What a folder's files other than tokenizer.json say about its tokenizer.

tokenizer_config.json     class, lower-casing, special tokens, token types, side of a cut, length
special_tokens_map.json   special tokens, where tokenizer_config.json has no added_tokens_decoder
added_tokens.json         tokens found in texts, likewise
tokenizer_args            of sentence-transformers, over the first

We follow what transformers 5 follows of them; docs/models.md lists what has no effect.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from model.errors import CheckpointError
from model.loading.files import TOKENIZER
from model.loading.modules import home, read_arguments, read_modules, read_optional
from model.text.rules import MARKS, Kind, Mark, Rules

TOKENIZER_CONFIG, SPECIALS = "tokenizer_config.json", "special_tokens_map.json"
ADDED, TEMPLATES = "added_tokens.json", ("chat_template", "chat_template.jinja")
EXTRA, OLDER = "extra_special_tokens", "additional_special_tokens"
PAIRS = "token_type_ids"
NEEDED = {"input_ids", "attention_mask"}
# each would have texts put into others, or read by another class or the folder's own code
OF_ENDS = ("add_bos_token", "add_eos_token")  # without effect next to a tokenizer.json
REFUSED = ("auto_map", "fast_tokenizer_files", "init_inputs", "processor_class")


def read_rules(folder: Path, family: str, config: Mapping[str, Any]) -> Rules:
    """Read what a folder's files say about its tokenizer.

    Args:
        family: model_type of config.json.
        config: config.json.

    Raises:
        CheckpointError: a file is broken, or names what is not supported here.
    """
    # with modules.json texts go round it: pipeline/keys.py refuses modules that take messages
    templates = () if read_modules(folder) else TEMPLATES
    over, folder = read_arguments(folder).tokenizer, home(folder)
    stored, made = read_optional(folder / TOKENIZER_CONFIG), not (folder / TOKENIZER).is_file()
    name = read_class(family, stored, config, made=made)
    said = {**stored, **over}
    wrong = [key for key in REFUSED if said.get(key)]
    wrong += [key for key in OF_ENDS if made and key in said]
    wrong += [name for name in templates if said.get(name) or (folder / name).is_file()]
    if wrong:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: not supported: {', '.join(wrong)}")
    whole = "added_tokens_decoder" in said
    if OLDER in said and not said.get(EXTRA):
        said[EXTRA] = said.pop(OLDER)
    named = _named(said)
    if not whole:
        said |= _special_tokens(folder, said, over)
        named |= _named(said)
    added = _decoder(said) if whole else _legacy(folder, said)
    # a SentencePiece model's own come before what the map alone calls by the older name
    if OLDER in said and EXTRA not in said and not (made and KINDS[name] in SENTENCEPIECE):
        said[EXTRA] = said.pop(OLDER)
    return Rules(
        kind=KINDS[name],
        lower_case=_switch(said, "do_lower_case", own=KINDS[name] != "deberta-v2"),
        strip_accents=_optional_switch(said, "strip_accents"),
        chinese=_switch(said, "tokenize_chinese_chars", own=True),
        keep_accents=_switch(said, "keep_accents", own=False),
        split_marks=_switch(said, "split_by_punct", own=False),
        prefix_space=_optional_switch(said, "add_prefix_space"),
        trim_offsets=_switch(said, "trim_offsets", own=True),
        special=_marks(said, named),
        extra=_extra(said),
        added=added,
        whole=whole,
        split_special=_switch(said, "split_special_tokens", own=False),
        types=_types(said, name),
        side=_side(said),
    )


def read_longest(folder: Path, stored: object) -> int | None:
    """Read the longest sequence, special tokens included; None where no file says.

    Args:
        stored: what sentence-transformers itself stored.

    Raises:
        CheckpointError: it is not a number.
    """
    config, over = read_optional(home(folder) / TOKENIZER_CONFIG), read_arguments(folder).tokenizer
    limit = over.get("model_max_length") or stored
    for key in ("model_max_length", "max_len"):
        limit = limit or config.get(key)
    if limit is None or limit == math.inf:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
        raise CheckpointError(f"the longest sequence is no number of tokens: {limit!r}")
    return int(limit)


def _special_tokens(
    folder: Path, said: Mapping[str, Any], over: Mapping[str, Any]
) -> dict[str, Any]:
    """Read special_tokens_map.json, which overrides tokenizer_config.json but not arguments."""
    found = {}
    for key, value in read_optional(folder / SPECIALS).items():
        if over.get(key):
            continue
        if key == EXTRA and isinstance(value, list):
            there = list(said.get(key) or ())
            value = there + [new for one in value if (new := _marked(one)) not in there]
        found[key] = value if key == EXTRA else _marked(value)
    return found


def _marked(mark: Any) -> Any:
    """Return a token of special_tokens_map.json, where an object is a special token."""
    return _token(SPECIALS, {**mark, "special": True}) if isinstance(mark, Mapping) else mark


def _named(said: dict[str, Any]) -> dict[str, Any]:
    """Take out special tokens that have names of their own."""
    return dict(said.pop(EXTRA)) if isinstance(said.get(EXTRA), Mapping) else {}


def _marks(said: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Mark | None]:
    """Return special tokens by name, those with transformers' names and others."""
    marks = {name: said[name] for name in MARKS if name in said}
    others = {
        name: mark
        for name, mark in said.items()
        if name.endswith("_token") and name not in MARKS and isinstance(mark, Mark | Mapping)
    }
    others |= named
    return {
        name: None if mark is None else _mark(name, mark) for name, mark in (marks | others).items()
    }


def _extra(said: Mapping[str, Any]) -> tuple[Mark, ...] | None:
    """Return the special tokens without a name."""
    if EXTRA not in said:
        return None
    extra = [] if said[EXTRA] is None else said[EXTRA]
    if not isinstance(extra, list):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {EXTRA} is no list")
    return tuple(_mark(EXTRA, mark) for mark in extra)


def _mark(name: str, mark: Any) -> Mark:
    if isinstance(mark, Mark):
        return mark
    if isinstance(mark, Mapping) and mark.get("__type") == "AddedToken":
        return _token(name, {key: value for key, value in mark.items() if key != "__type"})
    raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {mark!r}")


def _decoder(said: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Read added_tokens_decoder: tokens by id."""
    name, stored = "added_tokens_decoder", said["added_tokens_decoder"]
    try:
        return {int(id): _token(name, token) for id, token in stored.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} has no tokens by id") from error


def _legacy(folder: Path, said: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Read added_tokens.json: ids by token; as in transformers, the last token has a shared id."""
    # as it is written: transformers does not unwrap an object of tokenizer_config.json
    marks = [*(said[name] for name in MARKS if name in said), *(said.get(EXTRA) or ())]
    special = {str(mark) for mark in marks if isinstance(mark, Mark)}
    stored = read_optional(folder / ADDED)
    if not all(type(id) is int for id in stored.values()):
        raise CheckpointError(f"{ADDED} has no ids by token")
    return {
        id: AddedToken(text, normalized=text not in special, special=text in special)
        for text, id in stored.items()
    }


def _token(name: str, token: Any) -> AddedToken:
    try:
        return AddedToken(**token)
    except TypeError as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {name} is no token: {token!r}") from error


def _types(said: Mapping[str, Any], name: str) -> bool:
    """Tell whether pairs get token types."""
    names = said.get("model_input_names")
    if names is None:
        return name in TYPED
    if not isinstance(names, list) or not NEEDED <= {*map(str, names)}:
        wanted = " and ".join(sorted(NEEDED))
        raise CheckpointError(f"{TOKENIZER_CONFIG}: model_input_names lacks {wanted}: {names!r}")
    return PAIRS in names


def _side(said: Mapping[str, Any]) -> Any:
    side = said.get("truncation_side")
    if side not in (None, "right", "left"):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: truncation_side {side!r} is no side")
    return side


def _switch(said: Mapping[str, Any], key: str, *, own: bool) -> bool:
    value = said.get(key, own)
    if not isinstance(value, bool):
        raise CheckpointError(f"{TOKENIZER_CONFIG}: {key} is neither true nor false: {value!r}")
    return value


def _optional_switch(said: Mapping[str, Any], key: str) -> bool | None:
    return None if said.get(key) is None else _switch(said, key, own=False)


MEND = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it"
GENERIC = (
    "TokenizersBackend",
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    "PythonBackend",
)
BY_FAMILY = {  # the default class; a family that is not here has none
    "bert": "BertTokenizer",
    "ernie": "BertTokenizer",
    "electra": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "mpnet": "MPNetTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "albert": "AlbertTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "gte": "XLMRobertaTokenizer",
    "new": "XLMRobertaTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "gemma3_text": "GemmaTokenizer",
}
KINDS: dict[str, Kind] = {
    "BertTokenizer": "bert",
    "ElectraTokenizer": "bert",
    "DistilBertTokenizer": "bert",
    "RobertaTokenizer": "roberta",
    "LongformerTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "MPNetTokenizer": "mpnet",
    "AlbertTokenizer": "albert",
    "DebertaV2Tokenizer": "deberta-v2",
    "Qwen2Tokenizer": "qwen2",
    "GemmaTokenizer": "gemma",
    **dict.fromkeys(GENERIC, "file"),
}
SENTENCEPIECE = ("xlm-roberta", "camembert", "albert", "deberta-v2")  # kinds
TYPED = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")  # give token types by default


def read_class(
    family: str, settings: Mapping[str, Any], config: Mapping[str, Any], *, made: bool = False
) -> str:
    """Read the name of the class, one of KINDS.

    Args:
        family: model_type of config.json.
        settings: tokenizer_config.json.
        made: whether the tokenizer is made from its vocabulary.

    Raises:
        CheckpointError: the files name a class that is not known here.
    """
    own = BY_FAMILY.get(family, GENERIC[0])
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or own
    if own in GENERIC or named in GENERIC:
        if made:
            lacking = f"{TOKENIZER} is missing, and a {named} of {family!r} is not made here"
            raise CheckpointError(f"{lacking}; {MEND}")
        return GENERIC[0]  # a family without a class has its file read as it is, whatever is named
    name = named.removesuffix("Fast") if isinstance(named, str) else named
    if made and name == "GemmaTokenizer":
        raise CheckpointError(f"{TOKENIZER} is missing, and a {name} is not made here; {MEND}")
    if not isinstance(name, str) or name not in KINDS:
        known = ", ".join(sorted({*KINDS} - {*GENERIC[1:]}))
        raise CheckpointError(f"tokenizer_class {named!r} is not supported; these are: {known}")
    return name
