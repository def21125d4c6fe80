"""Texts for int8: those that give its scales, and those by which it is judged.

Of the bundled sentences, a group (sentences that differ in one thing) is on either side. With the
sentences come single words, beginnings of one to three words, and several sentences at a time:
short and long texts have other ranges.
"""

from collections.abc import Sequence

from service.heads.sentences import Sentence, bundled

ENDINGS = ".?!"
MARKS = ENDINGS + ",;:'\""


def halves() -> tuple[list[str], list[str]]:
    """Return the texts for the scales, and those held out; none is in both."""
    groups: dict[str, list[Sentence]] = {}
    for sentence in bundled().sentences:
        groups.setdefault(sentence.group, []).append(sentence)
    firsts = [group[0].text for group in groups.values()]  # the others of a group hardly differ
    scales = [*various(firsts[::2]), *words(firsts[::2])]
    return scales, [text for text in various(firsts[1::2]) if text not in set(scales)]


def words(sentences: Sequence[str]) -> list[str]:
    """Return every word of some sentences, as a text of its own with another ending each."""
    found = {word.strip(MARKS).lower() for text in sentences for word in text.split()} - {""}
    endings = ("", *ENDINGS)
    return [word + endings[place % len(endings)] for place, word in enumerate(sorted(found))]


def various(sentences: Sequence[str]) -> list[str]:
    """Return sentences and what is shorter and longer than they, each once."""
    found = list(sentences)
    for place, sentence in enumerate(sentences):
        own = sentence.rstrip(ENDINGS).split()
        found.append(" ".join(own[: 1 + place % 3]))
        if place % 2 == 0:
            found.append(own[-1].capitalize() + ENDINGS[place // 2 % len(ENDINGS)])
        if place % 8 == 3:
            found.append(" ".join(sentences[place : place + 2 + place // 8 % 8]))
    return list(dict.fromkeys(found))
