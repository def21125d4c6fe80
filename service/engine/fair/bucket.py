"""A rate, kept by a bucket of tokens.

Source: Turner 1986, "New Directions in Communications (or Which Way to the Information Age?)".
"""

import math


class Bucket:
    """Holds what may be used now: at most one second's worth.

    A request is let in while nothing is owed, and may owe: so none is too large for ever, and the
    next waits until it is paid.

    Args:
        rate: tokens that come in, a second.

    >>> bucket = Bucket(100)
    >>> bucket.take(250, now=5.0)
    >>> bucket.wait(now=5.5)
    1.0
    """

    def __init__(self, rate: int) -> None:
        self._rate, self._left, self._since = float(rate), float(rate), -math.inf

    def follow(self, rate: int, now: float) -> None:
        """Let in another rate from now on; what is owed is still owed."""
        self._fill(now)
        self._rate = float(rate)

    def wait(self, now: float) -> float:
        """Seconds until nothing is owed."""
        self._fill(now)
        return max(0.0, -self._left / self._rate)

    def take(self, tokens: int, now: float) -> None:
        """A request uses so many."""
        self._fill(now)
        self._left -= tokens

    def put_back(self, tokens: int) -> None:
        """It did not use so many of them."""
        self._left += tokens

    def _fill(self, now: float) -> None:
        self._left = min(self._rate, self._left + self._rate * (now - self._since))
        self._since = now
