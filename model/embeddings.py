"""Word, position and segment: the vectors that enter the first layer."""

from torch import Tensor
from torch.nn import functional as F

from model.kernels import Affine, Linear, normalise
from model.packing import Packed


class Embeddings:
    """LayerNorm(word + segment + position), then a projection where the tables are narrower.

    Whatever a family lacks is None. Source: Devlin et al. 2018, section 3; the projection is
    ELECTRA's, Clark et al. 2020.

    Args:
        word: (vocabulary, embedding width).
        position: (rows, embedding width), learned or sinusoidal.
        offset: row of `position` for position 0.
        types: (types, embedding width).
        norm: weight and bias of the LayerNorm.
        project: to the model's width.
    """

    def __init__(
        self,
        word: Tensor,
        *,
        position: Tensor | None,
        offset: int,
        types: Tensor | None,
        norm: Affine | None,
        eps: float,
        project: Linear | None,
    ) -> None:
        self.word, self.position, self.offset, self.types = word, position, offset, types
        self.norm, self.eps, self.project = norm, eps, project

    def __call__(self, packed: Packed) -> Tensor:
        """The rows that enter the first layer, (rows, width)."""
        x = F.embedding(packed.token_ids, self.word)
        for rows, vectors in packed.embeddings:
            x[rows] = vectors.to(x)
        # transformers adds in this order; float addition is not associative
        if self.types is not None:
            x = x.add_(F.embedding(packed.types, self.types))
        if self.position is not None:
            x = x.add_(F.embedding(packed.positions + self.offset, self.position))
        if self.norm is not None:
            x = normalise(x, self.norm, self.eps)
        return x if self.project is None else self.project(x)
