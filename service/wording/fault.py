"""One thing that is wrong with a request."""

from dataclasses import dataclass

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Args:
        loc: where, as keys and indices.
        code: a code of service/refusals.py.
        detail: what is expected there and what came, without the place and without a full stop.
    """

    loc: Loc
    code: str
    detail: str = ""
