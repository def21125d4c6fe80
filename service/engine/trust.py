"""Checks at a replica's start that a model computes what it should.

The vectors of a canary, a fixed text, are compared with those of the plain kernels in float32, and
a bundled model's vector with another implementation's. A model that gives the same vector for every
text was not trained, and is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from model import kernels, packing
from model.loading.checkpoint import Model
from model.pooling import pool_sequence
from model.task_heads import Classifier, Lexical, Splade, Tagger, VectorHead
from service.engine import numerics
from service.engine.arrays import to_array
from service.engine.certificate import Certificate, certify
from service.engine.loading import load_model
from service.engine.weights import ModelSource
from service.shapes.work import Array

DISAGREEMENT_BOUND = 1e-4  # largest difference of a number from that of transformers

# Vectors no further apart than this share of their length are equal but for rounding
ALIKE_DISTANCE = 1e-5

CANARY_TEXT = "A dog ate the food because it was hungry"  # the text of all self-checks

# Tokens of the long canary beyond the model's largest window: more than a tile of any kernel
LONG_TOKENS = 307


class NotTrustworthy(Exception):
    """The start-up check found answers that differ; the replica must not serve."""


@torch.inference_mode()
def check_against_plain(
    model: Model,
    source: ModelSource,
    dtype: torch.dtype,
    texts: Sequence[str] = (),
    compared: Sequence[str] = (),
) -> Certificate | None:
    """Check a model against itself with the plain kernels in float32, and against transformers.

    Args:
        texts: texts whose vectors the model must tell apart.
        compared: texts whose vectors are compared; may be empty.

    Returns:
        How close the vectors of `compared` are to those of the plain kernels; None without any.

    Raises:
        NotTrustworthy: they differ by more than rounding, or the texts are not told apart.
    """
    plain = load_model(source, torch.device("cpu"), torch.float32, kernels.PLAIN)
    sequences = [read_sequence(model, CANARY_TEXT)]
    if dtype != torch.float32 or model.encoder.device.type != "cpu":  # kernels that work in tiles
        sequences.append(_long_canary(model))
    for sequence in sequences:
        _check_attention(model, plain, sequence, dtype)
    pairs = [(model, plain), *_with_each_adapter(model, plain)]
    error = max(_distance(*pair, sequence) for pair in pairs for sequence in sequences)
    check_tells_texts_apart(plain, texts)
    certificate = certify(model, plain, compared) if compared else None
    del plain, pairs
    if error > numerics.ROUNDING_BOUNDS[dtype]:
        limits = f"{error:.1e} of its length, more than {numerics.ROUNDING_BOUNDS[dtype]}"
        raise NotTrustworthy(f"the canary differs from the plain float32 path's by {limits}")
    golden = numerics.GOLDEN.get(model.digest)
    if golden and dtype == torch.float32:
        vector = pool_sequence(
            _token_vectors(model, read_sequence(model, golden.text)), model.pooling
        ).cpu()[: len(golden.pooled)]
        if not torch.allclose(vector, torch.tensor(golden.pooled), atol=DISAGREEMENT_BOUND):
            raise NotTrustworthy("the bundled model's vector differs from transformers'")
    return certificate


def _check_attention(
    model: Model, plain: Model, sequence: packing.Sequence, dtype: torch.dtype
) -> None:
    """Check each layer's attention by itself: its output, from its own queries, keys and values.

    A wrong mask or window may change the final vectors less than half precision does in a deep
    model; here no rounding adds up from layer to layer.

    Raises:
        NotTrustworthy: the output differs from that of the plain kernels with a full mask.
    """
    layers = range(model.config.layers)
    packed = plain.encoder.pack([sequence])
    biases, rows = plain.encoder.biases(packed), packed.rows(0)
    encoded = model.encoder(model.encoder.pack([sequence]), traces={*layers})
    for layer in layers:
        attention, trace = plain.encoder.layers[layer].attention, encoded.traces[layer]
        has_bias = attention.distances is not None or biases[0] is not None  # rounded as well
        bound = numerics.ROUNDING_BOUNDS[dtype] if has_bias else kernels.TOLERANCES[dtype]
        mixed = attention.mix_trace(trace, packed, biases)
        error = numerics.largest_difference(to_array(trace.z)[rows], to_array(mixed)[rows])
        if error > bound:
            limits = f"the plain float32 path's by {error:.1e} of its length, more than {bound}"
            raise NotTrustworthy(f"the attention of layer {layer} differs from {limits}")


def _with_each_adapter(model: Model, plain: Model) -> Iterator[tuple[Model, Model]]:
    """Yield both models with one adapter applied, for each adapter."""
    for name, adapter in model.adapters.items():
        plain_encoder = plain.adapters[name].encoder
        yield replace(model, encoder=adapter.encoder), replace(plain, encoder=plain_encoder)


def check_tells_texts_apart(model: Model, texts: Sequence[str]) -> None:
    """Check that a model and its task heads give different outputs for different texts.

    All texts are cut to the same length: a model that ignores words still sees where a text ends.

    Raises:
        NotTrustworthy: an output is the same for all texts, or all zero.
    """
    sequences = _cut_alike(model, texts)
    if len(sequences) < 2:  # the tokenizer knows none of their words, as of another language
        return
    encoded = model.encoder(model.encoder.pack(sequences))
    tokens = [encoded.last[encoded.packed.rows(i)] for i in range(len(sequences))]
    for name, rows in _outputs(model, tokens):
        distance, length = (rows - rows[0]).norm(dim=1).max(), rows.norm(dim=1).max()
        if distance <= ALIKE_DISTANCE * length:
            kind = "alike" if length else "zero"
            reason = f"the model's {name} of {len(sequences)} texts are all {kind}"
            raise NotTrustworthy(f"untrained: {reason}; train it, or check its files")


def _cut_alike(model: Model, texts: Sequence[str]) -> list[packing.Sequence]:
    """Tokenize texts, cut to the length of the shortest; return the sequences that differ."""
    inputs, limit = [(text,) for text in texts], model.max_tokens
    uncut = model.tokenizer(inputs, limit, "right")
    shortest = min((len(text.token_ids) for text in uncut), default=0)
    cut = model.tokenizer(inputs, shortest, "right") if shortest else []
    return [packing.Sequence(list(ids)) for ids in {tuple(text.token_ids): None for text in cut}]


def _outputs(model: Model, tokens: Sequence[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and rows of each output that the model and its task heads give.

    Args:
        tokens: each sequence's token vectors, (tokens, width).
    """
    yield "vectors", torch.stack([pool_sequence(each, model.pooling) for each in tokens])
    for head in model.task_heads:
        match head:
            case Classifier():
                yield "logits", torch.stack([head(each)["logits"] for each in tokens])
            case Tagger():
                yield "logits", head.project(torch.cat(list(tokens)))
            case Splade():
                weights = [head.vocabulary_weights(each) for each in tokens]
                yield "sparse vectors", torch.stack(weights)
            case Lexical():
                weights = [head.token_weights(each) for each in tokens]
                yield "weights of tokens", torch.stack(weights)
            case VectorHead():
                yield "token vectors", head(torch.cat(list(tokens)))["vectors"]


