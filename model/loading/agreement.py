"""Refuse a tokenizer.json, which is served, that contradicts tokenizer_config.json.

transformers 5 builds most tokenizers from the class that is named and its settings, so that a file
of other settings would give other ids here than there. Each setting is compared with what the file
does to a text, by whatever steps.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from model.errors import CheckpointError, advise_tokenizer
from model.families.family import Family
from model.families.tokenizers import BYTE_LEVEL
from model.loading.files import TOKENIZER
from model.loading.modules import find_folders
from model.loading.tokenizer_settings import TOKENIZER_CONFIG, TokenizerRules, read_rules
from model.text.template import Template
from model.text.tokenizer import UNUSED_CHARACTER, Tokenizer, open_tokenizer

BYTE_SPACE = "\u0120"  # how bytes write a space
SPACE_MARKS = ("\u2581", BYTE_SPACE)  # how SentencePiece and bytes do


class Contradiction(CheckpointError):
    """tokenizer.json is not the tokenizer that the folder's other files describe.

    Args:
        problem: what contradicts it.
        advice: what to do about it.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


def read_tokenizer(
    folder: Path,
    family: Family,
    raw: Mapping[str, Any],
    *,
    lower_case: bool = False,
    template: Template | None = None,
) -> tuple[Tokenizer, TokenizerRules]:
    """Read a folder's tokenizer, and the rules for it in the folder's other files.

    Args:
        raw: config.json.
        lower_case, template: as `Tokenizer` has them.

    Raises:
        CheckpointError: a file is missing or broken, or they contradict each other.
    """
    library = open_tokenizer(find_folders(folder).tokenizer / TOKENIZER)
    rules = read_rules(folder, family, raw, model_type(library))
    side = rules.side or (library.truncation or {}).get("direction")
    library.no_truncation()
    library.no_padding()
    differences = list(_find_differences(library, rules))
    if wrong := [text for text, stated in differences if stated or rules.named]:
        problem = f"{TOKENIZER_CONFIG} contradicts {TOKENIZER}: {'; '.join(wrong)}"
        # of another kind, transformers would make another tokenizer
        advice = f"mend {TOKENIZER_CONFIG}" if rules.note else advise_tokenizer(str(folder))
        raise Contradiction(problem, advice)
    if differences:
        unsaid = "; ".join(text for text, _ in differences)
        rules = replace(rules, note=f"no file names a class; by the family's, {unsaid}")
    tokenizer = Tokenizer(
        library, side=side, types=rules.types, lower_case=lower_case, template=template
    )
    return tokenizer, rules


def model_type(library: Library) -> str:
    """Return the type of a tokenizer's model, as TokenizerKind has it."""
    name = type(library.model).__name__
    is_of_bytes = name == "BPE" and BYTE_SPACE in "".join(_split_words(library, "a b"))
    return BYTE_LEVEL if is_of_bytes else name


def _find_differences(library: Library, rules: TokenizerRules) -> Iterator[tuple[str, bool]]:
    """Describe each setting that tokenizer.json does not follow; tell whether a file states it."""
    for name, value in rules.switches.items():
        if SWITCH_PROBES[name](library) not in (None, value):
            what = f"{name} is {str(value).lower()}, and the file does otherwise"
            yield what, name in rules.stated
    yield from _wrong_special_tokens(library, rules)
    yield from ((what, True) for what in _describe_other_tokens(library, rules))


def _normalise(library: Library, text: str) -> str:
    """Return a text as the tokenizer normalises it."""
    return text if library.normalizer is None else library.normalizer.normalize_str(text)


def _split_words(library: Library, text: str) -> list[str]:
    """Return the words into which the tokenizer splits a text."""
    words = library.pre_tokenizer
    return [text] if words is None else [word for word, _ in words.pre_tokenize_str(text)]


