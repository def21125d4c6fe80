"""What is said about a tokenizer outside its tokenizer.json, and the tokenizer that results.

transformers makes most tokenizers anew: of the file it takes the vocabulary, and every step from
the class that is named and its settings. The same is done here, call by call, with the same
library; `rebuild` is TokenizersBackend's and its classes' `__init__` of transformers 5.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.normalizers import Precompiled

from model.errors import CheckpointError
from model.text.pieces import QWEN2, Side, state

Kind = Literal[
    "file",
    "bert",
    "mpnet",
    "roberta",
    "xlm-roberta",
    "camembert",
    "albert",
    "deberta-v2",
    "qwen2",
    "gemma",
]
Mark = str | AddedToken  # a special token, or one and how it is found in texts
Special = Mapping[str, Mark]  # the special tokens that a tokenizer has, by name

MARKS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
UNSAID = ("sep", "cls")  # by Gemma's class
_BERT: tuple[Mark, ...] = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_ROBERTA: tuple[Mark, ...] = ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>")
_DEBERTA: tuple[Mark, ...] = ("[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_ALBERT: tuple[Mark, ...] = ("[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]")
OWN: dict[Kind, dict[str, Mark]] = {  # special tokens by default
    "file": {},
    "bert": dict(zip(MARKS[2:], _BERT, strict=True)),
    "mpnet": dict(zip(MARKS, _ROBERTA, strict=True)) | {"unk_token": "[UNK]"},
    "roberta": dict(zip(MARKS, _ROBERTA, strict=True)),
    "xlm-roberta": dict(zip(MARKS, _ROBERTA, strict=True)),
    "camembert": dict(zip(MARKS, _ROBERTA, strict=True)),
    "albert": dict(zip(MARKS, _ALBERT, strict=True)),
    "deberta-v2": dict(zip(MARKS, _DEBERTA, strict=True)),
    "qwen2": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "gemma": {name: f"<{name.removesuffix('_token')}>" for name in MARKS if name[:3] not in UNSAID},
}
SPACE = "\u2581"  # how SentencePiece writes a space
CAMEMBERT = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
READS: dict[Kind, type[models.Model]] = {  # the model that a tokenizer.json must hold
    "bert": models.WordPiece,
    "mpnet": models.WordPiece,
    "roberta": models.BPE,
    "xlm-roberta": models.Unigram,
    "camembert": models.Unigram,
    "albert": models.Unigram,
    "deberta-v2": models.Unigram,
    "qwen2": models.BPE,
    "gemma": models.BPE,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is said about a tokenizer.

    Args:
        kind: whose steps it has; "file": those of tokenizer.json.
        lower_case, strip_accents, chinese: of BERT's normaliser; None: accents go with the case.
        keep_accents: of ALBERT's.
        split_marks: whether DeBERTa's punctuation is split from words before anything else.
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
    keep_accents: bool = False
    split_marks: bool = False
    prefix_space: bool | None = None
    trim_offsets: bool = True
    special: Mapping[str, Mark | None] = field(default_factory=dict)
    extra: tuple[Mark, ...] | None = None
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    whole: bool = False
    split_special: bool = False
    types: bool = True
    side: Side | None = None

    @property
    def begins_with_space(self) -> bool:
        """Tell whether a text begins as if behind a space."""
        own = self.kind not in ("roberta", "mpnet", "qwen2")
        return own if self.prefix_space is None else self.prefix_space


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
    special = special_tokens(rules, known)
    library = MAKERS[rules.kind](file, rules, special)
    library.encode_special_tokens = rules.split_special
    extra = rules.extra
    if extra is None:
        extra = CAMEMBERT if rules.kind == "camembert" else ()
    _add(library, known, special, extra)
    FRAMES[rules.kind](library, rules, special)
    return library


def parts(library: Library) -> dict[str, Any]:
    """Return all of a tokenizer but its vocabulary, in JSON."""
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    model = {
        name: getattr(library.model, name) for name in _OF_MODELS if hasattr(library.model, name)
    }
    added = library.get_added_tokens_decoder()
    return {
        **{name: state(getattr(library, name)) for name in names},
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


def special_tokens(rules: Rules, known: Mapping[int, AddedToken]) -> Special:
    """Return the special tokens by name: what is said of them, or what the kind has by default.

    Args:
        known: tokens found in texts, by id.
    """
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


def needed(special: Special, name: str) -> str:
    """Return a special token that cannot be missing."""
    if name not in special:
        raise CheckpointError(f"tokenizer_config.json: {name} is null, and the texts need it")
    return str(special[name])


def _as_it_is(file: Library, rules: Rules, special: Special) -> Library:
    return file


def _bert(file: Library, rules: Rules, special: Special) -> Library:
    model, unknown = file.model, needed(special, "unk_token")
    if model.token_to_id(unknown) is None:
        raise CheckpointError(f"unk_token {unknown!r} is not in the vocabulary of the tokenizer")
    model.unk_token = unknown
    model.continuing_subword_prefix, model.max_input_chars_per_word = "##", 100
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=rules.chinese,
        strip_accents=rules.strip_accents,
        lowercase=rules.lower_case,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def _roberta(file: Library, rules: Rules, special: Special) -> Library:
    library = Library(_plain_bpe(file))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rules.begins_with_space)
    library.decoder = decoders.ByteLevel()
    return library


def _qwen2(file: Library, rules: Rules, special: Special) -> Library:
    library = Library(_plain_bpe(file))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=rules.begins_with_space, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    if file.post_processor is not None:  # the one step that transformers takes from the file
        library.post_processor = file.post_processor
    return library


def _gemma(file: Library, rules: Rules, special: Special) -> Library:
    model = _plain_bpe(file)
    model.unk_token = needed(special, "unk_token")
    model.fuse_unk = model.byte_fallback = True
    library = Library(model)
    library.normalizer = normalizers.Replace(" ", SPACE)
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if file.post_processor is not None:
        library.post_processor = file.post_processor
    return library


def _plain_bpe(file: Library) -> models.BPE:
    """Return a file's pairs of bytes that are merged, without its own rules."""
    model: models.BPE = file.model
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise CheckpointError("tokenizer.json: not supported: a BPE that marks parts of words")
    model.dropout = model.unk_token = None
    model.fuse_unk = model.byte_fallback = model.ignore_merges = False
    return model


