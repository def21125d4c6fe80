"""Which kind of tokenizer a folder's vocabulary is, and that tokenizer.

The kind is the class that tokenizer_config.json or config.json names, or the one that transformers
takes for the family. Each is built as transformers 5 builds it: the tests compare all its steps
with that library's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE, Unigram, WordPiece

from model.errors import CheckpointError
from model.loading.files import TOKENIZER
from model.loading.modules import read_optional
from model.loading.vocabulary.added import Added, read_added, text_of
from model.loading.vocabulary.sentencepiece import (
    CONTROL,
    UNKNOWN,
    USER,
    SentencePiece,
    read_sentencepiece,
)

CONFIG = "tokenizer_config.json"
MEND = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it"
SPACE = "▁"  # how SentencePiece writes a space
BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>"}
ROBERTA |= {"pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
ALBERT = {**ROBERTA, "bos": "[CLS]", "eos": "[SEP]", "sep": "[SEP]", "cls": "[CLS]"}
ALBERT |= {"mask": "[MASK]"}
Vocabulary = list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a folder's tokenizer comes from.

    Args:
        tokenizer: its tokenizer.json, or what was made of its vocabulary.
        files: that were read to the byte.
        choices: what was read from the others.
    """

    tokenizer: Path | Library
    files: list[Path]
    choices: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tokenizer is made of.

    Args:
        paths: the files of the vocabulary, in the order of the kind.
        switches: its choices, as tokenizer_config.json or the kind has them.
        roles: the text of the special token of each role.
    """

    paths: list[Path]
    switches: Mapping[str, Any]
    roles: Mapping[str, str]
    added: Added


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of tokenizers.

    Args:
        files: of its vocabulary.
        roles: its special tokens.
        switches: its choices, with their defaults.
    """

    files: tuple[str, ...]
    make: Callable[[Parts], Library]
    roles: Mapping[str, str]
    switches: Mapping[str, bool | None] = field(default_factory=dict)


def find_tokenizer(
    folder: Path, config: Mapping[str, Any], over: Mapping[str, Any] | None = None
) -> Source:
    """Find the tokenizer of a folder; without tokenizer.json it is made from the vocabulary.

    Args:
        config: its config.json.
        over: what overrides its tokenizer_config.json, except the class.

    Raises:
        CheckpointError: it cannot be made, or not as transformers makes it.
    """
    if (folder / TOKENIZER).is_file():
        return Source(folder / TOKENIZER, [folder / TOKENIZER])
    own = read_optional(folder / CONFIG)
    over = over or {}
    own = {**own, **{key: value for key, value in over.items() if key != "tokenizer_class"}}
    kind = _kind(folder, own, config)
    switches = {name: own.get(name, default) for name, default in kind.switches.items()}
    for name, value in switches.items():
        if not isinstance(value, bool) and (value is not None or kind.switches[name] is not None):
            raise CheckpointError(f"{CONFIG}: {name} is neither true nor false: {value!r}")
    defaults = {f"{role}_token": kind.roles[role] for role in kind.roles}
    added = read_added(folder, own, defaults, {key for key in over if over[key]})
    roles = {key.removesuffix("_token"): text_of(token) for key, token in added.roles.items()}
    paths = [folder / name for name in kind.files]
    try:
        library = kind.make(Parts(paths, switches, roles, added))
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{kind.files[0]} cannot be read: {error}") from error
    tokens = sorted(library.get_added_tokens_decoder().items())
    choices = [f"{switches}", f"{roles}", *(f"{id} {token!r}" for id, token in tokens)]
    return Source(library, paths, choices)


