"""What inputs come to, before any is read: tokens, and bytes that they keep until their answer."""

from collections.abc import Sequence
from sys import getsizeof

import numpy as np

from service.encode.request import Base64, Input
from service.engine.work import Work

AROUND = 2  # tokens that stand around a text
KEEP = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen

# Bytes as tests/service/encode/test_held.py measures them
REQUEST_BYTES = 14 * 1024  # of one that waits, whatever it holds: tasks, headers, records
INPUT_BYTES = 800  # of an input, and of the sequence and the work that it becomes
ID_BYTES, TYPE_BYTES = 40, 8  # of a number in a list; types are 0 or 1, of which each is there once
TOKEN_BYTES, COPY_BYTES = 54, 16  # of a token of a text that was read, and of one that came as id
FACT_BYTES = 250  # of a token that an answer shows


class Estimate:
    """Tokens by characters, as in the texts lately tokenized.

    Args:
        longest: tokens of a sequence, at most.
        most: tokens of a request, at most.
    """

    def __init__(self, longest: int, most: int) -> None:
        self._longest, self._most = longest, most
        self._tokens, self._characters = 1.0, USUAL_CHARACTERS

    def tokens(self, inputs: Sequence[Input]) -> tuple[int, int]:
        """Return about how many tokens these inputs hold, and exactly how many characters.

        Embeddings count as few tokens.
        """
        ratio, longest = self._tokens / self._characters, self._longest
        tokens, characters = 0, 0
        for one in inputs:
            size = len(one.text or "") + len(one.pair or "")
            ids = one.token_ids
            tokens += min(int(size * ratio) + AROUND if ids is None else len(ids), longest)
            characters += size
        return min(tokens, self._most), characters

    def learn(self, inputs: Sequence[Input], works: Sequence[Work]) -> None:
        """Remember how many tokens the texts among some inputs turned out to be."""
        tokens, characters = 0, 0
        for one, work in zip(inputs, works, strict=True):
            size = len(one.text or "") + len(one.pair or "")
            if size and len(work) >= work.length:  # not cut
                tokens, characters = tokens + work.length - AROUND, characters + size
        if characters:
            self._characters = KEEP * self._characters + characters
            self._tokens = KEEP * self._tokens + max(1, tokens)


def held(inputs: Sequence[Input], works: Sequence[Work] = ()) -> int:
    """Return about how many bytes inputs keep.

    Args:
        works: what they became; empty before they are read.
    """
    size = REQUEST_BYTES + INPUT_BYTES * len(inputs)
    for one in inputs:
        if one.text is None or one.pair is not None:
            size += _held(one)
        else:
            size += getsizeof(one.text)
    for one, work in zip(inputs, works, strict=False):
        token = COPY_BYTES if one.text is None else TOKEN_BYTES
        size += len(work) * (token + FACT_BYTES if work.facts else token)
    return size


def _held(item: Input) -> int:
    """Bytes of what an input holds."""
    size = sum(getsizeof(text) for text in (item.text, item.pair) if text is not None)
    size += ID_BYTES * len(item.token_ids or ()) + TYPE_BYTES * len(item.token_type_ids or ())
    if isinstance(item.embeddings, np.ndarray):
        size += item.embeddings.nbytes
    if isinstance(item.embeddings, Base64):  # and what it is decoded to, as float32
        data = getsizeof(item.embeddings.data)
        size += data + data * 3 // 4 * (2 if item.embeddings.dtype == "float16" else 1)
    return size
