"""Measures what a number format costs: how close its vectors stay to those of float32."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model import packing
from model.encoder import Encoder
from model.loading.checkpoint import Model
from model.pooling import pool_sequence

logger = logging.getLogger(__name__)

NEIGHBOURS = 10  # nearest texts of each text that are compared
BATCH_TEXTS = 16  # texts encoded in one batch
TINY = torch.finfo(torch.float32).tiny  # in place of the length of a vector of zeros
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
    distinct = {tuple(each.token_ids or ()) for each in read_texts(model, texts)}
    if 2 * len(distinct) < len(texts):
        logger.warning(NO_CERTIFICATE)
        return None
    certificate = compare_vectors(encode_texts(model, texts), encode_texts(exact, texts))
    logger.info("bfloat16 certified", extra=certificate.facts())
    return certificate


def read_texts(
    model: Model, texts: Sequence[str], max_tokens: int | None = None
) -> list[packing.Sequence]:
    """Tokenize texts for a model; cut them to so many tokens, or to as many as it takes."""
    limit = max_tokens or model.max_tokens
    tokenized = model.tokenizer([(text,) for text in texts], limit, "right")
    return [packing.Sequence(text.token_ids, text.types) for text in tokenized]


def token_vectors(encoder: Encoder, sequences: Sequence[packing.Sequence]) -> list[Tensor]:
    """Return the last hidden state of each sequence of a batch, (tokens, width)."""
    encoded = encoder(encoder.pack(sequences))
    return [encoded.last[encoded.packed.rows(index)] for index in range(len(sequences))]


def encode_texts(model: Model, texts: Sequence[str]) -> Tensor:
    """Return the pooled vectors of texts, (texts, size)."""
    sequences, vectors = read_texts(model, texts), list[Tensor]()
    for first in range(0, len(sequences), BATCH_TEXTS):
        tokens = token_vectors(model.encoder, sequences[first : first + BATCH_TEXTS])
        vectors += [pool_sequence(each, model.pooling).cpu() for each in tokens]
    return torch.stack(vectors)


def compare_vectors(ours: Tensor, theirs: Tensor) -> Certificate:
    """Measure how close `ours` are to `theirs`: vectors of the same texts, (texts, size) each."""
    units = [F.normalize(each.double(), dim=1, eps=TINY) for each in (ours, theirs)]
    cosines, count = (units[0] * units[1]).sum(1), len(ours)
    neighbours = min(NEIGHBOURS, count - 1)
    tables = [unit @ unit.T for unit in units]  # cosines of every text with every other
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
