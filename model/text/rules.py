"""What is said about a tokenizer outside its tokenizer.json, and the tokenizer that results.

transformers makes most tokenizers anew: of the file it takes the vocabulary, and every step from
the class that is named and its settings. The same is done here, call by call, with the same
library; `rebuild` is TokenizersBackend's and its classes' `__init__` of transformers 5.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from model.errors import CheckpointError
from model.text.pieces import Side

Kind = Literal["file", "bert", "mpnet", "roberta", "xlm-roberta", "camembert"]
Mark = str | AddedToken  # a special token, or one and how it is found in texts

MARKS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT: tuple[Mark, ...] = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_ROBERTA: tuple[Mark, ...] = ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>")
OWN: dict[Kind, dict[str, Mark]] = {  # special tokens by default
    "file": {},
    "bert": dict(zip(MARKS[2:], _BERT, strict=True)),
    "mpnet": dict(zip(MARKS, _ROBERTA, strict=True)) | {"unk_token": "[UNK]"},
    "roberta": dict(zip(MARKS, _ROBERTA, strict=True)),
    "xlm-roberta": dict(zip(MARKS, _ROBERTA, strict=True)),
    "camembert": dict(zip(MARKS, _ROBERTA, strict=True)),
}
CAMEMBERT = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
READS: dict[Kind, type[models.Model]] = {  # the model that a tokenizer.json must hold
    "bert": models.WordPiece,
    "mpnet": models.WordPiece,
    "roberta": models.BPE,
    "xlm-roberta": models.Unigram,
    "camembert": models.Unigram,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is said about a tokenizer.

    Args:
        kind: whose steps it has; "file": those of tokenizer.json.
        lower_case, strip_accents, chinese: of BERT's normaliser; None: accents go with the case.
        prefix_space: whether a text begins as if behind a space; None: as its kind does by itself.
        trim_offsets: whether the space before a word is left out of its place.
        special: what is said of special tokens, by name; None where one is taken away.
        extra: special tokens without a name; None: nothing is said of them.
        added: tokens found in texts, by id.
        whole: whether those are all; else the file's own come with them, and before them.
        split_special: whether special tokens in a text are read as any text.
        types: whether a pair's texts are told apart by token types.
        side: where a text is cut if a request does not say; None: as tokenizer.json says.
    """

    kind: Kind = "file"
    lower_case: bool = True
    strip_accents: bool | None = None
    chinese: bool = True
    prefix_space: bool | None = None
    trim_offsets: bool = True
    special: Mapping[str, Mark | None] = field(default_factory=dict)
    extra: tuple[Mark, ...] | None = None
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    whole: bool = False
    split_special: bool = False
    types: bool = True
    side: Side | None = None


def rebuild(file: Library, rules: Rules) -> Library:
    """Rebuild a file's tokenizer by what is said about it; the file's is used up.

    Raises:
        CheckpointError: the file has no model of that kind, or lacks what the kind needs.
    """
    wanted = READS.get(rules.kind)
    if wanted is not None and not isinstance(file.model, wanted):
        has = type(file.model).__name__
        raise CheckpointError(
            f"tokenizer.json holds {has}, and the tokenizer's class rebuilds {wanted.__name__}; "
            'to read the file as it is, put "tokenizer_class": "PreTrainedTokenizerFast" into '
            "tokenizer_config.json"
        )
    known = dict(rules.added)
    if not rules.whole:
        known |= file.get_added_tokens_decoder()
    special = _special(rules, known)
    made = _Made(file, rules, special)
    library = MAKERS[rules.kind](made)
    library.encode_special_tokens = rules.split_special
    extra = rules.extra
    if extra is None:
        extra = CAMEMBERT if rules.kind == "camembert" else ()
    _add(library, known, special, extra)
    FRAMES[rules.kind](library, made)
    return library


def parts(library: Library) -> dict[str, Any]:
    """Return all of a tokenizer but its vocabulary, in JSON."""
    steps = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    model = {
        name: getattr(library.model, name) for name in _OF_MODELS if hasattr(library.model, name)
    }
    added = library.get_added_tokens_decoder()
    return {
        **{step: _state(getattr(library, step)) for step in steps},
        "model": [type(library.model).__name__, model],
        "added": {str(id): repr(added[id]) for id in sorted(added)},
        "split_special": library.encode_special_tokens,
    }


