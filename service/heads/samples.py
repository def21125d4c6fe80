"""Texts by which a number format is compared with float32.

With every second group of the bundled sentences (a group's differ in one thing) come single words,
beginnings of one to three words, and several sentences at a time: other lengths, other vectors.
"""

from collections.abc import Sequence

from service.heads.sentences import Sentence, read_bundled

ENDINGS = ".?!"


def sample_texts() -> list[str]:
    """Return the texts, no two alike."""
    groups: dict[str, list[Sentence]] = {}
    for sentence in read_bundled().sentences:
        groups.setdefault(sentence.group, []).append(sentence)
    firsts = [group[0].text for group in groups.values()]  # the others of a group hardly differ
    return vary_lengths(firsts[1::2])


def vary_lengths(sentences: Sequence[str]) -> list[str]:
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
