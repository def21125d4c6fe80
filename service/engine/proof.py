"""Checks at a replica's start that its answers are right, and measures how fast it is.

The vectors of a canary, a fixed text, are compared with those of the plain kernels in float32, and
a bundled model's vector with another implementation's. A model that gives the same vector for every
text was not trained, and is refused. Then the canary runs in batches of every kind, which must not
change its bits. On a processor where they do, slower kernels are tried. The results stay as a
Proof, with which health.py compares later canaries.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

import torch

from model import kernels, packing
from model.loading.checkpoint import Model
from model.pooling import pool_sequence
from model.task_heads import Classifier, Lexical, Splade, Tagger, VectorHead
from service.engine import machine, numerics
from service.engine.certificate import Certificate, certify
from service.engine.fair.queue import SMALL_TOKENS
from service.engine.lanes import Lanes, to_array
from service.engine.loading import load_model, use_compiled_pass
from service.engine.weights import ModelSource
from service.engine.work import Array, Outputs, Result, Work

logger = logging.getLogger(__name__)

DISAGREEMENT_BOUND = 1e-4  # largest difference of a number from that of transformers
# Vectors no further apart than this share of their length are equal but for rounding
ALIKE_DISTANCE = 1e-5
CANARY_TEXT = "A dog ate the food because it was hungry"  # the text of all self-checks
# Tokens of the long canary beyond the model's largest window: more than a tile of any kernel
LONG_TOKENS = 307
MEASURED_TOKENS = 64  # tokens of each sequence in the batch that measures the speed
MEASURED_SEQUENCES = 8  # sequences in that batch
MEASURED_SECONDS = 0.3  # for which it is run again and again

# Messages about the bits of answers
BATCH_MOVES_BITS = "on this processor the batch moves the last bits of every way to compute"
SLOWER_KERNELS = (
    "on this processor the batch moves the last bits of the fastest kernels; slower ones serve"
)
UNSTEADY_BITS = f"{BATCH_MOVES_BITS}; the fastest serves, and equal bits are not promised"


class NotTrustworthy(Exception):
    """The start-up check found answers that differ; the replica must not serve."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The results of a replica's start-up checks and measurements."""

    dtype: torch.dtype  # number format of the model
    same_bits: bool  # whether no batch changes an answer's bits, as on a CPU in float32
    canary: Work  # the sequence to check again and again
    golden: Array  # its token vectors at the start, (tokens, width)
    numerics: str  # name of the arithmetic; it ends in -varying without `same_bits`
    speed: float  # tokens per second on all cores
    small: int  # tokens up to which every batch takes the same time
    budget: int  # most tokens in the batches of all lanes together
    certificate: Certificate | None = None  # how close vectors are to float32's, if asked
    adapted: Mapping[str, str] = field(default_factory=dict)  # `numerics` with each adapter

    def is_right(self, result: Result) -> bool:
        """Tell whether a canary's result equals the first: bit for bit if `same_bits`."""
        if self.same_bits:
            return _tokens_of(result).tobytes() == self.golden.tobytes()
        return self.is_close(result)

    def is_close(self, result: Result) -> bool:
        """Tell whether a canary's result equals the first but for rounding."""
        return (
            numerics.largest_difference(_tokens_of(result), self.golden)
            <= numerics.ROUNDING_BOUNDS[self.dtype]
        )


def prove_lanes(
    lanes: Lanes,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    batch_tokens: int | None,
    required: bool = False,
    texts: Sequence[str] = (),
    compared: Sequence[str] = (),
) -> Proof:
    """Check the answers of loaded lanes and measure their speed; call it in lane 0.

    If the batch changes the bits of the fastest kernels, slower ones are tried; if it changes the
    bits of all, equal bits are not promised.

    Args:
        source: where their model comes from.
        device, dtype: where it runs, and its number format.
        batch_tokens: most tokens per batch; None: as many as take machine.BATCH_SECONDS.
        required: whether to raise if equal bits cannot be promised.
        texts: texts whose vectors the model must tell apart.
        compared: texts whose vectors are compared with float32 for a certificate; may be empty.

    Raises:
        NotTrustworthy: answers differ from another computation of the same by more than rounding,
            equal bits are required and not given, or all texts have the same vector.
    """
    use_compiled_pass(lanes.model)
    certificate = check_against_plain(lanes.model, source, dtype, texts, compared)
    proof = _prove_steady(lanes, source, device, dtype, batch_tokens, required)
    adapted = {name: _name_adapted(lanes, proof, device, name) for name in lanes.model.adapters}
    return replace(proof, certificate=certificate, adapted=adapted)


