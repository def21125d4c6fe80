"""The clock of a machine that is shared evenly among all that wait.

Source: Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm".
"""

from bisect import insort


class Shares:
    """The clock of the evenly shared machine.

    It counts the tokens that a request waiting since the start would have had by now. Who waits is
    who would still wait there: work here is done one request after the other, so that the last
    of several that came together is left alone with a clock that must not run any faster.

    >>> shares = Shares()
    >>> first, second = shares.enter(100), shares.enter(100)
    >>> shares.serve(150)  # all of the first, half of the second
    >>> shares.enter(5)  # would be done before the second
    80.0
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._turns: list[float] = []  # of those who would still wait
        self._ahead = 0.0  # tokens that are done there and not yet here

    def enter(self, tokens: int) -> float:
        """A request comes; returns its turn, by which requests are to be ordered."""
        turn = self._now + tokens
        insort(self._turns, turn)
        return turn

    def leave(self, turn: float, tokens: int) -> None:
        """A request gives up, with so many tokens not done.

        What it had more or less of here than there, the others had less or more of.
        """
        if turn in self._turns:
            self._turns.remove(turn)
        self.serve(tokens - max(turn - self._now, 0.0))

    def serve(self, tokens: float) -> None:
        """So many tokens are done, of whomever."""
        tokens -= self._ahead
        self._ahead = max(-tokens, 0.0)
        while self._turns and tokens > 0:
            needed = (self._turns[0] - self._now) * len(self._turns)
            if tokens < needed:
                self._now += tokens / len(self._turns)
                return
            tokens -= needed
            self._now = self._turns.pop(0)
