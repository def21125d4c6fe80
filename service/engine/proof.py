"""What a replica proves at its start, before it serves: its answers are right, and how fast it is.

A canary is compared with the plain path in float32, and a bundled model's vector with another
implementation's; a model that makes the same of every text was not trained, and is not served as if
it were; then the canary runs in company of every kind, from which its bits must not
move. On a processor where they do, slower ways are tried. What comes out stays as a Proof, and
health.py holds later canaries against it.
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

DISAGREEMENT_BOUND = 1e-4  # largest difference allowed from transformers
ALIKE_DISTANCE = (
    1e-5  # vectors no further apart than this share of their length differ by rounding alone
)
CANARY_TEXT = "A dog ate the food because it was hungry"
LONG_TOKENS = 307  # of a longer one, beyond any window: more than a tile of any attention kernel
MEASURED_TOKENS = 64  # per sequence of the batch that measures the speed
MEASURED_SEQUENCES = 8
MEASURED_SECONDS = 0.3

BATCH_MOVES_BITS = "on this processor the batch moves the last bits of every way to compute"
SLOWER_KERNELS = (
    "on this processor the batch moves the last bits of the fastest kernels; slower ones serve"
)
UNSTEADY_BITS = f"{BATCH_MOVES_BITS}; the fastest serves, and equal bits are not promised"


class NotTrustworthy(Exception):
    """The start-up check found answers that differ; the replica must not serve."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the start has shown.

    Args:
        same_bits: whether bits are promised: a GPU's matrix kernels, and a processor's in half
            precision, follow the batch's size.
        golden: the canary's token vectors, (tokens, width).
        numerics: names the arithmetic; equal weights, numerics and input give equal bits, unless
            it ends in -varying: then the bits follow from the batch too.
        adapted: the same with each adapter, by its name: it runs in Python, and has products more.
        speed: tokens per second on all cores.
        small: tokens of a batch that takes as long whatever it holds.
        budget: tokens per batch.
        certificate: how near its vectors stay to those of float32, where that was asked.
    """

    dtype: torch.dtype
    same_bits: bool
    canary: Work
    golden: Array
    numerics: str
    speed: float
    small: int
    budget: int
    certificate: Certificate | None = None
    adapted: Mapping[str, str] = field(default_factory=dict)

    def is_right(self, result: Result) -> bool:
        """Tell whether a canary came out as at the start: bit for bit, where bits are promised."""
        if self.same_bits:
            return _tokens_of(result).tobytes() == self.golden.tobytes()
        return self.is_close(result)

    def is_close(self, result: Result) -> bool:
        """Tell whether a canary came out as at the start but for rounding."""
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
    """Check the answers of loaded lanes and measure their speed; called in lane 0.

    Where the batch moves the bits of the fastest way, `slower` ones are tried, and at last no
    bits are promised.

    Args:
        source: where their model comes from.
        dtype: its number format.
        batch_tokens: tokens per batch; None measures what is done in machine.BATCH_SECONDS.
        required: to promise bits or nothing.
        texts: that the model must tell apart.
        compared: by which its number format is certified, where there are some.

    Raises:
        NotTrustworthy: its answers differ from another computation of the same by more than
            rounding; or by that, where bits are required; or it makes the same of every text.
    """
    use_compiled_pass(lanes.model)
    certificate = check_against_plain(lanes.model, source, dtype, texts, compared)
    proof = _prove_steady(lanes, source, device, dtype, batch_tokens, required)
    adapted = {name: _name_adapted(lanes, proof, device, name) for name in lanes.model.adapters}
    return replace(proof, certificate=certificate, adapted=adapted)


def _name_adapted(lanes: Lanes, proof: Proof, device: torch.device, name: str) -> str:
    """Name the arithmetic of an adapter's answers."""
    golden = _with_adapter(lanes, proof, name).golden
    own = numerics.name_arithmetic(device, proof.dtype, lanes.arithmetic_of(name), golden)
    return own if proof.same_bits else f"{own}-varying"


