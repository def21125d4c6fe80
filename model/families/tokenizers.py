"""Transformers' tokenizer classes, and the defaults of each.

Transformers builds these anew instead of reading tokenizer.json; with a generic class it reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

BYTE_LEVEL = "byte-level BPE"  # a type of model
SPECIAL_TOKENS: tuple[str, ...] = (  # transformers' names of them
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """The defaults of one of transformers' tokenizer classes.

    Args:
        model: type of the model in tokenizer.json, BYTE_LEVEL for a BPE of bytes; "": any.
        special_tokens: the tokens, by name.
        switches: settings that are true or false; None: strip_accents follows do_lower_case.
        ends: names of the special tokens before and after a text; None: not known.
        between: how many special tokens stand between the texts of a pair.
        types: whether a pair's texts are told apart by token types.
    """

    model: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, bool | None] = field(default_factory=dict)
    ends: tuple[str, str] | None = None
    between: int = 1
    types: bool = False


def _name_special_tokens(*texts: str) -> Mapping[str, str]:
    """Return tokens by name, matched to as many names at the end of SPECIAL_TOKENS."""
    return dict(zip(SPECIAL_TOKENS[-len(texts) :], texts, strict=True))


READ_FROM_FILE = TokenizerKind()  # tokenizer.json is read as it is
OF_ANOTHER_KIND = TokenizerKind(types=True)  # likewise, and its token types are
GENERIC_CLASSES = (  # of transformers; they read tokenizer.json
    "TokenizersBackend",
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    "PythonBackend",
)
_BERT = TokenizerKind(
    "WordPiece",
    _name_special_tokens("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"),
    {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    ("cls_token", "sep_token"),
    types=True,
)
_ROBERTA = TokenizerKind(
    BYTE_LEVEL,
    _name_special_tokens("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"),
    {"add_prefix_space": False, "trim_offsets": True},
    ("cls_token", "sep_token"),
    between=2,
)
_XLM_ROBERTA = TokenizerKind(
    "Unigram",
    _ROBERTA.special_tokens,
    {"add_prefix_space": True},
    ("bos_token", "eos_token"),
    between=2,
)
TOKENIZER_KINDS = {  # by transformers' class
    **dict.fromkeys(GENERIC_CLASSES, READ_FROM_FILE),
    "BertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "DistilBertTokenizer": replace(_BERT, types=False),
    "MPNetTokenizer": replace(
        _BERT,
        special_tokens={**_ROBERTA.special_tokens, "unk_token": "[UNK]"},
        between=2,
        types=False,
    ),
    "RobertaTokenizer": _ROBERTA,
    "LongformerTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _XLM_ROBERTA,
    "CamembertTokenizer": _XLM_ROBERTA,
    "AlbertTokenizer": TokenizerKind(
        "Unigram",
        _name_special_tokens("[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"),
        {"do_lower_case": True, "keep_accents": False, "add_prefix_space": True},
        ("cls_token", "sep_token"),
    ),
    "DebertaV2Tokenizer": TokenizerKind(
        "Unigram",
        _name_special_tokens("[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"),
        {"do_lower_case": False, "split_by_punct": False},
        ("cls_token", "sep_token"),
        types=True,
    ),
    "Qwen2Tokenizer": TokenizerKind(BYTE_LEVEL, switches={"add_prefix_space": False}),
    "GemmaTokenizer": TokenizerKind("BPE"),
}
