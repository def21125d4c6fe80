"""What each head of a model does: the answer of GET /v1/heads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headlight_client.errors import expect_format
from headlight_client.pictures import Picture, draw_heads
from headlight_client.roles import Facts, heads_by_layer, word_title


@dataclass(frozen=True, slots=True)
class Heads(Mapping[tuple[int, int], Facts]):
    """What each head of a model does, by layer and head, measured against controls.

    Args:
        facts: the answer of GET /v1/heads.
    """

    facts: Facts

    @classmethod
    @expect_format()
    def read(cls, answer: Any) -> "Heads":
        """Read the answer of GET /v1/heads.

        Raises:
            NoAnswer: it is not in that format.
        """
        word_title(answer)
        heads_by_layer(answer)
        return cls(answer)

    def __getitem__(self, head: tuple[int, int]) -> Facts:
        """Return what is known of a head, by layer and head: its role, score and measures."""
        for each in self.facts["heads"]:
            if (each["layer"], each["head"]) == head:
                found: Facts = each
                return found
        raise KeyError(head)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((each["layer"], each["head"]) for each in self.facts["heads"])

    def __len__(self) -> int:
        return len(self.facts["heads"])

    def __repr__(self) -> str:
        layers = heads_by_layer(self.facts)
        return f"Heads({self.facts['model']!r}: {len(layers)} layers of {len(layers[0])})"

    def plot(self) -> Picture:
        """Draw a row for each layer and a column for each head, coloured by role."""
        return draw_heads(self.facts)
