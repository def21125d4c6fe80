"""What a decision model is asked, and the temperatures that its logits are divided by.

    noul     yes or no: the options are "false" and "true"
    choice   one of several options
    score    a level: the options are its levels, lowest first

Source: laya 0.4.15, laya/common.py (`QTYPES`, `temp_bucket`, `clamp_temperature`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["choice", "score", "noul"]  # of a question, in the order of Laya's type embedding
KINDS: tuple[Kind, ...] = get_args(Kind)
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.5, 5.0  # further out, certainty would be made up


@dataclass(frozen=True, slots=True)
class Temperatures:
    """What a question's logits are divided by before the softmax.

    Args:
        by_kind: as stored, of each of KINDS.
        by_options: as stored, by kind and number of options, such as "choice:3-5".
    """

    by_kind: tuple[Any, ...] = (1.0,) * len(KINDS)
    by_options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, kind: Kind, options: int) -> float:
        """Return the temperature of a question with so many options."""
        size = (
            "2" if options <= 2 else "3-5" if options <= 5 else "6-10" if options <= 10 else "11+"
        )
        stored = self.by_options.get(f"{kind}:{size}", self.by_kind[KINDS.index(kind)])
        return clamp_temperature(stored)

    def list_replaced(self) -> Iterator[tuple[str, Any, float]]:
        """Yield each that is not applied as stored: whose it is, as stored, and as applied."""
        for name, stored in {
            **dict(zip(KINDS, self.by_kind, strict=True)),
            **self.by_options,
        }.items():
            applied = clamp_temperature(stored)
            if _read_finite(stored) != applied:
                yield name, stored, applied


def clamp_temperature(stored: Any) -> float:
    """Return a usable temperature, from 0.5 to 5; 1 for what is no finite number."""
    number = _read_finite(stored)
    return 1.0 if number is None else min(MOST_TEMPERATURE, max(LEAST_TEMPERATURE, number))


def _read_finite(stored: Any) -> float | None:
    """Return a finite number; None for anything else, such as true."""
    if isinstance(stored, bool):
        return None
    try:
        number = float(stored)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
