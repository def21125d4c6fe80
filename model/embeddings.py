"""Word, position and segment: the vectors that enter the first layer."""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.packing import Packed


class Embeddings:
    """LayerNorm(word + segment + position); BERT's, Devlin et al. 2018, section 3.

    Args:
        word: (vocabulary, width).
        position: (positions, width).
        types: (types, width).
        norm: weight and bias of the LayerNorm, (width,) each.
    """

    def __init__(
        self, word: Tensor, position: Tensor, types: Tensor, norm: tuple[Tensor, Tensor], eps: float
    ) -> None:
        self.word, self.position, self.types = word, position, types
        self.norm, self.eps = norm, eps

    def __call__(self, packed: Packed) -> Tensor:
        """The rows that enter the first layer, (rows, width)."""
        x = F.embedding(packed.token_ids, self.word)
        for rows, given in packed.embeddings:
            x[rows] = given.to(x)
        # transformers adds in this order; float addition is not associative
        x = x.add_(F.embedding(packed.types, self.types))
        x = x.add_(F.embedding(packed.positions, self.position))
        return torch.native_layer_norm(x, [x.shape[-1]], *self.norm, self.eps)[0]