def _kind(folder: Path, own: Mapping[str, Any], config: Mapping[str, Any]) -> Kind:
    """Return the kind that a folder names, or its family's.

    Raises:
        CheckpointError: there is none, its files are missing, or it asks for something else.
    """
    family = config.get("model_type")
    name = own.get("tokenizer_class") or config.get("tokenizer_class") or OF_FAMILY.get(str(family))
    kind = KINDS.get(name.removesuffix("Fast")) if isinstance(name, str) else None
    if family == "modernbert":  # transformers ignores its class
        kind, name = None, None
    if kind is None:
        of = f"a {name}" if name else f"the tokenizer of {family!r}"
        raise CheckpointError(f"{folder} lacks tokenizer.json, and {of} is not made here; {MEND}")
    missing = [file for file in kind.files if not (folder / file).is_file()]
    if missing:
        files = " or ".join(["tokenizer.json", " and ".join(missing)])
        raise CheckpointError(f"{folder} lacks {files}")
    other = [key for key in ("auto_map", "add_bos_token", "add_eos_token") if key in own]
    other += ["split_special_tokens"] * bool(own.get("split_special_tokens"))
    if other:
        unfollowed = f"{', '.join(other)} of {CONFIG} is not followed"
        raise CheckpointError(f"{folder} lacks tokenizer.json, and {unfollowed}; {MEND}")
    return kind


# WordPiece


def _bert(parts: Parts) -> Library:
    """Build BERT's: [CLS] a [SEP] b [SEP], the second text of type 1."""
    library = _wordpiece(parts)
    parts.added.put(library)
    cls, sep = parts.roles["cls"], parts.roles["sep"]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[_end(library, cls), _end(library, sep)],
    )
    return library


def _mpnet(parts: Parts) -> Library:
    """Build MPNet's: BERT's words, RoBERTa's special tokens; its mask takes the space before."""
    library = _wordpiece(parts)
    for key, token in parts.added.roles.items():
        if isinstance(token, str):
            mask = key == "mask_token"
            parts.added.roles[key] = AddedToken(token, lstrip=mask, rstrip=False)
    parts.added.put(library)
    library.post_processor = _roberta_ends(library, parts, trim=True, prefix=False)
    return library


def _wordpiece(parts: Parts) -> Library:
    switches = parts.switches
    library = Library(WordPiece.from_file(str(parts.paths[0]), unk_token=parts.roles["unk"]))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=switches["tokenize_chinese_chars"],
        strip_accents=switches["strip_accents"],
        lowercase=switches["do_lower_case"],
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


# BPE of bytes


def _roberta(parts: Parts) -> Library:
    """Build RoBERTa's: <s> a </s></s> b </s>, all of type 0."""
    prefix, trim = parts.switches["add_prefix_space"], parts.switches["trim_offsets"]
    vocabulary, merges = map(str, parts.paths)
    model = BPE.from_file(
        vocabulary,
        merges,
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
    )
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    parts.added.put(library)
    library.post_processor = _roberta_ends(library, parts, trim=bool(trim), prefix=bool(prefix))
    return library


def _roberta_ends(
    library: Library, parts: Parts, *, trim: bool, prefix: bool
) -> processors.RobertaProcessing:
    sep, cls = (_end(library, parts.roles[role]) for role in ("sep", "cls"))
    return processors.RobertaProcessing(sep, cls, trim, prefix)


def _end(library: Library, token: str) -> tuple[str, int]:
    """Return a special token and its id."""
    id = library.token_to_id(token)
    if id is None:
        raise CheckpointError(f"the vocabulary lacks {token}")
    return token, id


# Unigram


