"""How far queries attend: to all tokens, to a window, or only to what came before."""

from typing import NamedTuple


class Reach(NamedTuple):
    """How many tokens before and after itself a query attends to; None: all."""

    before: int | None = None
    after: int | None = None

    def within(self, tokens: int) -> tuple[int, int]:
        """Return `before` and `after`, limited to what a sequence of this length has."""
        (before, after), last = self, tokens - 1
        return (
            last if before is None else min(before, last),
            last if after is None else min(after, last),
        )

    def covers(self, tokens: int) -> bool:
        """Tell whether every query of a sequence of this length attends to all of it."""
        return self.within(tokens) == (tokens - 1, tokens - 1)

    def count_cells(self, tokens: int) -> int:
        """Count the (query, key) pairs within reach in a sequence of this length."""
        # of `side` keys the first `side` queries lack side, side - 1, .. 1
        before, after = self.within(tokens)
        lacking = before * (before + 1) + after * (after + 1)
        return tokens * (1 + before + after) - lacking // 2


EVERYWHERE = Reach()  # attention to all tokens
