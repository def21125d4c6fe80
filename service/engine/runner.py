"""Owns the weights and the lanes: threads that pack, run, cut apart.

Arrays in, arrays out: nothing above this file sees a tensor. A lane is one thread. Lane 0 loads
the model and may use several cores; every other lane uses one and so never opens an OpenMP
region. That is deliberate: a second thread that opens one makes libgomp stop spinning and
doubles the time of a short sentence.
"""

import asyncio
import ctypes
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from model import kernels, packing
from model.encoder import Encoded
from model.lessons.explain import explain
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps.forms import Asked, show
from model.pooling import Pooling, pool
from service.engine import machine, numerics
from service.engine.weights import GOLDEN, Found
from service.observe.record import Record

logger = logging.getLogger(__name__)

Array = NDArray[Any]

AGREEMENT = 1e-4  # largest difference allowed from transformers
CANARY = "A dog ate the food because it was hungry"
MEASURED_TOKENS = 64  # per sequence of the batch that measures the speed
MEASURED_SEQUENCES = 8
MEASURED_SECONDS = 0.3


class NotTrustworthy(Exception):
    """The start-up check found answers that differ; the replica must not serve."""


class NonFiniteOutput(Exception):
    """The forward pass produced NaN or infinity.

    Args:
        layer: the first hidden state that holds one: 0 = embeddings, i = after i layers.
    """

    def __init__(self, layer: int) -> None:
        super().__init__(f"hidden state {layer} is not finite")
        self.layer = layer


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to return of one sequence; by default nothing.

    Args:
        hidden: hidden states, 0 = embeddings, i = after i layers.
        attention: what to show of it.
        explained: the layer to return every step of.
    """

    pooling: Pooling | None = None
    tokens: bool = False
    hidden: frozenset[int] = frozenset()
    attention: Asked | None = None
    explained: int | None = None

    @property
    def states(self) -> frozenset[int]:
        """The hidden states it takes, returned or not."""
        return self.hidden if self.explained is None else self.hidden | {self.explained}

    @property
    def traces(self) -> Collection[int]:
        """The layers whose attention it shows."""
        return self.attention.heads if self.attention else ()


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence and what is wanted of it.

    Args:
        record: the request it is of, for those who count and trace; None where nobody asked.
    """

    sequence: packing.Sequence
    wanted: Wanted
    record: Record | None = None

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True)
class Attended:
    """What is shown of one sequence's attention; model.maps.forms.Shown as arrays.

    Args:
        path: which kernels computed it; see model.kernels.Kernels.
    """

    path: str
    heads: Mapping[int, Mapping[str, Array]]
    whole: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Done:
    """What came out for one sequence, real numbers as float32.

    Args:
        pooled: (width or dimensions,).
        tokens: (tokens, width).
        hidden: (tokens, width) by hidden state.
        steps: the explained layer's, by name; see model/lessons/explain.py.
    """

    pooled: Array | None
    tokens: Array | None
    hidden: dict[int, Array]
    attention: Attended | None
    steps: dict[str, Array]


