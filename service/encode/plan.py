"""What a request wants of attention -> what to show of each of its sequences, or a refusal."""

from collections.abc import Mapping, Sequence

from model.maps.forms import Asked
from model.maps.units import Units, divide
from model.tokenizer import Tokenizer
from service.encode.inputs import Read
from service.encode.request import Attention
from service.refusals import Refused

MOST_KEYS, MOST_BLOCKS = 8, 32  # where a request does not say


def ask(
    attention: Attention,
    heads: Mapping[int, tuple[int, ...]],
    read: Sequence[Read],
    tokenizer: Tokenizer,
) -> list[Asked]:
    """The form asked for, for each sequence.

    Args:
        heads: which heads, by layer.

    Raises:
        Refused: a sequence has no words or no such row, or nothing is left of it.
    """
    return [
        _of_one(attention, heads, one, tokenizer, ("inputs", index))
        for index, one in enumerate(read)
    ]


def _of_one(
    attention: Attention,
    heads: Mapping[int, tuple[int, ...]],
    read: Read,
    tokenizer: Tokenizer,
    loc: tuple[str | int, ...],
) -> Asked:
    facts, units = read.facts, _units(attention, read, loc)
    if not set(attention.rows) <= set(units.axis):
        raise Refused.at("index_out_of_range", "attention", "rows")
    special = facts["special"] or []
    separators = [
        token for token, id in enumerate(facts["token_ids"] or []) if id == tokenizer.separator
    ]
    return Asked(
        heads,
        units,
        attention.form,
        attention.weight or ("value_norm" if attention.form == "dominance" else "probability"),
        tuple(attention.rows),
        attention.k or MOST_KEYS,
        attention.size or MOST_BLOCKS,
        attention.dtype == "float16",
        special.index(True) if True in special else None,
        tuple(separators),
    )


def _units(attention: Attention, read: Read, loc: tuple[str | int, ...]) -> Units:
    """The rows and columns of one sequence's maps."""
    facts = read.facts
    if attention.level == "word" and facts["words"] is None:
        raise Refused.at("words_unknown", *loc)
    if attention.specials != "keep" and facts["special"] is None:
        raise Refused.at("specials_unknown", *loc)
    units = divide(
        len(read),
        level=attention.level,
        specials=attention.specials,
        words=facts["words"] or (),
        segments=facts.get("segments", ()),
        special=facts["special"] or (),
    )
    if not units.axis:
        raise Refused.at("nothing_left", *loc)
    return units
