"""What inputs come to, before any is read: tokens, and bytes that they keep until their answer."""

from collections.abc import Sequence
from sys import getsizeof

import numpy as np

from service.encode.inputs import THREAD_CHARACTERS, ModelInput
from service.encode.request import Base64, Input

AROUND = 2  # tokens that stand around a text
KEEP = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen

# Bytes as tests/service/encode/test_held.py measures them
REQUEST_BYTES = 20 * 1024  # of one that waits, whatever it holds: tasks, headers, records
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

    def tokens(self, inputs: Sequence[Input], sizes: Sequence[int]) -> int:
        """About how many tokens these inputs hold; embeddings count as few.

        Args:
            sizes: what `characters` says of them.
        """
        ratio, longest = self._tokens / self._characters, self._longest
        tokens = 0
        for one, size in zip(inputs, sizes, strict=True):
            ids = one.token_ids
            about = int(size * ratio) + AROUND if ids is None else len(ids)
            tokens += min(about, longest)
        return min(tokens, self._most)

    def learn(self, sizes: Sequence[int], outcome: Sequence[ModelInput]) -> None:
        """Remember how many tokens the texts among some inputs turned out to be."""
        texts = [
            (size, became.length - AROUND)
            for size, became in zip(sizes, outcome, strict=True)
            if size and not became.truncated
        ]
        if texts:
            self._characters = KEEP * self._characters + sum(size for size, _ in texts)
            self._tokens = KEEP * self._tokens + max(1, sum(tokens for _, tokens in texts))


def waits(sizes: Sequence[int]) -> bool:
    """Whether texts of so many characters wait to be tokenized; few are, on the spot."""
    return sum(sizes) >= THREAD_CHARACTERS


def characters(inputs: Sequence[Input]) -> list[int]:
    """The characters of each input; of one without a text, 0."""
    return [len(one.text or "") + len(one.pair or "") for one in inputs]


def held(inputs: Sequence[Input], read: Sequence[ModelInput] = ()) -> int:
    """About how many bytes inputs keep.

    Args:
        read: what they became; empty before they are read.
    """
    each = list(map(_held, inputs))
    for one, became in zip(inputs, read, strict=False):
        token = (COPY_BYTES if one.text is None else TOKEN_BYTES) + (
            FACT_BYTES if became.facts else 0
        )
        each.append(token * len(became.sequence))
    return REQUEST_BYTES + INPUT_BYTES * len(inputs) + sum(each)


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