def _name_adapted(lanes: Lanes, proof: Proof, device: torch.device, adapter: str) -> str:
    """Return the name of the arithmetic that computes answers with an adapter."""
    golden = _with_adapter(lanes, proof, adapter).golden
    name = numerics.name_arithmetic(device, proof.dtype, lanes.arithmetic_of(adapter), golden)
    return name if proof.same_bits else f"{name}-varying"


def _prove_steady(
    lanes: Lanes,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    batch_tokens: int | None,
    required: bool,
) -> Proof:
    """Return the proof of the fastest kernels whose bits no batch changes; see `prove_lanes`.

    If there are none: of the fastest, which do not promise equal bits.
    """
    promised = device.type == "cpu" and machine.promises_bits(lanes.model.encoder.kernels, dtype)
    fastest = _measure_lanes(lanes, device, dtype, batch_tokens, promised)
    if is_steady(lanes, fastest):
        return fastest
    for _ in try_slower_ways(lanes, source):
        proof = _measure_lanes(lanes, device, dtype, batch_tokens, promised)
        if is_steady(lanes, proof):
            reason = f"{proof.numerics} at {proof.speed / fastest.speed:.0%} of their speed"
            logger.warning(SLOWER_KERNELS, extra={"reason": reason})
            return proof
    if required:
        raise NotTrustworthy(f"require_same_bits: {BATCH_MOVES_BITS}")
    proof = replace(fastest, same_bits=False, numerics=f"{fastest.numerics}-varying")
    is_steady(lanes, proof)  # raises where a batch moves numbers by more than rounding
    logger.warning(UNSTEADY_BITS, extra={"reason": proof.numerics})
    return proof


def try_slower_ways(lanes: Lanes, source: ModelSource) -> Iterator[None]:
    """Set the lanes to each slower way to compute, yield in each, and set them back.

    In this order: the layers in Python instead of the compiled pass, the plain kernels in float32,
    the fastest kernels with each sequence in a pass of its own.
    """
    fast, native = lanes.model, lanes.model.encoder.native
    if native is not None:
        fast.encoder.native = None
        yield
        fast.encoder.native = native
    if fast.encoder.kernels is not kernels.PLAIN:
        lanes.model = load_model(source, fast.encoder.device, torch.float32, kernels.PLAIN)
        yield
        lanes.model = fast
    lanes.alone = True
    yield
    lanes.alone = False


def _measure_lanes(
    lanes: Lanes,
    device: torch.device,
    dtype: torch.dtype,
    batch_tokens: int | None,
    same_bits: bool,
) -> Proof:
    """Run the canary in the lanes as they are set, measure their speed, and return both.

    Args:
        same_bits: whether the proof is to promise equal bits.
    """
    if device.type == "cpu":
        speed, small = _measure_speed(lanes, MEASURED_SEQUENCES), SMALL_TOKENS
        speed *= len(lanes) if lanes.alone else 1  # it was measured on one core
    else:
        speed, small = measure_gpu(lanes, batch_tokens or machine.MOST_BATCH_TOKENS)
    canary = Work(_read_sequence(lanes.model, CANARY_TEXT), Outputs(tokens=True))
    golden = _tokens_of(_first_result(lanes, [canary], 1))
    name = numerics.name_arithmetic(device, dtype, lanes.arithmetic, golden)
    return Proof(
        dtype,
        same_bits,
        canary,
        golden,
        numerics=name if same_bits else f"{name}-varying",
        speed=speed,
        small=small,
        budget=batch_tokens or machine.batch_budget(speed),
    )


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
        texts, compared: as `prove_lanes` takes them.

    Returns:
        How close the vectors of `compared` are to those of the plain kernels; None without any.

    Raises:
        NotTrustworthy: they differ by more than rounding, or the texts are not told apart.
    """
    plain = load_model(source, torch.device("cpu"), torch.float32, kernels.PLAIN)
    sequences = [_read_sequence(model, CANARY_TEXT)]
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
            _token_vectors(model, _read_sequence(model, golden.text)), model.pooling
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


def is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether no batch and no number of cores changes the canary, also with each adapter.

    Raises:
        NotTrustworthy: it differs by more than rounding.
    """
    adapted = (_with_adapter(lanes, proof, name) for name in lanes.model.adapters)
    return _is_steady(lanes, proof) and all(_is_steady(lanes, each) for each in adapted)


