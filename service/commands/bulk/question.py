"""What texts are ranked by: one number that a head has in each of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headlight_client import Item
from model.maps.choices import FIELDS
from service.commands.bulk.service import Truncate, Unusable

TOP = 50  # texts of a ranking, where nobody says how many


@dataclass(frozen=True, slots=True)
class Question:
    """A statistic of a head.

    Args:
        layer, head: both counted from 0.
        statistic: one of model.maps.choices.FIELDS.
        top: how many texts are listed.
        lowest: whether those with the smallest values, instead of the largest.
    """

    layer: int
    head: int
    statistic: str
    top: int
    lowest: bool
    truncate: Truncate

    @property
    def name(self) -> str:
        """The head as people write it."""
        return f"L{self.layer}H{self.head}"

    @property
    def order(self) -> str:
        """Which texts are the best."""
        return "lowest" if self.lowest else "highest"

    @property
    def facts(self) -> dict[str, Any]:
        """All of it, by name: equal ones are the same question."""
        return {
            "head": self.name,
            "statistic": self.statistic,
            "order": self.order,
            "top": self.top,
            "truncate": self.truncate,
        }

    @property
    def attention(self) -> Mapping[str, Any]:
        """What to ask of every text."""
        return {"heads": {str(self.layer): [self.head]}, "form": "stats"}

    def check(self, info: Mapping[str, Any]) -> None:
        """See that the model has the head.

        Args:
            info: the answer of GET /info.

        Raises:
            Unusable: it has not; the message says which it has.
        """
        layers, heads = info["layers"], info["heads"]
        if self.layer >= layers or self.head >= heads:
            raise Unusable(
                f"{info['model']} has no head {self.name}: "
                f"its layers are 0 to {layers - 1}, its heads 0 to {heads - 1}"
            )

    def value(self, item: Item) -> float | None:
        """The number of one text; None where it has no word, or nothing is averaged.

        Args:
            item: the answer to what `attention` asks.
        """
        if item.attention is None or item.special is None:
            raise RuntimeError("an answer without attention: this is a bug")
        value = float(item.attention.stats[self.layer][0, FIELDS.index(self.statistic)])
        return None if all(item.special) or math.isnan(value) else value
