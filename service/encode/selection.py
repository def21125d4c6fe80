"""The attention that a request shows -> what lanes show of each sequence, or a refusal."""

from collections.abc import Sequence
from dataclasses import replace

from model.maps.choices import Level, Specials
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.text.tokenizer import Tokenizer
from service.core import Placer
from service.encode.indices import Heads
from service.engine.work import Outputs, Work
from service.inputs import Attention
from service.refusals import Refused
from service.wording.words import Loc

MOST_KEYS, MOST_BLOCKS = 8, 32  # where a request does not say


def select_attention(
    attention: Attention, heads: Heads, works: Sequence[Work], at: Placer, tokenizer: Tokenizer
) -> None:
    """Ask works for their attention; those of one kind for the same.

    Raises:
        Refused: an input has no such rows, or nothing is left of it.
    """
    alike = dict[object, Outputs]()
    for index, work in enumerate(works):
        separators = _find_separators(attention, work, tokenizer)
        kind = id(work.outputs), _selection_key(attention, work), separators
        if kind not in alike:
            selection = _make_selection(attention, heads, work, separators, index, at)
            alike[kind] = replace(work.outputs, attention=selection)
        work.outputs = alike[kind]


def choose_units(level: Level, specials: Specials, source: Work, loc: Loc) -> Units:
    """Return the rows and columns of one sequence's maps.

    Raises:
        Refused: it has no words, does not say which tokens are special, or nothing is left of it.
    """
    facts = source.facts
    if level == "word" and facts["words"] is None:
        detail = '"level": "word" needs a text, and this input is not one'
        raise Refused.at("words_unknown", *loc, detail=detail)
    if specials != "keep" and facts["special"] is None:
        detail = 'embeddings take "specials": "keep" alone'
        raise Refused.at("specials_unknown", *loc, detail=detail)
    units = divide_into_units(
        len(source.sequence),
        level=level,
        specials=specials,
        words=facts["words"] or (),
        segments=facts.get("segments", ()),
        special=facts["special"] or (),
    )
    if not units.axis:
        detail = f'"specials": "{specials}" leaves nothing of its special tokens'
        raise Refused.at("nothing_left", *loc, detail=detail)
    return units


def _selection_key(attention: Attention, source: Work) -> object:
    """Return what of a sequence its selection depends on."""
    names: Sequence[str] = ()
    if attention.level == "word":
        names = ("special", "words", "segments")
    elif attention.specials != "keep" or attention.form == "stats":
        names = ("special",)
    return len(source), *(tuple(source.facts.get(name) or ()) for name in names)


def _find_separators(attention: Attention, source: Work, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that separate, where they matter."""
    ids = source.facts["token_ids"] if attention.form == "stats" else None
    return tuple([i for i, id in enumerate(ids or ()) if id == tokenizer.separator])


def _make_selection(
    attention: Attention,
    heads: Heads,
    source: Work,
    separators: tuple[int, ...],
    index: int,
    at: Placer,
) -> Selection:
    """Return what is to be shown of one sequence's attention."""
    rows = choose_units(attention.level, attention.specials, source, at(index))
    if not set(attention.rows) <= set(rows.axis):
        detail = _word_missing_row(attention, index, rows)
        raise Refused.at("index_out_of_range", "attention", "rows", detail=detail)
    special = source.facts["special"] or []
    return Selection(
        heads,
        rows,
        attention.form,
        attention.weight or ("value_norm" if attention.form == "dominance" else "probability"),
        tuple(attention.rows),
        attention.k or MOST_KEYS,
        attention.size or MOST_BLOCKS,
        attention.dtype == "float16",
        special.index(True) if True in special else None,
        separators,
    )


def _word_missing_row(attention: Attention, index: int, units: Units) -> str:
    """Say which row an input does not have."""
    number = next(at for at, row in enumerate(attention.rows) if row not in units.axis)
    rows = f"{attention.level}s 0 to {len(units.spans) - 1}"
    left = "" if attention.specials == "keep" else ", without special tokens"
    return f"entry {number} is not a row of inputs[{index}], which has the {rows}{left}"