def _unigram(file: Library, rules: Rules, special: Special) -> Library:
    state = json.loads(file.model.__getstate__())
    words = [word for word, _ in state["vocab"]]
    unknown = {"albert": 1}.get(rules.kind, 3)
    if rules.kind == "camembert":
        name = str(special.get("unk_token"))
        unknown = words.index(name) if name in words else 0
    model = file.model
    if state["unk_id"] != unknown or state["byte_fallback"]:
        model = models.Unigram([tuple(row) for row in state["vocab"]], unknown, byte_fallback=False)
    library = Library(model)
    precompiled = [one for one in steps(file.normalizer) if isinstance(one, Precompiled)][:1]
    if rules.kind == "albert":
        library.normalizer = normalizers.Sequence([*_quotes_and_letters(rules), *precompiled])
    elif precompiled:
        library.normalizer = precompiled[0]
    scheme = "always" if rules.begins_with_space else "never"
    spaces = pre_tokenizers.Metaspace(SPACE, scheme)
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    library.decoder = decoders.Metaspace(SPACE, scheme)
    return library


def _quotes_and_letters(rules: Rules) -> Iterator[normalizers.Normalizer]:
    """Yield the steps of ALBERT's normaliser before the table of SentencePiece."""
    yield from (normalizers.Replace("``", '"'), normalizers.Replace("''", '"'))
    if not rules.keep_accents:
        yield from (normalizers.NFKD(), normalizers.StripAccents())
    if rules.lower_case:
        yield normalizers.Lowercase()