# setting -> what tokenizer.json does about it, by a trial; None: not known
SWITCH_PROBES: dict[str, Callable[[Library], bool | None]] = {
    "do_lower_case": lambda file: _normalise(file, "A") == "a",
    "strip_accents": lambda file: _normalise(file, "\u00e9") == "e",
    "keep_accents": lambda file: _normalise(file, "\u00e9") != "e",
    "tokenize_chinese_chars": lambda file: _normalise(file, "\u4e2d").startswith(" "),
    "split_by_punct": lambda file: len(_split_words(file, "a.b")) > 1,
    "add_prefix_space": lambda file: _split_words(file, "a")[0].startswith(SPACE_MARKS),
    "trim_offsets": lambda file: _trims_offsets(file),
}


def _trims_offsets(library: Library) -> bool | None:
    """Tell whether a word's offsets leave out the space before it; None: not known."""
    one = library.encode("a a")  # the first word's space may be one that no text has
    starts = [start for (start, _), word in zip(one.offsets, one.word_ids, strict=True) if word]
    return starts[0] > 1 if starts else None


def _wrong_special_tokens(library: Library, rules: TokenizerRules) -> Iterator[tuple[str, bool]]:
    """Describe each special token that is placed otherwise than it should be, or not found."""
    if names := rules.kind.ends:
        first, last = map(rules.special_token, names)
        pair = [first, *[last] * (rules.kind.between + 1)]
        found = library.encode("").tokens, library.encode("", "").tokens
        for around, expected in zip(found, ([first, last], pair), strict=True):
            if around != expected:
                problem = f"{' and '.join(names)} are {first!r} and {last!r}"
                what = f"{problem}, and the file puts {' '.join(around) or 'nothing'} around texts"
                yield what, not rules.special.keys().isdisjoint(names)
                break
        unknown, stated = _unknown_token(library), rules.special_token("unk_token")
        if rules.kind.model != BYTE_LEVEL and unknown != stated:
            what = f"unk_token is {stated!r}, and the file has {unknown!r}"
            yield what, "unk_token" in rules.special
    own = {
        name: mark for name, mark in rules.kind.special_tokens.items() if name not in rules.special
    }
    known = {token.content for token in library.get_added_tokens_decoder().values()}
    marks = [(name, mark) for name, mark in rules.special.items() if mark is not None]
    marks += [("extra_special_tokens", mark) for mark in rules.extra]
    marks += [(name, mark) for name, mark in own.items() if library.token_to_id(mark)]
    for name, mark in marks:
        if mark not in known:
            yield f"{name} is {mark!r}, and the file does not find it in texts", name not in own


def _unknown_token(library: Library) -> str | None:
    """Return the token that an unknown word becomes; None without one."""
    try:
        unknown = [token.id for token in library.model.tokenize(UNUSED_CHARACTER)][:1]
    except Exception:  # the library raises nothing narrower
        return None
    return next((library.id_to_token(id) for id in unknown), None)


def _describe_other_tokens(library: Library, rules: TokenizerRules) -> Iterator[str]:
    """Describe each added token that only one file has, or that the files read differently."""
    in_file = library.get_added_tokens_decoder()
    texts = {token.content for token in in_file.values()}
    for id, token in rules.added.items():
        if rules.whole:
            known = id in in_file and _matching_flags(library, in_file[id]) == _matching_flags(
                library, token
            )
        else:
            known = token.content in texts
        if not known:
            yield f"added token {id} is {token.content!r}, and the file reads it otherwise"
    if rules.whole and rules.kind.model:
        named = {*rules.special.values(), *rules.extra}
        for id, token in in_file.items():
            if id not in rules.added and token.content not in named:
                yield f"added_tokens_decoder lacks {id}, {token.content!r} of the file"


def _matching_flags(library: Library, token: AddedToken) -> tuple[Any, ...]:
    """Return the text and the flags by which a token is found in texts."""
    normal = token.normalized and library.normalizer is not None
    return (token.content, token.special, normal, token.lstrip, token.rstrip, token.single_word)
