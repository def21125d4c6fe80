"""Checks at a replica's start that no batch changes an answer's bits, and measures its speed.

The model must be right by itself (comparison.py). Then the canary, a fixed text, runs in batches of
every kind, which must not change its bits. On a processor where they do, slower kernels are tried.
The results stay as a Proof, with which health.py compares later canaries.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice

import torch

from model import kernels, packing
from model.loading.checkpoint import Model
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.probes import Maps
from service.engine.fair.queue import SMALL_TOKENS
from service.engine.lanes import Lanes
from service.engine.speed import time_fastest
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import ModelSource
from service.proof import machine, numerics
from service.proof.certificate import Certificate, read_texts
from service.proof.comparison import CANARY_TEXT, NotTrustworthy, check_against_plain
from service.shapes.work import Array, Outputs, Result, Work

logger = logging.getLogger(__name__)

MEASURED_TOKENS = 64  # tokens of each sequence in the batch that measures the speed
MEASURED_SEQUENCES = 8  # sequences in that batch
MEASURED_SECONDS = 0.3  # for which it is run again and again

# Messages about the bits of answers
BATCH_MOVES_BITS = "on this processor the batch moves the last bits of every way to compute"
SLOWER_KERNELS = (
    "on this processor the batch moves the last bits of the fastest kernels; slower ones serve"
)
UNSTEADY_BITS = f"{BATCH_MOVES_BITS}; the fastest serves, and equal bits are not promised"


@dataclass(frozen=True, slots=True)
class Proof:
    """The results of a replica's start-up checks and measurements."""

    dtype: torch.dtype  # number format of the model
    same_bits: bool  # whether no batch changes an answer's bits, as on a CPU in float32
    canary: Work  # the sequence to check again and again
    golden: tuple[Array, Array]  # its token vectors, (tokens, width), and last layer's maps then
    numerics: str  # name of the arithmetic; it ends in -varying without `same_bits`
    speed: float  # tokens per second on all cores
    small: int  # tokens up to which every batch takes the same time
    budget: int  # most tokens in the batches of all lanes together
    certificate: Certificate | None = None  # how close vectors are to float32's, if asked
    adapted: Mapping[str, str] = field(default_factory=dict)  # `numerics` with each adapter

    @property
    def bound(self) -> float:
        """Return how far a canary may lie from the first; 0: its bits are the same."""
        return 0.0 if self.same_bits else numerics.ROUNDING_BOUNDS[self.dtype]

    def is_right(self, result: Result) -> bool:
        """Tell whether a canary's result equals the first: bit for bit if `same_bits`."""
        return numerics.largest_difference(_shown_by(result), self.golden) <= self.bound


def prove_lanes(
    lanes: Lanes,
    source: ModelSource,
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
        dtype: its number format.
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
    proof = _prove_steady(lanes, source, dtype, batch_tokens, required)
    adapted = {name: _with_adapter(lanes, proof, name).numerics for name in lanes.model.adapters}
    return replace(proof, certificate=certificate, adapted=adapted)


def _prove_steady(
    lanes: Lanes, source: ModelSource, dtype: torch.dtype, batch_tokens: int | None, required: bool
) -> Proof:
    """Return the proof of the fastest kernels whose bits no batch changes; see `prove_lanes`.

    If there are none: of the fastest, which do not promise equal bits.
    """
    encoder = lanes.model.encoder
    promised = encoder.device.type == "cpu" and machine.promises_bits(encoder.kernels, dtype)
    fastest = _measure_lanes(lanes, dtype, batch_tokens, promised)
    if is_steady(lanes, fastest):
        return fastest
    for _ in try_slower_ways(lanes, source):
        proof = _measure_lanes(lanes, dtype, batch_tokens, promised)
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
    lanes: Lanes, dtype: torch.dtype, batch_tokens: int | None, same_bits: bool
) -> Proof:
    """Run the canary in the lanes as they are set, measure their speed, and return both.

    Args:
        same_bits: whether the proof is to promise equal bits.
    """
    if lanes.model.encoder.device.type == "cpu":
        speed, small = _measure_speed(lanes, MEASURED_SEQUENCES), SMALL_TOKENS
        speed *= len(lanes) if lanes.alone else 1  # it was measured on one core
    else:
        speed, small = measure_gpu(lanes, batch_tokens or machine.MOST_BATCH_TOKENS)
    canary = _make_canary(lanes.model)
    golden, way = _run_canary(lanes, [canary], 1), lanes.arithmetic_of(None)
    name = numerics.name_arithmetic(lanes.model.encoder.device, dtype, way, golden[0], same_bits)
    return Proof(
        dtype,
        same_bits,
        canary,
        golden,
        numerics=name,
        speed=speed,
        small=small,
        budget=batch_tokens or machine.batch_budget(speed),
    )