def _with_adapter(lanes: Lanes, proof: Proof, name: str) -> Proof:
    """Return a proof with an adapter's canary, and the vectors that it has in a batch by itself."""
    canary = replace(proof.canary, adapter=name)
    return replace(proof, canary=canary, golden=_tokens_of(_first_result(lanes, [canary], 1)))


def _is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether no batch and no number of cores changes one canary; raises as `is_steady`."""
    most, adapters = lanes.model.max_tokens, [None, *lanes.model.adapters]
    alone = [proof.canary]
    few = [_filler_work(min(length, most), name) for name in adapters for length in (1, 3, 40)]
    batches = [(batch, n) for batch in (alone, alone + few, alone * 3) for n in {1, len(lanes)}]
    larger = ((alone + fillers, 1) for fillers in _growing_fillers(lanes, proof))
    for batch, threads in (*batches, *larger):
        result = _first_result(lanes, batch, threads)
        if not proof.is_close(result):
            raise NotTrustworthy("the canary's numbers follow from the batch or the thread count")
        if not proof.is_right(result):
            return False
    return True


def _first_result(lanes: Lanes, batch: Sequence[Work], threads: int) -> Result:
    """Run a batch and return the result of its first work."""
    result = lanes.run_batch(batch, threads)[0]
    if isinstance(result, Exception):
        raise NotTrustworthy("the canary failed") from result
    return result


def _growing_fillers(lanes: Lanes, proof: Proof) -> Iterator[list[Work]]:
    """Yield works to run with the canary, twice as many each time, until a lane's batch is full."""
    tokens, adapters = _measured_length(lanes.model), [None, *lanes.model.adapters]
    fillers = [_filler_work(tokens, name) for name in adapters]
    size, full = tokens, proof.budget // len(lanes)
    while size < full:
        size = min(2 * size, full)
        yield list(islice(cycle(fillers), (size - len(proof.canary)) // tokens))


def measure_gpu(lanes: Lanes, full: int) -> tuple[float, int]:
    """Measure a GPU's speed, which, unlike a CPU's, grows with the batch.

    Args:
        full: most tokens of a batch; batches of twice as many each time are measured up to it.

    Returns:
        Its highest speed, and how many tokens it does at that speed in the time of its shortest
        pass.
    """
    count = MEASURED_SEQUENCES
    speed = _measure_speed(lanes, count)
    while 2 * count * _measured_length(lanes.model) <= full:
        count *= 2
        speed = max(speed, _measure_speed(lanes, count))
    return speed, max(SMALL_TOKENS, int(speed * _fastest_seconds(lanes, [_filler_work(1)])))


def _measure_speed(lanes: Lanes, count: int) -> float:
    """Return the tokens per second of a batch of `count` equal sequences on all cores."""
    batch = [_filler_work(_measured_length(lanes.model))] * count
    return sum(map(len, batch)) / _fastest_seconds(lanes, batch)


def _fastest_seconds(lanes: Lanes, batch: Sequence[Work]) -> float:
    """Run a batch for MEASURED_SECONDS; return its shortest time, free of other processes' load."""
    fastest, end = math.inf, time.perf_counter() + MEASURED_SECONDS
    while (start := time.perf_counter()) < end:
        lanes.run_batch(batch, len(lanes))
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _measured_length(model: Model) -> int:
    """Return the tokens of the sequences by which the speed is measured."""
    return min(MEASURED_TOKENS, model.max_tokens)


def _filler_work(tokens: int, adapter: str | None = None) -> Work:
    """Return a work of this many equal tokens, with no outputs."""
    return Work(packing.Sequence([1] * tokens), Outputs(), adapter=adapter)


def _read_sequence(model: Model, text: str) -> packing.Sequence:
    """Tokenize one text for a model."""
    return packing.Sequence(model.tokenizer([(text,)], model.max_tokens, "right")[0].token_ids)


def _long_canary(model: Model) -> packing.Sequence:
    """Return a sequence of the canary's ids, repeated beyond the model's largest window."""
    ids = _read_sequence(model, CANARY_TEXT).token_ids or ()
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


def _tokens_of(result: Result) -> Array:
    """Return the token vectors of a canary's result."""
    if result.tokens is None:
        raise RuntimeError("the canary asks for tokens: this is a bug")
    return result.tokens
