"""Checks at a replica's start that a model computes what it should.

The vectors of a canary, a fixed text, are compared with those of the plain kernels in float32, and
a bundled model's vector with another implementation's. A model that gives the same vector for every
text was not trained, and is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

import torch
from torch import Tensor

from model import kernels, packing
from model.decider import Decider
from model.encoder import Encoder
from model.loading.checkpoint import Model
from model.pooling import Pooling, pool_sequence
from model.task_heads import Classifier, Lexical, Splade, Tagger, VectorHead
from service.engine.arrays import to_array
from service.files.loading import load_model
from service.files.weights import ModelSource
from service.proof import numerics
from service.proof.certificate import Certificate, certify, encode_texts, read_texts, token_vectors
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
    sequences = read_texts(model, [CANARY_TEXT])
    if dtype != torch.float32 or model.encoder.device.type != "cpu":  # kernels that work in tiles
        sequences.append(_lengthen(sequences[0], model))
    for sequence in sequences:
        _check_attention(model.encoder, plain.encoder, sequence, dtype)
    check_tells_texts_apart(plain, texts)
    pairs = [(model.encoder, plain.encoder)]
    pairs += [(own.encoder, plain.adapters[name].encoder) for name, own in model.adapters.items()]
    for pair in pairs:
        both = (_encode_sequences(each, sequences, model.pooling) for each in pair)
        error = numerics.largest_difference(*both)
        _refuse_beyond(numerics.ROUNDING_BOUNDS[dtype], error, "the canary")
    golden = numerics.GOLDEN.get(model.digest)
    if golden and dtype == torch.float32:
        (vector,), known = encode_texts(model, [golden.text]), torch.tensor(golden.pooled)
        if not torch.allclose(vector[: len(known)], known, atol=DISAGREEMENT_BOUND):
            raise NotTrustworthy("the bundled model's vector differs from transformers'")
    return certify(model, plain, compared) if compared else None


def _check_attention(
    encoder: Encoder, plain: Encoder, sequence: packing.Sequence, dtype: torch.dtype
) -> None:
    """Check each layer's attention by itself: its output, from its own queries, keys and values.

    A wrong mask or window may change the final vectors less than half precision does in a deep
    model; here no rounding adds up from layer to layer.

    Raises:
        NotTrustworthy: the output differs from that of the plain kernels with a full mask.
    """
    packed = plain.pack([sequence])
    biases, rows = plain.biases(packed), packed.rows(0)
    traces = encoder(encoder.pack([sequence]), traces={*range(encoder.config.layers)}).traces
    for layer, trace in sorted(traces.items()):
        attention = plain.layers[layer].attention
        has_bias = attention.distances is not None or biases[0] is not None  # rounded as well
        bound = numerics.ROUNDING_BOUNDS[dtype] if has_bias else kernels.TOLERANCES[dtype]
        both = trace.z, attention.mix_trace(trace, packed, biases)
        error = numerics.largest_difference(*([to_array(each)[rows]] for each in both))
        _refuse_beyond(bound, error, f"the attention of layer {layer}")


def _refuse_beyond(bound: float, error: float, what: str) -> None:
    """Raise NotTrustworthy if an error of the start's model is beyond its bound."""
    if error > bound:
        limits = f"the plain float32 path's by {error:.1e} of its length, more than {bound}"
        raise NotTrustworthy(f"{what} differs from {limits}")


def _encode_sequences(
    encoder: Encoder, sequences: Sequence[packing.Sequence], pooling: Pooling
) -> Iterator[Array]:
    """Yield of each sequence the token vectors, (tokens, width), and the pooled one, (1, size)."""
    for sequence in sequences:
        (tokens,) = token_vectors(encoder, [sequence])
        yield to_array(tokens)
        yield to_array(encoder.pool(tokens, [slice(0, len(tokens))], pooling))


def check_tells_texts_apart(model: Model, texts: Sequence[str]) -> None:
    """Check that a model and its task heads give different outputs for different texts.

    All texts are cut to the same length: a model that ignores words still sees where a text ends.

    Raises:
        NotTrustworthy: an output is the same for all texts, or all zero.
    """
    shortest = min(map(len, read_texts(model, texts)), default=0)
    cut = read_texts(model, texts, shortest) if shortest else []
    sequences = [*{tuple(each.token_ids or ()): each for each in cut}.values()]
    if len(sequences) < 2:  # the tokenizer knows none of their words, as of another language
        return
    for name, rows in _outputs(model, token_vectors(model.encoder, sequences)):
        distance, length = (rows - rows[0]).norm(dim=1).max(), rows.norm(dim=1).max()
        if distance <= ALIKE_DISTANCE * length:
            kind = "alike" if length else "zero"
            reason = f"the model's {name} of {len(sequences)} texts are all {kind}"
            raise NotTrustworthy(f"untrained: {reason}; train it, or check its files")


def _outputs(model: Model, tokens: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
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
                yield "sparse vectors", torch.stack([*map(head.vocabulary_weights, tokens)])
            case Lexical():
                yield "weights of tokens", torch.stack([*map(head.token_weights, tokens)])
            case VectorHead():
                yield "token vectors", head(torch.cat(list(tokens)))["vectors"]
            case Decider():  # as if each token were an option's
                asked = replace(head, markers=range(len(tokens[0])))
                yield "logits", torch.stack([asked(each)["logits"] for each in tokens])


def _lengthen(canary: packing.Sequence, model: Model) -> packing.Sequence:
    """Return a sequence of the canary's ids, repeated beyond the model's largest window."""
    windows = (window or 0 for window in model.config.windows)
    most = min(max(windows, default=0) + LONG_TOKENS, model.max_tokens)
    return packing.Sequence([*islice(cycle(canary.token_ids or ()), most)])