def _prove_steady(
    lanes: Lanes,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    batch_tokens: int | None,
    required: bool,
) -> Proof:
    """Return the proof of the fastest way whose bits stay in any company; see `prove_lanes`."""
    promised = device.type == "cpu" and dtype == torch.float32
    fastest = _measure_lanes(lanes, device, dtype, batch_tokens, promised)
    if is_steady(lanes, fastest):
        return fastest
    for _ in try_slower_ways(lanes, source):
        proof = _measure_lanes(lanes, device, dtype, batch_tokens, promised)
        if is_steady(lanes, proof):
            cost = f"{proof.numerics} at {proof.speed / fastest.speed:.0%} of their speed"
            logger.warning(SLOWER_KERNELS, extra={"reason": cost})
            return proof
    if required:
        raise NotTrustworthy(f"require_same_bits: {BATCH_MOVES_BITS}")
    proof = replace(fastest, same_bits=False, numerics=f"{fastest.numerics}-varying")
    is_steady(lanes, proof)
    logger.warning(UNSTEADY_BITS, extra={"reason": proof.numerics})
    return proof


def try_slower_ways(lanes: Lanes, source: ModelSource) -> Iterator[None]:
    """Set the lanes to each way of computing in turn, finally to the fastest again.

    The loop instead of the compiled pass, the plain kernels (of float32), the fastest for each
    sequence alone.
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
    fixed: bool,
) -> Proof:
    """Return what comes out of the lanes as they are, and how fast."""
    if device.type == "cpu":
        speed, small = _measure_speed(lanes, MEASURED_SEQUENCES), SMALL_TOKENS
        speed *= len(lanes) if lanes.alone else 1  # on one core of so many
    else:
        speed, small = measure_gpu(lanes, batch_tokens or machine.MOST_BATCH_TOKENS)
    canary = Work(_read_sequence(lanes.model, CANARY_TEXT), Outputs(tokens=True))
    golden = _tokens_of(_first_result(lanes, [canary], 1))
    name = numerics.name_arithmetic(device, dtype, lanes.arithmetic, golden)
    return Proof(
        dtype,
        fixed,
        canary,
        golden,
        numerics=name if fixed else f"{name}-varying",
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
    """Check that the serving path agrees with the plain float32 one, and with another's.

    The plain one tells texts apart.

    Returns:
        How near the vectors of the texts to compare are to the plain one's; None without any.

    Raises:
        NotTrustworthy: it does not.
    """
    plain = load_model(source, torch.device("cpu"), torch.float32, kernels.PLAIN)
    sequences = [_read_sequence(model, CANARY_TEXT)]
    if dtype != torch.float32 or model.encoder.device.type != "cpu":  # kernels of another's tiles
        sequences.append(_long_canary(model))
    for sequence in sequences:
        _check_attention(model, plain, sequence, dtype)
    views = [(model, plain), *_with_each_adapter(model, plain)]
    off = max(_distance(*both, sequence) for both in views for sequence in sequences)
    check_tells_texts_apart(plain, texts)
    certificate = certify(model, plain, compared) if compared else None
    del plain, views
    if off > numerics.ROUNDING_BOUNDS[dtype]:
        limits = f"{off:.1e} of its length, more than {numerics.ROUNDING_BOUNDS[dtype]}"
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
    """Check each layer's attention by itself: what it mixes of its own queries, keys and values.

    A wrong mask or window moves a sequence's vectors less than half precision does in a deep model;
    here no rounding adds up from layer to layer.

    Raises:
        NotTrustworthy: the plain float32 path, masks written out, mixes something else.
    """
    layers = range(model.config.layers)
    packed = plain.encoder.pack([sequence])
    biases, rows = plain.encoder.biases(packed), packed.rows(0)
    encoded = model.encoder(model.encoder.pack([sequence]), traces={*layers})
    for layer in layers:
        attention, trace = plain.encoder.layers[layer].attention, encoded.traces[layer]
        added = attention.distances is not None or biases[0] is not None  # rounded as well
        most = numerics.ROUNDING_BOUNDS[dtype] if added else kernels.TOLERANCES[dtype]
        mixed = attention.mix_trace(trace, packed, biases)
        off = numerics.largest_difference(to_array(trace.z)[rows], to_array(mixed)[rows])
        if off > most:
            limits = f"the plain float32 path's by {off:.1e} of its length, more than {most}"
            raise NotTrustworthy(f"the attention of layer {layer} differs from {limits}")


def _with_each_adapter(model: Model, plain: Model) -> Iterator[tuple[Model, Model]]:
    """Yield both models with each adapter in all rows."""
    for name, adapter in model.adapters.items():
        other = plain.adapters[name].encoder
        yield replace(model, encoder=adapter.encoder), replace(plain, encoder=other)


def check_tells_texts_apart(model: Model, texts: Sequence[str]) -> None:
    """Check that the model, and the head behind it, tell texts apart.

    All are cut to as many tokens: a model that ignores the words still sees where a text ends.

    Raises:
        NotTrustworthy: what it makes of them is all zero, or the same.
    """
    sequences = _cut_alike(model, texts)
    if len(sequences) < 2:  # the tokenizer knows none of their words, as of another language
        return
    encoded = model.encoder(model.encoder.pack(sequences))
    tokens = [encoded.last[encoded.packed.rows(i)] for i in range(len(sequences))]
    for what, rows in _outcomes(model, tokens):
        apart, longest = (rows - rows[0]).norm(dim=1).max(), rows.norm(dim=1).max()
        if apart <= ALIKE_DISTANCE * longest:
            how = "alike" if longest else "zero"
            said = f"the model's {what} of {len(sequences)} texts are all {how}"
            raise NotTrustworthy(f"untrained: {said}; train it, or check its files")


def _cut_alike(model: Model, texts: Sequence[str]) -> list[packing.Sequence]:
    """Return the sequences of texts that differ, cut to the tokens of the shortest."""
    whole, limit = [(text,) for text in texts], model.max_tokens
    shortest = min(
        (len(one.token_ids) for one in model.tokenizer(whole, limit, "right")), default=0
    )
    cut = model.tokenizer(whole, shortest, "right") if shortest else []
    return [packing.Sequence(list(ids)) for ids in {tuple(one.token_ids): None for one in cut}]


def _outcomes(model: Model, tokens: Sequence[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what comes of sequences' token vectors, (tokens, width) each, as rows by its name."""
    yield "vectors", torch.stack([pool_sequence(each, model.pooling) for each in tokens])
    for head in model.task_heads:
        match head:
            case Classifier():
                yield "logits", torch.stack([head(each)["logits"] for each in tokens])
            case Tagger():
                yield "logits", head.project(torch.cat(list(tokens)))
            case Splade():
                yield (
                    "sparse vectors",
                    torch.stack([head.vocabulary_weights(each) for each in tokens]),
                )
            case Lexical():
                yield (
                    "weights of tokens",
                    torch.stack([head.token_weights(each) for each in tokens]),
                )
            case VectorHead():
                yield "token vectors", head(torch.cat(list(tokens)))["vectors"]


