"""Attention maps of words -> the head, if any, that links words as a relation does.

A head answers for word i with the word j != i that it attends to most, without special tokens. The
head that answers best on some sentences is the candidate; it is judged on other sentences, the
controls, where words of the same kind stand nearer or the right word is swapped. It is named
only if it beats by BEST_MARGIN the best that a fixed guess of one place can do there:

    one offset, the same in all controls; or, where the controls are pairs that differ in which
    word is right, one word, the same in both sentences of a pair.

Sources: Clark et al. 2019, sections 4.1 and 4.2; Voita et al. 2019, section 5.2.2 (the margin).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

BEST_MARGIN = 0.10  # of scores, as in Voita et al.
WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")  # or a punctuation mark

# reasons of a Verdict without a head
NO_CONTROLS = "no controls to judge it by"
NO_WORDS = "the tokenizer gives no words"
NOT_BETTER = "on the controls it does not beat the baseline by the margin"


@dataclass(frozen=True, slots=True)
class Link:
    """How every head answered in one sentence.

    Args:
        control: whether the sentence is one to judge by, not to choose by.
        group: name shared by sentences that differ in one thing.
        place: index of the right word in its sentence.
        offset: words from the source word to the right one.
        right_by_head: for each head, whether it answered with the right word.
    """

    control: bool
    group: str
    place: int
    offset: int
    right_by_head: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a head links words as a relation does, by the relation's sentences.

    Args:
        head: that head, or None, and then `reason` says why.
        candidate: the head that answered best on the sentences to choose by.
        score, baseline: shares of right answers on the controls, NaN without any: the candidate's
            and the best fixed guess's.
        threshold: the score that the candidate has to reach.
        offset: the most frequent offset on the controls, words.
        items, controls: how many sentences there were to choose by and to judge by.
    """

    head: int | None
    reason: str | None
    candidate: int | None = None
    score: float = math.nan
    threshold: float = math.nan
    baseline: float = math.nan
    offset: int | None = None
    items: int = 0
    controls: int = 0


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters, [start, end), of each word and punctuation mark of a text.

    Example:
        >>> word_spans("It didn't.")
        [(0, 2), (3, 9), (9, 10)]
    """
    return [match.span() for match in WORD.finditer(text)]


def words_of_tokens(
    words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]], special: Sequence[bool]
) -> list[int | None] | None:
    """Return the word of each token, None for a special one.

    Return None instead of a list where a token spans words or a word has no token.

    Example:
        >>> offsets = [(0, 0), (0, 2), (3, 7), (7, 9)]
        >>> words_of_tokens([(0, 2), (3, 9)], offsets, [True] + [False] * 3)
        [None, 0, 1, 1]
    """
    owners: list[int | None] = []
    for (start, end), is_special in zip(offsets, special, strict=True):
        over = [i for i, (first, last) in enumerate(words) if first < end and start < last]
        if len(over) > 1 and not is_special:
            return None
        owners.append(over[0] if over and not is_special else None)
    return owners if set(range(len(words))) <= set(owners) else None


def most_attended_words(maps: Tensor, words: Sequence[int | None], source: int) -> Tensor:
    """Return the word each head attends to most from a source word, (heads,); -1 for a tie.

    Weights to a word's tokens are summed, those from them averaged (Clark, section 4.1).

    Args:
        maps: (heads, query, key) of tokens.
        words: the word of each token; None for a special one.
        source: the word from which heads attend.
    """
    tokens = [token for token, word in enumerate(words) if word is not None]
    places = torch.tensor([words[token] for token in tokens])
    row = maps[:, [token for token in tokens if words[token] == source]].mean(1)
    weights = row.new_zeros(len(row), int(places.max()) + 1).index_add_(1, places, row[:, tokens])
    weights[:, source] = -1.0  # below every other weight
    most, word = weights.max(1)
    # a head that attends to all alike must not be right
    is_tie = (weights == most[:, None]).sum(1) > 1
    return word.masked_fill(is_tie, -1)


def judge_relation(links: Sequence[Link]) -> Verdict:
    """Choose a candidate head by some sentences of a relation, and judge it by others."""
    items, controls = _split_links(links)
    if not items or not controls:
        return Verdict(None, NO_CONTROLS, items=len(items), controls=len(controls))
    right = torch.tensor([link.right_by_head for link in items], dtype=torch.int64).sum(0)
    candidate = int(right.argmax())  # the first in a tie
    score = fmean(link.right_by_head[candidate] for link in controls)
    (offset, _), *_ = Counter(link.offset for link in controls).most_common(1)
    baseline = max(fmean(link.offset == offset for link in controls), _score_blind(controls))
    threshold = round(baseline + BEST_MARGIN, 9)  # 0.2 + 0.1 is more than 0.3
    better = score >= threshold
    return Verdict(
        candidate if better else None,
        None if better else NOT_BETTER,
        candidate,
        score,
        threshold,
        baseline,
        offset,
        len(items),
        len(controls),
    )


def _split_links(links: Sequence[Link]) -> tuple[list[Link], list[Link]]:
    """Split into items to choose by and controls to judge by; all controls: alternate groups."""
    if not all(link.control for link in links):
        plain = [link for link in links if not link.control]
        return plain, [link for link in links if link.control]
    groups = list(dict.fromkeys(link.group for link in links))
    first = set(groups[::2])
    return (
        [link for link in links if link.group in first],
        [link for link in links if link.group not in first],
    )


def _score_blind(links: Sequence[Link]) -> float:
    """Return the best score of one answer for each group; 0 if a group has one right word."""
    groups: dict[str, list[int]] = {}
    for link in links:
        groups.setdefault(link.group, []).append(link.place)
    if any(len(set(places)) == 1 for places in groups.values()):
        return 0.0
    right = sum(max(Counter(places).values()) for places in groups.values())
    return right / len(links)
