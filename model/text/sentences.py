"""Find the sentences of a text by a small rule, after Unicode's UAX 29, without a model.

A sentence ends

    at . ! ? … with the quotes and brackets behind them, where white space follows; not where the
        next letter is small, nor at the dot of an initial or of the abbreviations below
    at 。！？｡ and the like of other scripts, with what closes behind them, whatever follows
    at an empty line, and at a line's end before a heading or an entry of a list

Any other line end is white space, since texts are often wrapped. An abbreviation that is not below
ends a sentence before a capital letter; one of those below never does, at a sentence's end either.
"""

import re
from collections.abc import Iterator

ABBREVIATIONS = "Mr Mrs Ms Dr Prof St Jr Sr vs cf No Fig Eq Vol pp ed al e.g i.e".split()

CLOSING_MARKS = r"[\"'”’»)\]\}」』）】]*+"  # quotes and brackets behind a sentence's end
SENTENCE_END = re.compile(  # what may end one; see `_continues`
    # from a run's first stop alone: from each of them, it would take the square of a run's length
    rf"(?<![.!?…])[.!?…]++{CLOSING_MARKS}(?=\s)"
    rf"|[。！？｡؟۔।॥]+{CLOSING_MARKS}"
    r"|(?=\r?\n[ \t]*\r?\n)"
    r"|(?=\r?\n[ \t]*(?:[-*•#]|\d{1,3}[.)])[ \t])"
)
LAST_WORD = re.compile(r"(?:^|[^\w.])((?:\w\.)*\w+)\.\Z")  # before a dot
LONGEST_ABBREVIATION = 16  # characters before a dot in which an abbreviation is looked for


def find_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters of each sentence, [start, end), without the white space around it.

    Example:
        >>> list(find_sentences("Dr. Lee left. Why?"))
        [(0, 13), (14, 18)]
    """
    start = 0
    for match in SENTENCE_END.finditer(text):
        if match.end() > start and not _continues(text, match):
            yield from _trim(text, start, match.end())
            start = match.end()
    yield from _trim(text, start, len(text))


def _continues(text: str, match: re.Match[str]) -> bool:
    """Tell whether the sentence goes on after a match of SENTENCE_END."""
    if not match[0] or match[0][0] not in ".!?…":
        return False
    next_start = match.end()
    while next_start < len(text) and text[next_start].isspace():
        next_start += 1
    if text[match.end() : next_start].count("\n") > 1:
        return False
    if text[next_start : next_start + 1].islower():
        return True
    last = LAST_WORD.search(text[max(0, match.start() - LONGEST_ABBREVIATION) : match.start() + 1])
    if match[0] != "." or last is None:
        return False
    word = last[1]
    return word in ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")


def _trim(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a sentence's [start, end) without white space around it; nothing if it is all that."""
    if part := text[start:end].strip():
        first = text.index(part, start)
        yield first, first + len(part)