def _deberta(file: Library, rules: Rules, special: Special) -> Library:
    vocabulary = [tuple(row) for row in json.loads(file.model.__getstate__())["vocab"]]
    name = needed(special, "unk_token")
    if (name, 0.0) not in vocabulary:
        raise CheckpointError(f"unk_token {name!r} is not in the vocabulary of the tokenizer")
    unknown = vocabulary.index((name, 0.0))
    library = Library(models.Unigram(vocabulary, unknown, byte_fallback=False))
    library.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if rules.lower_case else []),
            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
            normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]
    )
    scheme = "always" if rules.begins_with_space else "first"
    marks = [pre_tokenizers.Punctuation(behavior="isolated")] if rules.split_marks else []
    spaces = pre_tokenizers.Metaspace(SPACE, scheme)
    library.pre_tokenizer = pre_tokenizers.Sequence([*marks, spaces])
    library.decoder = decoders.Metaspace(SPACE, scheme)
    return library


def steps(normalizer: Any) -> list[normalizers.Normalizer]:
    """Return the steps of a normaliser, which may be one, several or none."""
    if isinstance(normalizer, normalizers.Sequence):
        return [normalizer[index] for index in range(len(normalizer))]
    return [] if normalizer is None else [normalizer]


def _add(
    library: Library,
    known: Mapping[int, AddedToken],
    special: Special,
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


def _frame_of_file(library: Library, rules: Rules, special: Special) -> None:
    if library.post_processor is None:
        library.post_processor = processors.TemplateProcessing("$A:0", "$A:0 $B:1", [])


def _frame_of_bert(library: Library, rules: Rules, special: Special) -> None:
    first, last = _ends(library, special, "cls_token", "sep_token")
    library.post_processor = processors.TemplateProcessing(
        f"{first[0]}:0 $A:0 {last[0]}:0",
        f"{first[0]}:0 $A:0 {last[0]}:0 $B:1 {last[0]}:1",
        [first, last],
    )


def _frame_of_roberta(library: Library, rules: Rules, special: Special) -> None:
    first, last = _ends(library, special, "cls_token", "sep_token")
    mpnet = rules.kind == "mpnet"
    library.post_processor = processors.RobertaProcessing(
        last,
        first,
        trim_offsets=mpnet or rules.trim_offsets,
        add_prefix_space=not mpnet and rules.begins_with_space,
    )


def _frame_of_unigram(library: Library, rules: Rules, special: Special) -> None:
    first, last = _ends(library, special, "bos_token", "eos_token")
    library.post_processor = processors.TemplateProcessing(
        [first[0], "$A", last[0]],
        [first[0], "$A", last[0], last[0], "$B", last[0]],
        [first, last],
    )


def _frame_of_albert(library: Library, rules: Rules, special: Special) -> None:
    known, names = library.get_vocab(with_added_tokens=False), ("cls_token", "sep_token")
    for name in names:
        if (mark := needed(special, name)) not in known:  # where transformers looks for it
            raise CheckpointError(f"{name} {mark!r} is not in the vocabulary of the tokenizer")
    (_, first), (_, last) = _ends(library, special, *names)
    library.post_processor = processors.TemplateProcessing(  # by these names, as in transformers
        "[CLS]:0 $A:0 [SEP]:0",
        "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        [("[CLS]", first), ("[SEP]", last)],
    )


def _ends(library: Library, special: Special, *names: str) -> list[tuple[str, int]]:
    """Return the special tokens around a text with their ids, which `_add` has given them."""
    ends = []
    for name in (needed(special, name) for name in names):
        if (id := library.token_to_id(name)) is None:
            raise CheckpointError(f"tokenizer_config.json: {name!r} cannot be a token")
        ends.append((name, id))
    return ends


MAKERS: dict[Kind, Callable[[Library, Rules, Special], Library]] = {
    "file": _as_it_is,
    "bert": _bert,
    "mpnet": _bert,
    "roberta": _roberta,
    "xlm-roberta": _unigram,
    "camembert": _unigram,
    "albert": _unigram,
    "deberta-v2": _deberta,
    "qwen2": _qwen2,
    "gemma": _gemma,
}
FRAMES: dict[Kind, Callable[[Library, Rules, Special], None]] = {
    "file": _frame_of_file,
    "bert": _frame_of_bert,
    "mpnet": _frame_of_roberta,
    "roberta": _frame_of_roberta,
    "xlm-roberta": _frame_of_unigram,
    "camembert": _frame_of_unigram,
    "albert": _frame_of_albert,
    "deberta-v2": _frame_of_bert,
    "qwen2": _frame_of_file,
    "gemma": _frame_of_file,
}
