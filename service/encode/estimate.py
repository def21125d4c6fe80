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

    def tokens(self, inputs: Sequence[str | Item], sizes: Sequence[int]) -> int:
        """About how many tokens these inputs hold; embeddings count as few.

        Args:
            sizes: what `characters` says of them.
        """
        ratio, longest = self._tokens / self._characters, self._longest
        tokens = 0
        for one, size in zip(inputs, sizes, strict=True):
            ids = None if isinstance(one, str) else one.token_ids
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


def characters(inputs: Sequence[str | Item]) -> list[int]:
    """The characters of each input; of one without a text, 0."""
    return [
        len(one) if isinstance(one, str) else len(one.text or "") + len(one.pair or "")
        for one in inputs
    ]