def is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether the canary is right in any company, on one core and on all; with adapters too.

    Raises:
        NotTrustworthy: it differs by more than rounding.
    """
    own = (_with_adapter(lanes, proof, name) for name in lanes.model.adapters)
    return _is_steady(lanes, proof) and all(_is_steady(lanes, each) for each in own)


def _with_adapter(lanes: Lanes, proof: Proof, name: str) -> Proof:
    """Return what a canary with an adapter has to come out as: what it does alone."""
    canary = replace(proof.canary, adapter=name)
    return replace(proof, canary=canary, golden=_tokens_of(_first_result(lanes, [canary], 1)))


def _is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether a canary comes out right in any company; raises as `is_steady`."""
    most, adapters = lanes.model.max_tokens, [None, *lanes.model.adapters]
    alone = [proof.canary]
    few = [_filler_work(min(length, most), name) for name in adapters for length in (1, 3, 40)]
    batches = [(batch, n) for batch in (alone, alone + few, alone * 3) for n in {1, len(lanes)}]
    larger = ((alone + company, 1) for company in _larger_companies(lanes, proof))
    for batch, threads in (*batches, *larger):
        result = _first_result(lanes, batch, threads)
        if not proof.is_close(result):
            raise NotTrustworthy("the canary's numbers follow from the batch or the thread count")
        if not proof.is_right(result):
            return False
    return True