class Runner:
    """The loaded model and the threads that run it; made in lane 0, by `load`.

    `numerics` names the arithmetic; equal weights, numerics and input give equal bits, unless it
    ends in -varying: then the bits follow from the batch too.

    Args:
        dtype: the model's number format.
        batch_tokens: tokens per batch; None measures what is done in machine.BATCH_SECONDS.

    Raises:
        NotTrustworthy: its answers differ from another computation of the same.
    """

    def __init__(
        self,
        model: Model,
        kernel: str,
        device: torch.device,
        dtype: torch.dtype,
        lanes: list[ThreadPoolExecutor],
        batch_tokens: int | None = None,
    ) -> None:
        self.model, self.device, self.dtype, self._lanes = model, device, dtype, lanes
        # told of whatever breaks a batch, in a lane, also where half the batch then succeeds
        self.on_failure: Callable[[Exception], None] = lambda error: None
        ids = model.tokenizer([(CANARY,)], model.max_tokens, "right")[0].token_ids
        self.canary = Work(packing.Sequence(ids), Wanted(tokens=True))
        # a GPU's matrix kernels, and a processor's in half precision, follow the batch's size
        self.fixed = device.type == "cpu" and dtype == torch.float32
        self.speed = self._measure()
        self.budget = batch_tokens or machine.budget(self.speed)
        self.golden = self._check_invariance()
        name = numerics.name(device, dtype, kernel, self.golden)
        self.numerics = name if self.fixed else f"{name}-varying"

    @classmethod
    async def start(
        cls,
        found: Found,
        device: torch.device,
        dtype: torch.dtype,
        threads: int,
        batch_tokens: int | None = None,
    ) -> "Runner":
        """Load a model in lane 0, check its answers, measure its speed."""
        lanes = [
            ThreadPoolExecutor(1, thread_name_prefix=f"lane-{i}", initializer=_prepare)
            for i in range(threads)
        ]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(lanes[0], load, found, device, dtype, lanes, batch_tokens)

    async def launch(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Done | Exception]:
        """Run one batch in a lane; one result or exception for each work."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._lanes[lane], self.run, works, threads)

    def close(self) -> None:
        for lane in self._lanes:
            lane.shutdown()

    @torch.inference_mode()
    def run(self, works: Sequence[Work], threads: int) -> list[Done | Exception]:
        """Run one batch in the calling thread; a work that fails, fails alone."""
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return self._attempt(works)

    def _attempt(self, works: Sequence[Work]) -> list[Done | Exception]:
        try:
            return self._encode(works)
        except Exception as error:
            logger.exception("batch failed", extra={"sequences": len(works)})
            self.on_failure(error)
            if len(works) == 1:
                return [error]
        half = len(works) // 2  # whichever work is to blame, the others deserve an answer
        return self._attempt(works[:half]) + self._attempt(works[half:])

    def _encode(self, works: Sequence[Work]) -> list[Done | Exception]:
        packed = self.model.encoder.pack([work.sequence for work in works])
        encoded = self.model.encoder(
            packed,
            hidden=frozenset().union(*(work.wanted.states for work in works)),
            traces=frozenset().union(*(work.wanted.traces for work in works)),
        )
        if not _finite(encoded.last):
            raise NonFiniteOutput(self._first_wrong(packed))
        return [self._cut(encoded, index, work.wanted) for index, work in enumerate(works)]

    def _first_wrong(self, packed: packing.Packed) -> int:
        """The first hidden state that is not finite, of a batch whose last is not."""
        last = self.model.encoder.config.layers
        hidden = self.model.encoder(packed, hidden=frozenset(range(last + 1))).hidden
        wrong = (state for state in range(last) if not _finite(hidden[state]))
        return next(wrong, last)

    def _cut(self, encoded: Encoded, index: int, wanted: Wanted) -> Done:
        """One sequence's share of a batch, as arrays."""
        rows = encoded.packed.rows(index)
        last = encoded.last[rows]
        return Done(
            pooled=_array(pool(last, wanted.pooling)) if wanted.pooling else None,
            tokens=_array(last) if wanted.tokens else None,
            hidden={layer: _array(encoded.hidden[layer][rows]) for layer in sorted(wanted.hidden)},
            attention=self._attended(encoded, rows, wanted.attention),
            steps=self._explain(encoded, rows, wanted.explained),
        )

    def _attended(self, encoded: Encoded, rows: slice, asked: Asked | None) -> Attended | None:
        """What was asked to be shown of one sequence's attention."""
        if asked is None:
            return None
        shown = show(encoded.traces, rows, asked)
        heads = {layer: _arrays(named) for layer, named in shown.heads.items()}
        return Attended(self.model.encoder.kernels.path, heads, _arrays(shown.whole))

    def _explain(self, encoded: Encoded, rows: slice, layer: int | None) -> dict[str, Array]:
        """Every step of one sequence through the layer asked for."""
        if layer is None:
            return {}
        steps = explain(self.model.encoder, layer, encoded.hidden[layer][rows])
        return {name: _array(step) for name, step in steps.items()}

    def right(self, done: Done) -> bool:
        """Whether a canary came out as at the start: bit for bit, where bits are promised."""
        if done.tokens is None:
            raise RuntimeError("the canary asks for tokens: this is a bug")
        return self._same(done.tokens, self.golden)

    def _same(self, found: Array, golden: Array) -> bool:
        if self.fixed:
            return found.tobytes() == golden.tobytes()
        return numerics.apart(found, golden) <= numerics.CLOSE[self.dtype]

    def _check_invariance(self) -> Array:
        """The canary alone, which comes out the same in any company, on one core and on all."""
        golden = self._run_canary([], 1)
        few = [Work(packing.Sequence([1] * length), Wanted()) for length in (1, 3, 40)]
        cores = {1, len(self._lanes)}
        batches = [(company, n) for company in ([], few, [self.canary] * 2) for n in cores]
        for company, threads in [*batches, *((fuller, 1) for fuller in self._ever_fuller())]:
            if not self._same(self._run_canary(company, threads), golden):
                raise NotTrustworthy("the canary depends on the batch or the thread count")
        return golden

    def _run_canary(self, company: Sequence[Work], threads: int) -> Array:
        done = self.run([self.canary, *company], threads)[0]
        if isinstance(done, Exception) or done.tokens is None:
            cause = done if isinstance(done, Exception) else None
            raise NotTrustworthy("the canary failed") from cause
        return done.tokens

    def _ever_fuller(self) -> Iterator[list[Work]]:
        """Company of twice as many tokens each time, until a lane's batch is full."""
        tokens = min(MEASURED_TOKENS, self.model.max_tokens)
        size, full = tokens, self.budget // len(self._lanes)
        while size < full:
            size = min(2 * size, full)
            yield [Work(packing.Sequence([1] * tokens), Wanted())] * (
                (size - len(self.canary)) // tokens
            )

    def _measure(self) -> float:
        """Tokens per second of a batch of middling sequences on all cores, at its fastest.

        A neighbour that starts beside us makes some rounds slow, and passes.
        """
        tokens = min(MEASURED_TOKENS, self.model.max_tokens)
        batch = [Work(packing.Sequence([1] * tokens), Wanted())] * MEASURED_SEQUENCES
        fastest, end = math.inf, time.perf_counter() + MEASURED_SECONDS
        while (start := time.perf_counter()) < end:
            self.run(batch, len(self._lanes))
            fastest = min(fastest, time.perf_counter() - start)
        return tokens * len(batch) / fastest


