"""What a number format costs: how near its vectors stay to those of float32."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from model import packing
from model.loading.checkpoint import Model
from model.pooling import pool_sequence

logger = logging.getLogger(__name__)

NEIGHBOURS = 10
BATCH_TEXTS = 16  # sequences in a batch
NO_CERTIFICATE = (
    "bfloat16 has no certificate: the tokenizer tells few of the bundled English texts apart"
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near the vectors of some texts are to those of float32.

    Args:
        worst_cosine, mean_cosine: of a text's two vectors.
        rank_correlation: Spearman's, of the cosines of all pairs of texts.
        neighbour_overlap: the mean share of a text's `neighbours` nearest texts that stay.
        texts: how many there are.
    """

    worst_cosine: float
    mean_cosine: float
    rank_correlation: float
    neighbour_overlap: float
    neighbours: int
    texts: int

    def facts(self) -> dict[str, float]:
        """Return what GET /info says of it, to six places."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@torch.inference_mode()
def certify(model: Model, exact: Model, texts: Sequence[str]) -> Certificate | None:
    """Compare a model with the same checkpoint in float32, by the vectors of texts, and log it.

    Returns:
        None where the tokenizer takes most of the texts for the same: it would tell of none.
    """
    cut = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    if 2 * len({tuple(one.token_ids) for one in cut}) < len(cut):
        logger.warning(NO_CERTIFICATE)
        return None
    certificate = compare_vectors(encode_texts(model, texts), encode_texts(exact, texts))
    logger.info("bfloat16 certified", extra=certificate.facts())
    return certificate


def encode_texts(model: Model, texts: Sequence[str]) -> Tensor:
    """Return the vectors of texts, (texts, size)."""
    cut = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    rows: list[Tensor] = []
    for first in range(0, len(cut), BATCH_TEXTS):
        some = [
            packing.Sequence(one.token_ids, one.types) for one in cut[first : first + BATCH_TEXTS]
        ]
        encoded = model.encoder(model.encoder.pack(some))
        each = (encoded.packed.rows(place) for place in range(len(some)))
        rows += [pool_sequence(encoded.last[place], model.pooling).cpu() for place in each]
    return torch.stack(rows)


def compare_vectors(ours: Tensor, theirs: Tensor) -> Certificate:
    """Return how near vectors, (texts, size), are to others of the same texts."""
    each, count = (_scale_to_unit(ours) * _scale_to_unit(theirs)).sum(1), len(ours)
    neighbours = min(NEIGHBOURS, count - 1)
    near = [_cosines_among(rows) for rows in (ours, theirs)]
    upper = torch.triu_indices(count, count, 1)
    ranks = [one[*upper].argsort().argsort().double() for one in near]
    closest = [one.fill_diagonal_(-torch.inf).topk(neighbours).indices for one in near]
    kept = (closest[0][:, :, None] == closest[1][:, None, :]).any(2).double().mean()
    return Certificate(
        float(each.min()),
        float(each.mean()),
        float(torch.corrcoef(torch.stack(ranks))[0, 1]),
        float(kept),
        neighbours,
        count,
    )


def _scale_to_unit(rows: Tensor) -> Tensor:
    wide = rows.double()
    lengths: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return wide / lengths.clamp_min(torch.finfo(torch.float32).tiny)


def _cosines_among(rows: Tensor) -> Tensor:
    """Return the cosine of every row with every other, (rows, rows) float64."""
    unit = _scale_to_unit(rows)
    return unit @ unit.T
