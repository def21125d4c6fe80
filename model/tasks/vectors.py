"""Many vectors of one sequence, one for each token that is kept, and how two such sets match.

    vector_i = normalise(dense(.. token_i))
    score    = sum over the query's vectors of the largest product with one of the document's

Source: Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via
Contextualized Late Interaction over BERT".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from model.pooling import Dense
from model.tasks.choices import Side, Task
from model.text.role import Role

NUMBER = 4  # bytes of an index or a float32


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """A vector of length 1 for each token kept.

    Args:
        layers: what makes it of a token's vector; float32, whatever the encoder's dtype.
        roles: how the texts of either side are read.
        kept: the places that get one, of the sequence at hand; None: all.
    """

    layers: tuple[Dense, ...]
    roles: Mapping[Side, Role]
    kept: Sequence[int] | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it is asked for."""
        return ("multi_vector",)

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.layers[-1].outputs

    @property
    def longest(self) -> int:
        """Tokens of a sequence of either side, at most."""
        return max(role.length for role in self.roles.values())

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """(tokens, width) -> vectors, (kept, size), and the places of their tokens, (kept,)."""
        kept = torch.arange(len(tokens)) if self.kept is None else torch.tensor(self.kept)
        places = kept.to(tokens.device, torch.int32)
        if not len(kept):
            return {"vectors": tokens.new_zeros(0, self.size).float(), "kept": places}
        x = tokens[places.long()].float()
        for layer in self.layers:
            x = layer(x)
        return {"vectors": F.normalize(x, dim=1), "kept": places}

    def count(self, tokens: int) -> int:
        """Vectors of a sequence of so many tokens."""
        return tokens if self.kept is None else len(self.kept)

    def bytes(self, tokens: int, number: int = NUMBER) -> int:
        """What the answer holds for a sequence of so many tokens, in numbers of so many bytes."""
        return self.count(tokens) * (number * self.size + NUMBER)

    def flops(self, tokens: int) -> int:
        """Floating-point operations for a sequence of so many tokens."""
        return 2 * self.count(tokens) * sum(layer.weights for layer in self.layers)


class Matches(NamedTuple):
    """How a document answers a query.

    Args:
        score: the sum of the values.
        places: of the document's vectors, the first of those that match best, (query,).
        values: their products with the query's vectors, (query,) float64.
    """

    score: float
    places: Tensor
    values: Tensor


def match(query: Tensor, document: Tensor) -> Matches:
    """MaxSim of a query's vectors, (query, size), and a document's, (document, size), one or more.

    It is summed in float64.
    """
    values, places = (query.double() @ document.double().T).max(1)
    return Matches(float(values.sum()), places, values)
