"""Chooses which attention lanes show of each sequence, or refuses what it does not have."""

from collections.abc import Sequence
from typing import Any

from model.maps.choices import MEAN, Level, Specials
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.probes import Maps, Why
from model.text.tokenizer import Tokenizer
from service.engine.fair.turns import in_turns
from service.pipeline.find.heads import Heads
from service.shapes.inputs import Attention
from service.shapes.side import Placer
from service.shapes.work import Outputs, Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc

# Keys shown per row, and blocks per axis, if a request does not say
DEFAULT_KEYS, DEFAULT_BLOCKS = 8, 32
NO_SEGMENTS = '"form": "mean" needs "segments", such as [[1, 4], [5, 9]], where an input is no pair'
NO_TEXT_LEFT = "nothing is left of one of its texts, so that they have no mean"


async def select_attention(
    attention: Attention, heads: Heads, works: Sequence[Work], at: Placer, tokenizer: Tokenizer
) -> None:
    """Set the attention that each work shows; works alike share one Outputs.

    Args:
        heads: the heads to show.
        at: returns where an input stands in the request.

    Raises:
        Refused: an input lacks a row or a segment that the request names, or has no row at all.
    """
    by_kind = dict[object, Outputs]()
    async for index, work in in_turns(enumerate(works)):
        separators = _find_separators(attention, work, tokenizer)
        kind = id(work.outputs), _selection_key(attention, work), separators
        if kind not in by_kind:
            selection = _make_selection(attention, heads, work, separators, index, at)
            probe = Why(selection) if attention.form == "why" else Maps(selection)
            by_kind[kind] = work.outputs.asking(probe)
        work.outputs = by_kind[kind]


def choose_units(level: Level, specials: Specials, work: Work, loc: Loc) -> Units:
    """Return the tokens or words that are the rows and columns of one sequence's maps.

    Raises:
        Refused: it has no words, its special tokens are not known, or no token is left.
    """
    facts = work.facts
    if level == "word" and facts["words"] is None:
        detail = '"level": "word" needs a text, and this input is not one'
        raise Refused.at("words_unknown", *loc, detail=detail)
    if specials != "keep" and facts["special"] is None:
        detail = 'embeddings take "specials": "keep" alone'
        raise Refused.at("specials_unknown", *loc, detail=detail)
    units = divide_into_units(
        len(work.sequence),
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


def describe_units(units: Units) -> dict[str, Any]:
    """Return the answer's fields that say what rows are, where they are not all tokens in order."""
    fields: dict[str, Any] = {}
    if len(units.axis) < len(units.spans):
        fields["axis"] = units.axis
    if len(units.spans) < units.tokens:
        fields["spans"] = units.spans
    return fields


def _selection_key(attention: Attention, work: Work) -> object:
    """Return a key that is equal for sequences with the same selection."""
    names: Sequence[str] = ()
    if attention.level == "word":
        names = ("special", "words", "segments")
    elif attention.form == "mean":
        names = ("special", "segments")
    elif attention.specials != "keep" or attention.form == "stats":
        names = ("special",)
    return len(work), *(tuple(work.facts.get(name) or ()) for name in names)


def _find_separators(attention: Attention, work: Work, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the positions of separator tokens, which only the form `stats` needs."""
    ids = work.facts["token_ids"] if attention.form == "stats" else None
    return tuple([i for i, id in enumerate(ids or ()) if id == tokenizer.separator])


def _make_selection(
    attention: Attention,
    heads: Heads,
    work: Work,
    separators: tuple[int, ...],
    index: int,
    at: Placer,
) -> Selection:
    """Return which attention to show of one sequence, input `index` of the request."""
    rows = choose_units(attention.level, attention.specials, work, at(index))
    if not set(attention.rows) <= set(rows.axis):
        detail = _word_missing_row(attention, index, rows)
        raise Refused.at("index_out_of_range", "attention", "rows", detail=detail)
    segments = _choose_segments(attention, work, rows, index, at)
    special = work.facts["special"] or []
    return Selection(
        heads,
        rows,
        attention.form,
        attention.weight or ("value_norm" if attention.form == "dominance" else "probability"),
        tuple(attention.rows),
        attention.k or DEFAULT_KEYS,
        attention.size or DEFAULT_BLOCKS,
        attention.dtype == "float16",
        special.index(True) if True in special else None,
        separators,
        segments,
        attention.heads == MEAN,
    )


def _choose_segments(
    attention: Attention, work: Work, units: Units, index: int, at: Placer
) -> tuple[tuple[int, ...], ...]:
    """Return the units of each segment that the form mean is of: the request's, or the two texts.

    Raises:
        Refused: it lacks one of them, or has no two texts.
    """
    if attention.form != "mean":
        return ()
    if attention.segments is None:
        return _divide_into_texts(work, units, at(index))
    shown = set(units.axis)
    for number, (first, last) in enumerate(attention.segments):
        if not shown.issuperset(range(first, min(last, len(units.spans) + 1))):
            told = _word_rows(attention, units)
            detail = f"not all of it is in inputs[{index}], {told}"
            place = "attention", "segments", number
            raise Refused.at("index_out_of_range", *place, detail=detail)
    return tuple(tuple(range(first, last)) for first, last in attention.segments)


def _divide_into_texts(work: Work, units: Units, loc: Loc) -> tuple[tuple[int, ...], ...]:
    """Return the units of either text of a pair, special ones left out.

    Raises:
        Refused: it is no pair, or nothing is left of one of them.
    """
    if "segments" not in work.facts:
        raise Refused.at("index_out_of_range", "attention", "segments", detail=NO_SEGMENTS)
    special, segment = work.facts["special"], work.facts["segments"]
    texts: tuple[list[int], list[int]] = [], []
    for unit, (first, _) in enumerate(units.spans):
        if not special[first]:
            texts[segment[first]].append(unit)
    if not all(texts):
        raise Refused.at("nothing_left", *loc, detail=NO_TEXT_LEFT)
    return tuple(map(tuple, texts))


def _word_missing_row(attention: Attention, index: int, units: Units) -> str:
    """Return the message about the first row that an input does not have."""
    number = next(i for i, row in enumerate(attention.rows) if row not in units.axis)
    return f"entry {number} is not a row of inputs[{index}], {_word_rows(attention, units)}"


def _word_rows(attention: Attention, units: Units) -> str:
    """Return the words about which rows an input has."""
    left = "" if attention.specials == "keep" else ", without special tokens"
    return f"which has the {attention.level}s 0 to {len(units.spans) - 1}{left}"
