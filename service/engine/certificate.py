"""Measures what a number format costs: how close its vectors stay to those of float32."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from model import packing
from model.loading.checkpoint import Model
from model.pooling import pool_sequence

logger = logging.getLogger(__name__)

NEIGHBOURS = 10  # nearest texts of each text that are compared
BATCH_TEXTS = 16  # texts encoded in one batch
NO_CERTIFICATE = (
    "bfloat16 has no certificate: the tokenizer tells few of the bundled English texts apart"
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """How close the vectors of some texts are to those of the same model in float32."""

    worst_cosine: float  # lowest cosine of a text's two vectors
    mean_cosine: float  # mean cosine of a text's two vectors
    rank_correlation: float  # Spearman's, between the cosines of all pairs of texts in both formats
    neighbour_overlap: float  # the mean share of a text's nearest texts that both formats have
    neighbours: int  # how many nearest texts of each text were compared
    texts: int  # how many texts were compared

    def facts(self) -> dict[str, float]:
        """Return the fields by name, rounded to six places, as GET /info shows them."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@torch.inference_mode()
def certify(model: Model, exact: Model, texts: Sequence[str]) -> Certificate | None:
    """Compare the vectors of texts with those of the same checkpoint in float32, and log it.

    Args:
        exact: the same checkpoint in float32.

    Returns:
        None if fewer than half of the texts have different token ids: vectors of equal texts
        would prove nothing.
    """
    tokenized = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    if 2 * len({tuple(text.token_ids) for text in tokenized}) < len(tokenized):
        logger.warning(NO_CERTIFICATE)
        return None
    certificate = compare_vectors(encode_texts(model, texts), encode_texts(exact, texts))
    logger.info("bfloat16 certified", extra=certificate.facts())
    return certificate


def encode_texts(model: Model, texts: Sequence[str]) -> Tensor:
    """Return the pooled vectors of texts, (texts, size)."""
    tokenized = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    vectors: list[Tensor] = []
    for first in range(0, len(tokenized), BATCH_TEXTS):
        batch = [
            packing.Sequence(text.token_ids, text.types)
            for text in tokenized[first : first + BATCH_TEXTS]
        ]
        encoded = model.encoder(model.encoder.pack(batch))
        slices = (encoded.packed.rows(index) for index in range(len(batch)))
        vectors += [pool_sequence(encoded.last[rows], model.pooling).cpu() for rows in slices]
    return torch.stack(vectors)


def compare_vectors(ours: Tensor, theirs: Tensor) -> Certificate:
    """Measure how close `ours` are to `theirs`: vectors of the same texts, (texts, size) each."""
    cosines, count = (_scale_to_unit(ours) * _scale_to_unit(theirs)).sum(1), len(ours)
    neighbours = min(NEIGHBOURS, count - 1)
    tables = [_cosines_among(rows) for rows in (ours, theirs)]
    upper = torch.triu_indices(count, count, 1)
    ranks = [table[*upper].argsort().argsort().double() for table in tables]
    nearest = [table.fill_diagonal_(-torch.inf).topk(neighbours).indices for table in tables]
    shared = (nearest[0][:, :, None] == nearest[1][:, None, :]).any(2).double().mean()
    return Certificate(
        float(cosines.min()),
        float(cosines.mean()),
        float(torch.corrcoef(torch.stack(ranks))[0, 1]),
        float(shared),
        neighbours,
        count,
    )


def _scale_to_unit(rows: Tensor) -> Tensor:
    """Return rows scaled to length 1, as float64."""
    wide = rows.double()
    lengths: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return wide / lengths.clamp_min(torch.finfo(torch.float32).tiny)


def _cosines_among(rows: Tensor) -> Tensor:
    """Return the cosine of every row with every other, (rows, rows) float64."""
    unit = _scale_to_unit(rows)
    return unit @ unit.T
