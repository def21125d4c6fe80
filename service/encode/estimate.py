"""How many tokens inputs hold, before any text is tokenized."""

from collections.abc import Sequence

from service.encode.inputs import THREAD_CHARACTERS, ModelInput
from service.encode.request import Item

AROUND = 2  # tokens that stand around a text
KEEP = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen


class Estimate:
    """Tokens by characters, as in the texts lately tokenized.

    Args:
        longest: tokens of a sequence, at most.
        most: tokens of a request, at most.
    """

    def __init__(self, longest: int, most: int) -> None:
        self._longest, self._most = longest, most
        self._tokens, self._characters = 1.0, USUAL_CHARACTERS

    def tokens(self, inputs: Sequence[str | Item]) -> int:
        """About how many tokens these inputs hold; embeddings count as few."""
        ratio, longest = self._tokens / self._characters, self._longest
        tokens = sum(min(int(_size(one, ratio)) + AROUND, longest) for one in inputs)
        return min(tokens, self._most)

    def learn(self, inputs: Sequence[str | Item], outcome: Sequence[ModelInput]) -> None:
        """Remember how many tokens the texts among some inputs turned out to be."""
        texts = [
            (_characters(one), became.length - AROUND)
            for one, became in zip(inputs, outcome, strict=True)
            if not became.truncated and _characters(one)
        ]
        if texts:
            self._characters = KEEP * self._characters + sum(size for size, _ in texts)
            self._tokens = KEEP * self._tokens + max(1, sum(tokens for _, tokens in texts))


def waits(inputs: Sequence[str | Item]) -> bool:
    """Whether the texts among some inputs wait to be tokenized; few are, on the spot."""
    return sum(map(_characters, inputs)) >= THREAD_CHARACTERS


def _size(one: str | Item, ratio: float) -> float:
    if isinstance(one, str) or one.token_ids is None:
        return _characters(one) * ratio
    return len(one.token_ids) - AROUND


def _characters(one: str | Item) -> int:
    return len(one) if isinstance(one, str) else len(one.text or "") + len(one.pair or "")
