"""Texts by which a number format is compared with float32.

With every second group of the bundled sentences (a group's differ in one thing) come single words,
beginnings of one to three words, and several sentences at a time: other lengths, other vectors.
"""

from collections.abc import Sequence

from service.heads.sentences import Sentence, read_bundled

ENDINGS = ".?!"  # of sentences


def sample_texts() -> list[str]:
    """Return distinct texts of many lengths, from every second group of the bundled corpus."""
    groups: dict[str, list[Sentence]] = {}
    for sentence in read_bundled().sentences:
        groups.setdefault(sentence.group, []).append(sentence)
    firsts = [group[0].text for group in groups.values()]  # the others of a group hardly differ
    return vary_lengths(firsts[1::2])


def vary_lengths(sentences: Sequence[str]) -> list[str]:
    """Return sentences with parts of them and with several in one text, each text once."""
    texts = list(sentences)
    for index, sentence in enumerate(sentences):
        words = sentence.rstrip(ENDINGS).split()
        texts.append(" ".join(words[: 1 + index % 3]))
        if index % 2 == 0:
            texts.append(words[-1].capitalize() + ENDINGS[index // 2 % len(ENDINGS)])
        if index % 8 == 3:
            texts.append(" ".join(sentences[index : index + 2 + index // 8 % 8]))
    return list(dict.fromkeys(texts))
