"""The clock of a machine that is shared evenly among all that wait.

Source: Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm".
"""

from bisect import insort


class Shares:
    """The clock of the evenly shared machine.

    It counts the tokens that a request waiting since the start would have had by now. It counts a
    request as waiting for as long as it would wait on the shared machine. Here requests run one
    after the other, so the last of several is left alone; the clock must not run faster for it.

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
        """Add a request and return its turn, by which requests are ordered."""
        turn = self._now + tokens
        insort(self._turns, turn)
        return turn

    def leave(self, turn: float, tokens: int) -> None:
        """Remove a request that gives up with `tokens` tokens not done.

        If it had more here than on the shared machine, the others had less, and the reverse.
        """
        if turn in self._turns:
            self._turns.remove(turn)
        self.serve(tokens - max(turn - self._now, 0.0))

    def serve(self, tokens: float) -> None:
        """Count tokens that are done, whichever request they belong to."""
        tokens -= self._ahead
        self._ahead = max(-tokens, 0.0)
        while self._turns and tokens > 0:
            needed = (self._turns[0] - self._now) * len(self._turns)
            if tokens < needed:
                self._now += tokens / len(self._turns)
                return
            tokens -= needed
            self._now = self._turns.pop(0)
