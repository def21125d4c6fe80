"""What int8 costs: a float32 model made int8, and how near its vectors stay to float32's."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from model import int8, packing
from model.errors import CheckpointError
from model.loading.checkpoint import DIGEST_DIGITS, Model
from model.pooling import pool

BOUND = 0.99  # of the worst cosine
NEIGHBOURS = 10
TOGETHER = 16  # sequences in a batch


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near the vectors of held-out texts are to those of float32.

    Args:
        worst_cosine, mean_cosine: of a text's two vectors.
        rank_correlation: Spearman's, of the cosines of all pairs of texts.
        neighbour_overlap: the mean share of a text's `neighbours` nearest texts that stay.
        texts: how many were held out.
        bound: the least `worst_cosine` that is served.
    """

    worst_cosine: float
    mean_cosine: float
    rank_correlation: float
    neighbour_overlap: float
    neighbours: int
    texts: int
    bound: float

    def facts(self) -> dict[str, float]:
        """Return what GET /info says of it, to six places."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


class TooFar(CheckpointError):
    """The vectors of int8 are too far from those of float32."""


@torch.inference_mode()
def quantise(model: Model, texts: Sequence[str]) -> Model:
    """Return a float32 model with int8 linears in its layers, and a digest of its own.

    Args:
        texts: that give the scales.

    Raises:
        TooFar: nothing here would certify it: its answers are not vectors alone, or its tokenizer
            takes most of the texts for the same; or it has adapters.
    """
    if model.adapters:
        raise TooFar("dtype int8: it is not served with adapters, and the checkpoint has some")
    if model.task_heads:
        names = " and a ".join(type(head).__name__ for head in model.task_heads)
        raise TooFar(f"dtype int8: it is certified of vectors alone, and the model has a {names}")
    cut = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    if 2 * len({tuple(one.token_ids) for one in cut}) < len(cut):
        raise TooFar("dtype int8: the tokenizer tells few of the bundled English texts apart")
    int8.quantise(model.encoder, lambda: vectors(model, texts))
    digest = hashlib.sha256(model.digest.encode())
    for site in int8.sites(model.encoder):
        for tensor in int8.stored(site.linear):
            digest.update(tensor.numpy().tobytes())
    return replace(model, digest=f"sha256:{digest.hexdigest()[:DIGEST_DIGITS]}")


@torch.inference_mode()
def certify(model: Model, exact: Model, texts: Sequence[str]) -> Certificate:
    """Compare an int8 model with the same checkpoint in float32, on held-out texts.

    Raises:
        TooFar: the worst cosine is below BOUND; the message names the linear to blame.
    """
    ours, theirs = vectors(model, texts), vectors(exact, texts)
    certificate = compare(ours, theirs)
    if certificate.worst_cosine >= BOUND:
        return certificate
    worst = cosines(ours, theirs).argsort()[:TOGETHER]
    name, better = blame(model, exact, [texts[place] for place in worst])
    raise TooFar(
        f"dtype int8: the worst cosine to float32 of {len(texts)} texts is"
        f" {certificate.worst_cosine:.4f}, less than {BOUND}; most is lost in {name}: with it in"
        f" float32 the worst would be {better:.4f}"
    )


def vectors(model: Model, texts: Sequence[str]) -> Tensor:
    """Return the vectors of texts, (texts, size)."""
    cut = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    rows: list[Tensor] = []
    for first in range(0, len(cut), TOGETHER):
        some = [packing.Sequence(one.token_ids, one.types) for one in cut[first : first + TOGETHER]]
        encoded = model.encoder(model.encoder.pack(some))
        each = (encoded.packed.rows(place) for place in range(len(some)))
        rows += [pool(encoded.last[place], model.pooling) for place in each]
    return torch.stack(rows)


def compare(ours: Tensor, theirs: Tensor) -> Certificate:
    """Return how near vectors, (texts, size), are to others of the same texts."""
    each, count = cosines(ours, theirs), len(ours)
    neighbours = min(NEIGHBOURS, count - 1)
    near = [_among(rows) for rows in (ours, theirs)]
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
        BOUND,
    )


def cosines(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the cosine of each row with the other's, (rows,) float64."""
    return (_unit(ours) * _unit(theirs)).sum(1)


def blame(model: Model, exact: Model, texts: Sequence[str]) -> tuple[str, float]:
    """Return the linear without whose int8 the worst text comes nearest, and how near it comes."""
    theirs = vectors(exact, texts)

    def without(place: tuple[int8.Site, int8.Site]) -> float:
        ours, plain = place
        linear = ours.linear
        ours.put(plain.linear)
        try:
            return float(cosines(vectors(model, texts), theirs).min())
        finally:
            ours.put(linear)

    native, model.encoder.native = model.encoder.native, None  # it holds the weights itself
    try:
        pairs = list(zip(int8.sites(model.encoder), int8.sites(exact.encoder), strict=True))
        better = [without(pair) for pair in pairs]
    finally:
        model.encoder.native = native
    best = max(range(len(pairs)), key=better.__getitem__)
    return pairs[best][0].name, better[best]


def _unit(rows: Tensor) -> Tensor:
    wide = rows.double()
    lengths: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return wide / lengths.clamp_min(torch.finfo(torch.float32).tiny)


def _among(rows: Tensor) -> Tensor:
    """Return the cosine of every row with every other, (rows, rows) float64."""
    unit = _unit(rows)
    return unit @ unit.T