def _prepare() -> None:
    """Once in every lane: denormal numbers cost up to threefold time and carry no meaning."""
    torch.set_flush_denormal(True)


def load(
    found: Found,
    device: torch.device,
    dtype: torch.dtype,
    lanes: list[ThreadPoolExecutor],
    batch_tokens: int | None,
) -> Runner:
    """Load a model in the calling thread, check its answers, measure its speed."""
    torch.set_num_threads(len(lanes))
    config = found.preset or checkpoint.read(found.folder)
    chosen = kernels.choose(device, dtype, config.head)
    model = _model(found, device, dtype, chosen)
    with torch.inference_mode():
        _check_exact(model, found, dtype)
    return Runner(model, chosen.name, device, dtype, lanes, batch_tokens)


def _model(
    found: Found, device: torch.device, dtype: torch.dtype, chosen: kernels.Kernels
) -> Model:
    """A folder's model, or a preset with the folder's tokenizer."""
    if found.preset is None:
        return checkpoint.load(found.folder, device, dtype, chosen)
    tokenizer = found.folder / checkpoint.TOKENIZER
    return checkpoint.preset(found.preset, tokenizer, device, dtype, chosen)


def _check_exact(model: Model, found: Found, dtype: torch.dtype) -> None:
    """The serving path agrees with the plain one in float32, and with another implementation."""
    plain = _model(found, torch.device("cpu"), torch.float32, kernels.PLAIN)
    pairs = zip(_read_canary(model), _read_canary(plain), strict=True)
    off = max(numerics.apart(ours, exact) for ours, exact in pairs)
    del plain
    _return_memory()
    if off > numerics.CLOSE[dtype]:
        limits = f"{off:.1e} of its length, more than {numerics.CLOSE[dtype]}"
        raise NotTrustworthy(f"the canary differs from the plain float32 path's by {limits}")
    golden = GOLDEN.get(model.digest)
    if golden and dtype == torch.float32:
        vector = _vector(model, golden.text)[: len(golden.pooled)]
        if not torch.allclose(vector, torch.tensor(golden.pooled), atol=AGREEMENT):
            raise NotTrustworthy("the bundled model's vector differs from transformers'")


def _return_memory() -> None:
    """Give the system what was freed; glibc keeps it, and a second model is large."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim:
        trim(0)


def _vector(model: Model, text: str) -> torch.Tensor:
    return pool(_vectors(model, text), model.pooling).cpu()


def _vectors(model: Model, text: str) -> torch.Tensor:
    """The last hidden state of a text, (tokens, width)."""
    ids = model.tokenizer([(text,)], model.max_tokens, "right")[0].token_ids
    encoded = model.encoder(model.encoder.pack([packing.Sequence(ids)]))
    return encoded.last[encoded.packed.rows(0)]


def _read_canary(model: Model) -> tuple[Array, Array]:
    """The canary's vectors, (tokens, width), and the one made of them, (1, size)."""
    tokens = _vectors(model, CANARY)
    return _array(tokens), _array(pool(tokens, model.pooling)[None])


def _finite(rows: torch.Tensor) -> bool:
    """Whether no number is NaN or infinity; both ends show each, and cannot overflow as a sum."""
    least, most = rows.aminmax()
    return bool(least.isfinite() & most.isfinite())


def _arrays(named: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in named.items()}


def _array(tensor: torch.Tensor) -> Array:
    """A tensor as an array, real numbers as float32."""
    array: Array = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    return array
