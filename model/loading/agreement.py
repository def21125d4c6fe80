"""tokenizer.json, which is served, and tokenizer_config.json: where they differ it is refused.

transformers 5 makes most tokenizers anew, by the class that is named and its settings, so that a
file that says otherwise would give other ids here than there. Each setting is compared with what
the file does to a text, whatever steps it does it by.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from model.errors import CheckpointError, advise_tokenizer
from model.families.family import Family
from model.families.tokenizers import FILE
from model.loading.files import TOKENIZER
from model.loading.modules import home
from model.loading.tokenizer_settings import TOKENIZER_CONFIG, Rules, read_rules
from model.text.template import Template
from model.text.tokenizer import UNUSED_CHARACTER, Tokenizer, open_tokenizer

SPACES = ("\u2581", "\u0120")  # how SentencePiece and bytes write a space


class Contradiction(CheckpointError):
    """tokenizer.json is not the tokenizer that the folder's other files name."""


def read_tokenizer(
    folder: Path,
    family: Family,
    raw: Mapping[str, Any],
    *,
    lower_case: bool = False,
    template: Template | None = None,
) -> tuple[Tokenizer, Rules]:
    """Read a folder's tokenizer, and what its other files say about it.

    Args:
        raw: config.json.
        lower_case, template: as `Tokenizer` has them.

    Raises:
        CheckpointError: a file is missing or broken, or they contradict each other.
    """
    rules = read_rules(folder, family, raw)
    library = open_tokenizer(home(folder) / TOKENIZER)
    side = rules.side or (library.truncation or {}).get("direction")
    library.no_truncation()
    library.no_padding()
    if wrong := list(_differences(library, rules)):
        told = f"{TOKENIZER_CONFIG} contradicts {TOKENIZER}"
        if not (home(folder) / TOKENIZER_CONFIG).is_file():
            without = f"{family.name} means where there is no {TOKENIZER_CONFIG}"
            told = f"{TOKENIZER} contradicts the tokenizer that {without}"
        raise Contradiction(f"{told}: {'; '.join(wrong)}; {advise_tokenizer(str(folder))}")
    how: dict[str, Any] = {"lower_case": lower_case, "template": template}
    return Tokenizer(library, side=side, types=rules.types, **how), rules


def _differences(library: Library, rules: Rules) -> Iterator[str]:
    """Yield each field that says something else than the file does."""
    wanted, has = rules.kind.model, type(library.model).__name__
    if wanted not in ("", has):
        yield f"tokenizer_class is one of {wanted}, and the file holds {has}"
        return
    for name, value in rules.switches.items():
        if PROBES[name](library) not in (None, value):
            yield f"{name} is {str(value).lower()}, and the file does otherwise"
    yield from _marks(library, rules)
    yield from _added(library, rules)


def _normal(library: Library, text: str) -> str:
    return text if library.normalizer is None else library.normalizer.normalize_str(text)


def _words(library: Library, text: str) -> list[str]:
    """Return a text's words as the vocabulary is asked for them."""
    words = library.pre_tokenizer
    return [text] if words is None else [word for word, _ in words.pre_tokenize_str(text)]


# what a file does, by the setting that asks for it; None: it is not told
PROBES: dict[str, Callable[[Library], bool | None]] = {
    "do_lower_case": lambda file: _normal(file, "A") == "a",
    "strip_accents": lambda file: _normal(file, "\u00e9") == "e",
    "keep_accents": lambda file: _normal(file, "\u00e9") != "e",
    "tokenize_chinese_chars": lambda file: _normal(file, "\u4e2d").startswith(" "),
    "split_by_punct": lambda file: len(_words(file, "a.b")) > 1,
    "add_prefix_space": lambda file: _words(file, "a")[0].startswith(SPACES),
    "trim_offsets": lambda file: _trims(file),
}


def _trims(library: Library) -> bool | None:
    """Tell whether the space before a word is left out of its place."""
    one = library.encode("a a")  # the first word's space may be one that no text has
    starts = [start for (start, _), word in zip(one.offsets, one.word_ids, strict=True) if word]
    return starts[0] > 1 if starts else None


def _marks(library: Library, rules: Rules) -> Iterator[str]:
    """Yield special tokens that stand elsewhere than is said, or are not found in texts."""
    if names := rules.kind.ends:
        first, last = map(rules.mark, names)
        pair = [first, *[last] * (rules.kind.between + 1)]
        found = library.encode("").tokens, library.encode("", "").tokens
        for around, wanted in zip(found, ([first, last], pair), strict=True):
            if around != wanted:
                told = f"{' and '.join(names)} are {first!r} and {last!r}"
                yield f"{told}, and the file puts {' '.join(around) or 'nothing'} around texts"
                break
        unknown, said = _unknown(library), rules.mark("unk_token")
        if rules.kind.model != "BPE" and unknown != said:
            yield f"unk_token is {said!r}, and the file has {unknown!r}"
    own = {name: mark for name, mark in rules.kind.marks.items() if name not in rules.special}
    known = {token.content for token in library.get_added_tokens_decoder().values()}
    marks = [(name, mark) for name, mark in rules.special.items() if mark is not None]
    marks += [("extra_special_tokens", mark) for mark in rules.extra]
    marks += [(name, mark) for name, mark in own.items() if library.token_to_id(mark)]
    for name, mark in marks:
        if mark not in known:
            yield f"{name} is {mark!r}, and the file does not find it in texts"


def _unknown(library: Library) -> str | None:
    """Return the token for an unknown word; None without one."""
    try:
        unknown = [token.id for token in library.model.tokenize(UNUSED_CHARACTER)][:1]
    except Exception:  # the library raises nothing narrower
        return None
    return next((library.id_to_token(id) for id in unknown), None)


def _added(library: Library, rules: Rules) -> Iterator[str]:
    """Yield tokens found in texts by one file alone, or otherwise than by the other."""
    there = library.get_added_tokens_decoder()
    texts = {token.content for token in there.values()}
    for id, token in rules.added.items():
        if rules.whole:
            known = id in there and _found(library, there[id]) == _found(library, token)
        else:
            known = token.content in texts
        if not known:
            yield f"added token {id} is {token.content!r}, and the file reads it otherwise"
    if rules.whole and rules.kind is not FILE:
        named = {*rules.special.values(), *rules.extra}
        for id, token in there.items():
            if id not in rules.added and token.content not in named:
                yield f"added_tokens_decoder lacks {id}, {token.content!r} of the file"


def _found(library: Library, token: AddedToken) -> tuple[Any, ...]:
    """Return how a token is found in texts."""
    normal = token.normalized and library.normalizer is not None
    return (token.content, token.special, normal, token.lstrip, token.rstrip, token.single_word)