def _xlm_roberta(parts: Parts) -> Library:
    """Build XLM-RoBERTa's: fairseq's four special tokens before the pieces, and a mask after."""
    model, roles = read_sentencepiece(parts.paths[0]), parts.roles
    first = [piece.text for piece in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(f"{parts.paths[0].name} begins with {first}, not <unk>, <s>, </s>")
    before = [roles[role] for role in ("bos", "pad", "eos", "unk")]
    pieces = [(piece.text, piece.score) for piece in model.pieces[3:]]
    vocabulary = [*((text, 0.0) for text in before), *pieces, (roles["mask"], 0.0)]
    return _fairseq(model, vocabulary, 3, parts)


def _camembert(parts: Parts) -> Library:
    """Build CamemBERT's: as XLM-RoBERTa's, with other tokens before the pieces."""
    model, roles = read_sentencepiece(parts.paths[0]), parts.roles
    if model.pieces[0].type != UNKNOWN:
        raise CheckpointError(f"{parts.paths[0].name} does not begin with its unknown token")
    before = [("<s>NOTUSED", 0.0), (roles["pad"], 0.0), ("</s>NOTUSED", 0.0), (roles["unk"], 0.0)]
    pieces = [(piece.text, piece.score) for piece in model.pieces[1:]]
    vocabulary = [*before, ("<unk>NOTUSED", -100.0), *pieces, (roles["mask"], 0.0)]
    unknown = next(i for i, (text, _) in enumerate(vocabulary) if text == roles["unk"])
    mask = parts.added.roles["mask_token"]
    if isinstance(mask, str):
        parts.added.roles["mask_token"] = AddedToken(mask, lstrip=True, special=True)
    return _fairseq(model, vocabulary, unknown, parts)


def _albert(parts: Parts) -> Library:
    """Build ALBERT's: the pieces as they are, between [CLS] and [SEP]."""
    model, roles, switches = read_sentencepiece(parts.paths[0]), parts.roles, parts.switches
    vocabulary = [(piece.text, piece.score) for piece in model.pieces]
    if [piece.type for piece in model.pieces[:2]][-1] != UNKNOWN:
        raise CheckpointError(f"{parts.paths[0].name}: its second piece is not the unknown token")
    library = Library(Unigram(vocabulary, unk_id=1, byte_fallback=False))
    steps: list[normalizers.Normalizer]
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if switches["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if switches["do_lower_case"] else []
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    library.normalizer = normalizers.Sequence(steps)
    _spaces(library, parts)
    (_, cls), (_, sep) = _end(library, roles["cls"]), _end(library, roles["sep"])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    _put(library, parts, model)
    return library


def _fairseq(model: SentencePiece, vocabulary: Vocabulary, unknown: int, parts: Parts) -> Library:
    """Build a tokenizer with <s> a </s></s> b </s>, all of type 0."""
    library = Library(Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    if model.charsmap:
        library.normalizer = normalizers.Precompiled(model.charsmap)
    _spaces(library, parts)
    _put(library, parts, model)
    bos, eos = parts.roles["bos"], parts.roles["eos"]
    library.post_processor = processors.TemplateProcessing(
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[_end(library, bos), _end(library, eos)],
    )
    return library


def _spaces(library: Library, parts: Parts) -> None:
    scheme = "always" if parts.switches["add_prefix_space"] else "never"
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme),
        ]
    )
    library.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def _put(library: Library, parts: Parts, model: SentencePiece) -> None:
    """Add the special tokens; the model's own where no file names any without a role."""
    own: list[str | AddedToken] = [
        AddedToken(piece.text, normalized=False, special=piece.type == CONTROL)
        for piece in model.pieces
        if piece.type in (CONTROL, USER)
    ]
    if parts.added.others is None or not parts.added.extra:
        parts.added.others = own
    parts.added.put(library)


SENTENCEPIECE = ("sentencepiece.bpe.model",)
LETTERS = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
PREFIXED = {"add_prefix_space": True}
WORDPIECE = Kind(("vocab.txt",), _bert, BERT, LETTERS)
KINDS = {
    "BertTokenizer": WORDPIECE,
    "DistilBertTokenizer": WORDPIECE,
    "ElectraTokenizer": WORDPIECE,
    "MPNetTokenizer": Kind(("vocab.txt",), _mpnet, {**ROBERTA, "unk": "[UNK]"}, LETTERS),
    "RobertaTokenizer": Kind(
        ("vocab.json", "merges.txt"),
        _roberta,
        ROBERTA,
        {"add_prefix_space": False, "trim_offsets": True},
    ),
    "XLMRobertaTokenizer": Kind(SENTENCEPIECE, _xlm_roberta, ROBERTA, PREFIXED),
    "CamembertTokenizer": Kind(SENTENCEPIECE, _camembert, ROBERTA, PREFIXED),
    "AlbertTokenizer": Kind(
        ("spiece.model",),
        _albert,
        ALBERT,
        {"do_lower_case": True, "keep_accents": False, **PREFIXED},
    ),
}
OF_FAMILY = dict.fromkeys(("bert", "electra", "distilbert", "nomic_bert"), "BertTokenizer") | {
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