def is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether no batch and no number of cores changes the canary, also with each adapter.

    Raises:
        NotTrustworthy: it differs by more than rounding.
    """
    adapted = (_with_adapter(lanes, proof, name) for name in lanes.model.adapters)
    return _is_steady(lanes, proof) and all(_is_steady(lanes, each) for each in adapted)


def _with_adapter(lanes: Lanes, proof: Proof, name: str) -> Proof:
    """Return a proof with an adapter's canary, what it shows by itself, and its arithmetic."""
    canary = _make_canary(lanes.model, name)
    golden, what = _run_canary(lanes, [canary], 1), (lanes.model.encoder.device, proof.dtype)
    way = lanes.arithmetic_of(name)
    kind = numerics.name_arithmetic(*what, way, golden[0], proof.same_bits)
    return replace(proof, canary=canary, golden=golden, numerics=kind)


def _make_canary(
    model: Model, adapter: str | None = None, heads: Sequence[int] | None = None
) -> Work:
    """Return the work of the fixed text, which shows its vectors and its last layer's maps.

    Args:
        heads: of that layer; all by default.
    """
    (sequence,), config = read_texts(model, [CANARY_TEXT]), model.config
    shown = {config.layers - 1: tuple(range(config.heads) if heads is None else heads)}
    selection = Selection(shown, divide_into_units(len(sequence)))
    return Work(sequence, Outputs(tokens=True, probes=(Maps(selection),)), adapter=adapter)


def _is_steady(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether no batch and no number of cores changes one canary; raises as `is_steady`."""
    most, adapters = lanes.model.max_tokens, [None, *lanes.model.adapters]
    alone = [proof.canary]
    few = [_filler_work(min(length, most), name) for name in adapters for length in (1, 3, 40)]
    batches = [(batch, n) for batch in (alone, alone + few, alone * 3) for n in {1, len(lanes)}]
    larger = ((alone + fillers, 1) for fillers in _growing_fillers(lanes, proof))
    for batch, threads in (*batches, *larger):
        error = numerics.largest_difference(_run_canary(lanes, batch, threads), proof.golden)
        if error > numerics.ROUNDING_BOUNDS[proof.dtype]:
            raise NotTrustworthy("the canary's numbers follow from the batch or the thread count")
        if error > proof.bound:
            return False
    return not proof.same_bits or _is_each_head_alike(lanes, proof)


def _is_each_head_alike(lanes: Lanes, proof: Proof) -> bool:
    """Tell whether a head's map has its bits where the canary asks for that head alone."""
    canaries = (
        _make_canary(lanes.model, proof.canary.adapter, (head,))
        for head in range(lanes.model.config.heads)
    )
    found = (_run_canary(lanes, [canary], len(lanes))[1][0] for canary in canaries)
    return numerics.largest_difference(found, proof.golden[1]) == 0


def _run_canary(lanes: Lanes, batch: Sequence[Work], threads: int) -> tuple[Array, Array]:
    """Run a batch, and return the token vectors and the maps of its first work, a canary."""
    result = lanes.run_batch(batch, threads)[0]
    if isinstance(result, Exception):
        raise NotTrustworthy("the canary failed") from result
    return _shown_by(result)


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
    """Return the shortest time of a batch that runs for MEASURED_SECONDS."""
    run = partial(lanes.run_batch, batch, len(lanes))
    return time_fastest([run], MEASURED_SECONDS)[0]


def _measured_length(model: Model) -> int:
    """Return the tokens of the sequences by which the speed is measured."""
    return min(MEASURED_TOKENS, model.max_tokens)


def _filler_work(tokens: int, adapter: str | None = None) -> Work:
    """Return a work of this many equal tokens, with no outputs."""
    return Work(packing.Sequence([1] * tokens), Outputs(), adapter=adapter)


def _shown_by(result: Result) -> tuple[Array, Array]:
    """Return the token vectors and the maps of a canary's result."""
    if result.tokens is None:
        raise RuntimeError("the canary asks for tokens: this is a bug")
    (layer,) = result.made[Maps.name]["heads"].values()
    return result.tokens, layer["map"]
