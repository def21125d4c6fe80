"""How many tokens inputs hold, before any text is tokenized."""

from collections.abc import Sequence

from service.encode.inputs import ModelInput
from service.encode.request import Item

AROUND = 2  # tokens that stand around a text
KEEP = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen


class Estimate:
    """Tokens by characters, as in the texts lately tokenized.

    Args:
        longest: tokens of a sequence, at most.
    """

    def __init__(self, longest: int) -> None:
        self._longest, self._tokens, self._characters = longest, 1.0, USUAL_CHARACTERS

    def tokens(self, items: Sequence[Item]) -> int:
        """About how many tokens these inputs hold; embeddings count as few."""
        ratio = self._tokens / self._characters
        return sum(
            len(item.token_ids)
            if item.token_ids is not None
            else min(int(_characters(item) * ratio) + AROUND, self._longest)
            for item in items
        )

    def learn(self, items: Sequence[Item], inputs: Sequence[ModelInput]) -> None:
        """Remember how many tokens the texts among some inputs turned out to be."""
        whole = [(i, one) for i, one in zip(items, inputs, strict=True) if not one.truncated]
        texts = [(_characters(item), one.length - AROUND) for item, one in whole if item.text]
        if texts:
            self._characters = KEEP * self._characters + sum(count for count, _ in texts)
            self._tokens = KEEP * self._tokens + sum(max(tokens, 0) for _, tokens in texts)


def _characters(item: Item) -> int:
    return len(item.text or "") + len(item.pair or "")
