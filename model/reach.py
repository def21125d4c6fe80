"""How far queries look: all tokens, a window, only what came before."""

from typing import NamedTuple


class Reach(NamedTuple):
    """How many tokens before and after itself a query looks at; None: all."""

    before: int | None = None
    after: int | None = None

    def cut(self, tokens: int) -> tuple[int, int]:
        """Return both as numbers, for a sequence of so many tokens."""
        before, after = (tokens - 1 if side is None else side for side in self)
        return min(before, tokens - 1), min(after, tokens - 1)

    def everywhere(self, tokens: int) -> bool:
        """Tell whether every query of a sequence looks at all of it."""
        return self.cut(tokens) == (tokens - 1, tokens - 1)

    def cells(self, tokens: int) -> int:
        """Count the keys that all queries of a sequence look at."""
        # of `side` keys the first `side` queries lack side, side - 1, .. 1
        return tokens + sum(side * tokens - side * (side + 1) // 2 for side in self.cut(tokens))


EVERYWHERE = Reach()