def _first_result(lanes: Lanes, batch: Sequence[Work], threads: int) -> Result:
    """Return what comes out for the first of a batch."""
    result = lanes.run_batch(batch, threads)[0]
    if isinstance(result, Exception):
        raise NotTrustworthy("the canary failed") from result
    return result


def _larger_companies(lanes: Lanes, proof: Proof) -> Iterator[list[Work]]:
    """Yield company of twice as many tokens each time, until a lane's batch is full."""
    tokens, adapters = _middling_length(lanes.model), [None, *lanes.model.adapters]
    fillers = [_filler_work(tokens, name) for name in adapters]
    size, full = tokens, proof.budget // len(lanes)
    while size < full:
        size = min(2 * size, full)
        yield list(islice(cycle(fillers), (size - len(proof.canary)) // tokens))


def measure_gpu(lanes: Lanes, full: int) -> tuple[float, int]:
    """Tell how fast a GPU is: a processor does few tokens as fast as many, a GPU does not.

    Args:
        full: tokens of the largest batch; it is filled by twice as many each time.

    Returns:
        Its highest speed, and how many tokens it does at that in the time of its shortest pass.
    """
    count = MEASURED_SEQUENCES
    speed = _measure_speed(lanes, count)
    while 2 * count * _middling_length(lanes.model) <= full:
        count *= 2
        speed = max(speed, _measure_speed(lanes, count))
    return speed, max(SMALL_TOKENS, int(speed * _fastest_seconds(lanes, [_filler_work(1)])))


def _measure_speed(lanes: Lanes, count: int) -> float:
    """Return the tokens per second of a batch of this many middling sequences on all cores."""
    batch = [_filler_work(_middling_length(lanes.model))] * count
    return sum(map(len, batch)) / _fastest_seconds(lanes, batch)


def _fastest_seconds(lanes: Lanes, batch: Sequence[Work]) -> float:
    """Return what a batch takes at its fastest; a neighbour makes some rounds slow, and passes."""
    fastest, end = math.inf, time.perf_counter() + MEASURED_SECONDS
    while (start := time.perf_counter()) < end:
        lanes.run_batch(batch, len(lanes))
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _middling_length(model: Model) -> int:
    return min(MEASURED_TOKENS, model.max_tokens)


def _filler_work(tokens: int, adapter: str | None = None) -> Work:
    return Work(packing.Sequence([1] * tokens), Outputs(), adapter=adapter)


def _read_sequence(model: Model, text: str) -> packing.Sequence:
    return packing.Sequence(model.tokenizer([(text,)], model.max_tokens, "right")[0].token_ids)


def _long_canary(model: Model) -> packing.Sequence:
    """Return the canary's ids over and over, as far as the model reads."""
    ids = _read_sequence(model, CANARY_TEXT).token_ids or ()
    windows = (window or 0 for window in model.config.windows)
    most = min(max(windows, default=0) + LONG_TOKENS, model.max_tokens)
    return packing.Sequence([ids[i % len(ids)] for i in range(most)])


def _token_vectors(model: Model, sequence: packing.Sequence) -> torch.Tensor:
    """Return the last hidden state of a sequence, (tokens, width)."""
    encoded = model.encoder(model.encoder.pack([sequence]))
    return encoded.last[encoded.packed.rows(0)]


def _distance(model: Model, plain: Model, sequence: packing.Sequence) -> float:
    """Tell how far the token vectors of two models are apart, and the ones pooled of them."""
    ours, exact = (_read_vectors(one, sequence) for one in (model, plain))
    return max(numerics.largest_difference(*pair) for pair in zip(ours, exact, strict=True))


def _read_vectors(model: Model, sequence: packing.Sequence) -> tuple[Array, Array]:
    """Read a sequence's vectors, (tokens, width), and the one made of them, (1, size)."""
    tokens = _token_vectors(model, sequence)
    pooled = model.encoder.pool(tokens, [slice(0, len(tokens))], model.pooling)
    return to_array(tokens), to_array(pooled)


def _tokens_of(result: Result) -> Array:
    if result.tokens is None:
        raise RuntimeError("the canary asks for tokens: this is a bug")
    return result.tokens