_OF_MODELS = (
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "max_input_chars_per_word",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "dropout",
)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a tokenizer is made of.

    Args:
        special: the special tokens that it has, by name.
    """

    file: Library
    rules: Rules
    special: Mapping[str, Mark]

    def name(self, kind: str) -> str:
        """Return a special token that cannot be missing."""
        if kind not in self.special:
            raise CheckpointError(f"tokenizer_config.json: {kind} is null, and the texts need it")
        return str(self.special[kind])

    def prefix_space(self, own: bool) -> bool:
        said = self.rules.prefix_space
        return own if said is None else said


def _special(rules: Rules, known: Mapping[int, AddedToken]) -> dict[str, Mark]:
    """Return the special tokens: what is said of them, and what the kind has by default."""
    # the last of several with one text, as in a dict
    found = {token.content: token for token in known.values()}
    said = {
        name: found.get(str(mark), mark) for name, mark in rules.special.items() if mark is not None
    }
    own = {name: mark for name, mark in OWN[rules.kind].items() if name not in rules.special}
    marks = own | said
    if rules.kind == "mpnet":
        marks |= {
            name: AddedToken(mark, lstrip=name == "mask_token")
            for name, mark in marks.items()
            if isinstance(mark, str) and name in MARKS
        }
    mask = marks.get("mask_token")
    if rules.kind == "camembert" and isinstance(mask, str):
        marks["mask_token"] = AddedToken(mask, lstrip=True, special=True)
    order = [*MARKS, *(name for name in marks if name not in MARKS)]
    return {name: marks[name] for name in order if name in marks}


def _bert(made: _Made) -> Library:
    model = made.file.model
    unknown = made.name("unk_token")
    if model.token_to_id(unknown) is None:
        raise CheckpointError(f"unk_token {unknown!r} is not in the vocabulary of tokenizer.json")
    model.unk_token = unknown
    model.continuing_subword_prefix, model.max_input_chars_per_word = "##", 100
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=made.rules.chinese,
        strip_accents=made.rules.strip_accents,
        lowercase=made.rules.lower_case,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def _roberta(made: _Made) -> Library:
    model = made.file.model
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise CheckpointError("tokenizer.json: not supported: a BPE that marks parts of words")
    model.dropout = model.unk_token = None
    model.fuse_unk = model.byte_fallback = model.ignore_merges = False
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=made.prefix_space(own=False))
    library.decoder = decoders.ByteLevel()
    return library


def _unigram(made: _Made) -> Library:
    state = json.loads(made.file.model.__getstate__())
    words = [word for word, _ in state["vocab"]]
    unknown = 3
    if made.rules.kind == "camembert":
        name = str(made.special.get("unk_token"))
        unknown = words.index(name) if name in words else 0
    model = made.file.model
    if state["unk_id"] != unknown or state["byte_fallback"]:
        model = models.Unigram([tuple(row) for row in state["vocab"]], unknown, byte_fallback=False)
    library = Library(model)
    if (first := _precompiled(made.file.normalizer)) is not None:
        library.normalizer = first
    scheme = "always" if made.prefix_space(own=True) else "never"
    steps = (
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme),
    )
    library.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    library.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme=scheme)
    return library


def _precompiled(normalizer: Any) -> normalizers.Normalizer | None:
    """Return the table of SentencePiece among the steps of a normaliser."""
    steps = [normalizer]
    if isinstance(normalizer, normalizers.Sequence):
        steps = [normalizer[index] for index in range(len(normalizer))]
    return next((step for step in steps if isinstance(step, normalizers.Precompiled)), None)


def _add(
    library: Library,
    known: Mapping[int, AddedToken],
    special: Mapping[str, Mark],
    extra: tuple[Mark, ...],
) -> None:
    """Make tokens findable in texts, in transformers' order, which fixes the ids of new ones."""
    there = library.get_added_tokens_decoder().values()
    same = {repr(token) for token in there}
    adding: list[Mark] = [known[id] for id in sorted(known) if repr(known[id]) not in same]
    named = {*(token.content for token in there), *map(str, adding)}
    for mark in (*special.values(), *extra):
        if str(mark) not in named and mark not in adding:
            adding.append(mark)
    marks = {str(mark) for mark in special.values()}
    library.add_tokens([_found(mark, special=str(mark) in marks) for mark in adding])


def _found(mark: Mark, *, special: bool) -> AddedToken:
    """Return a token as it is found in texts."""
    if isinstance(mark, str):
        return AddedToken(mark, special=True)
    if special:  # a copy would fix `normalized`, which follows from it where nothing is said
        mark.special = True
    return mark


def _as_it_is(made: _Made) -> Library:
    return made.file


def _frame_of_file(library: Library, made: _Made) -> None:
    if library.post_processor is None:
        library.post_processor = processors.TemplateProcessing("$A:0", "$A:0 $B:1", [])


def _frame_of_bert(library: Library, made: _Made) -> None:
    first, last = made.name("cls_token"), made.name("sep_token")
    library.post_processor = processors.TemplateProcessing(
        f"{first}:0 $A:0 {last}:0",
        f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        [_numbered(library, name) for name in (first, last)],
    )


def _frame_of_roberta(library: Library, made: _Made) -> None:
    first, last = made.name("cls_token"), made.name("sep_token")
    mpnet = made.rules.kind == "mpnet"
    library.post_processor = processors.RobertaProcessing(
        _numbered(library, last),
        _numbered(library, first),
        trim_offsets=mpnet or made.rules.trim_offsets,
        add_prefix_space=not mpnet and made.prefix_space(own=False),
    )


def _frame_of_unigram(library: Library, made: _Made) -> None:
    first, last = made.name("bos_token"), made.name("eos_token")
    library.post_processor = processors.TemplateProcessing(
        [first, "$A", last],
        [first, "$A", last, last, "$B", last],
        [_numbered(library, name) for name in (first, last)],
    )


def _numbered(library: Library, name: str) -> tuple[str, int]:
    """Return a special token with its id; `_add` has seen to it that it has one."""
    id = library.token_to_id(name)
    if id is None:
        raise CheckpointError(f"tokenizer_config.json: {name!r} cannot be a token")
    return name, id


MAKERS: dict[Kind, Callable[[_Made], Library]] = {
    "file": _as_it_is,
    "bert": _bert,
    "mpnet": _bert,
    "roberta": _roberta,
    "xlm-roberta": _unigram,
    "camembert": _unigram,
}
FRAMES: dict[Kind, Callable[[Library, _Made], None]] = {
    "file": _frame_of_file,
    "bert": _frame_of_bert,
    "mpnet": _frame_of_roberta,
    "roberta": _frame_of_roberta,
    "xlm-roberta": _frame_of_unigram,
    "camembert": _frame_of_unigram,
}


def _state(step: Any) -> Any:
    return step and json.loads(step.__getstate__())