def read_sequence(model: Model, text: str) -> packing.Sequence:
    """Tokenize one text for a model."""
    return packing.Sequence(model.tokenizer([(text,)], model.max_tokens, "right")[0].token_ids)


def _long_canary(model: Model) -> packing.Sequence:
    """Return a sequence of the canary's ids, repeated beyond the model's largest window."""
    ids = read_sequence(model, CANARY_TEXT).token_ids or ()
    windows = (window or 0 for window in model.config.windows)
    most = min(max(windows, default=0) + LONG_TOKENS, model.max_tokens)
    return packing.Sequence([ids[i % len(ids)] for i in range(most)])


def _token_vectors(model: Model, sequence: packing.Sequence) -> torch.Tensor:
    """Return the last hidden state of a sequence, (tokens, width)."""
    encoded = model.encoder(model.encoder.pack([sequence]))
    return encoded.last[encoded.packed.rows(0)]


def _distance(model: Model, plain: Model, sequence: packing.Sequence) -> float:
    """Return the largest relative difference of two models' token and pooled vectors."""
    ours, exact = (_encode_sequence(each, sequence) for each in (model, plain))
    return max(numerics.largest_difference(*pair) for pair in zip(ours, exact, strict=True))


def _encode_sequence(model: Model, sequence: packing.Sequence) -> tuple[Array, Array]:
    """Return a sequence's token vectors, (tokens, width), and its pooled vector, (1, size)."""
    tokens = _token_vectors(model, sequence)
    pooled = model.encoder.pool(tokens, [slice(0, len(tokens))], model.pooling)
    return to_array(tokens), to_array(pooled)
