"""The lanes: threads that pack sequences, run them as a batch and cut the results apart.

A lane is one thread. Lane 0 loads the model and may use several cores; every other lane uses one
and so never opens an OpenMP region. That is deliberate: a second thread that opens one makes
libgomp stop spinning and doubles the time of a short sentence. RecordedBatches counts and traces
every batch on its way into a lane.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from model import packing
from model.adapters import mix_adapters
from model.attention import Trace
from model.encoder import Encoded, Encoder
from model.kernels import PlainLinear, without_idle_threads
from model.lessons import explain_layer, step_weights
from model.loading.checkpoint import Model
from model.maps.forms import show
from model.pooling import Pooling
from service.engine.batcher import Launch
from service.engine.work import Array, Maps, Outputs, Parts, Result, Work
from service.observe.metrics import Metrics
from service.observe.record import Record

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing


logger = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessBroken(Exception):
    """Nothing that the lanes would compute can be trusted any more."""


def breaks_process(error: Exception) -> bool:
    """Tell whether after an error of the accelerator the process can do nothing right."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


class NonFiniteOutput(Exception):
    """The forward pass produced NaN or infinity.

    Args:
        layer: the first hidden state that holds one: 0 = embeddings, i = after i layers.
    """

    def __init__(self, layer: int) -> None:
        super().__init__(f"hidden state {layer} is not finite")
        self.layer = layer


class Lanes:
    """A loaded model and the threads that run it.

    Args:
        threads: one a lane.
    """

    def __init__(self, model: Model, threads: Sequence[ThreadPoolExecutor]) -> None:
        self.model, self._threads = model, threads
        self.alone = False  # each sequence in a pass of its own, on one core
        # told of whatever breaks a batch, in a lane, also where half the batch then succeeds
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def start(cls, load: Callable[[], Model], count: int) -> "Lanes":
        """Start this many lanes, with the model that `load` makes in lane 0."""
        threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"lane-{i}", initializer=_flush_denormals)
            for i in range(count)
        ]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads[0], torch.set_num_threads, count)
        return cls(await loop.run_in_executor(threads[0], load), threads)

    def __len__(self) -> int:
        return len(self._threads)

    @property
    def arithmetic(self) -> str:
        """Return the name of what computes; see numerics.py."""
        return self.arithmetic_of(None)

    def arithmetic_of(self, adapter: str | None) -> str:
        """Return the name of what computes with an adapter, or with none."""
        return self._encoder_with(adapter).arithmetic + ("+alone" if self.alone else "")

    async def call_in_lane(self, lane: int, function: Callable[[], T]) -> T:
        """Call a function in a lane's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[lane], function)

    async def run_in_lane(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane; one result or exception for each work."""
        return await self.call_in_lane(lane, partial(self.run_batch, works, threads))

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()

    @torch.inference_mode()
    def run_batch(self, works: Sequence[Work], threads: int) -> list[Result | Exception]:
        """Run one batch in the calling thread; a work that fails, fails alone."""
        cores = 1 if self.alone else threads
        if torch.get_num_threads() != cores:
            torch.set_num_threads(cores)
        return self._encode_or_split(works)

    def _encode_or_split(self, works: Sequence[Work]) -> list[Result | Exception]:
        try:
            return self._encode_works(works)
        except Exception as error:
            logger.exception("batch failed", extra={"sequences": len(works)})
            self.on_failure(error)
            if len(works) == 1 or breaks_process(error):
                return [error] * len(works)
        half = len(works) // 2  # whichever work is to blame, the others deserve an answer
        return self._encode_or_split(works[:half]) + self._encode_or_split(works[half:])

    def _encode_works(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Run works, those whose passes begin in one place together."""
        if self.alone:
            return [self._run_together([work])[0] for work in works]
        starts = [work.entered for work in works]
        if len(set(starts)) == 1:
            return self._run_together(works)
        by_start = defaultdict[int | None, list[int]](list)
        for place, start in enumerate(starts):
            by_start[start].append(place)
        results: dict[int, Result | Exception] = {}
        for places in by_start.values():
            results |= zip(
                places, self._run_together([works[place] for place in places]), strict=True
            )
        return [results[place] for place in range(len(works))]

    def _run_together(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Run works whose passes begin in one place."""
        outputs = [work.outputs for work in works]
        encoder, packed = self._pack_with_adapters(works)
        way = outputs[0].pooling
        if way and outputs.count(Outputs(way)) == len(outputs):  # vectors alone: most batches
            vectors = self._pool_places(
                self._encode_packed(encoder, packed), range(len(outputs)), way
            )
            return [Result(vector) for vector in vectors]
        encoded = self._encode_packed(
            encoder,
            packed,
            hidden=frozenset().union(*(each.states for each in outputs)),
            traces=frozenset().union(*(each.traces for each in outputs)),
        )
        pooled, states = self._pool_sequences(encoded, outputs), _copy_states(encoded, outputs)
        return [
            self._cut_result(encoded, i, work, pooled.get(i), states)
            for i, work in enumerate(works)
        ]

    def _pack_with_adapters(self, works: Sequence[Work]) -> tuple[Encoder, packing.Packed]:
        """Return a batch, and what encodes each of its sequences with its own adapter."""
        model, named = self.model, {work.adapter for work in works}
        sequences = [work.sequence for work in works]
        if len(named) == 1:
            encoder = self._encoder_with(named.pop())
            return encoder, encoder.pack(sequences)
        packed = packing.pack_sequences(sequences, model.encoder.device, model.config.pad)
        chosen = [model.adapters[work.adapter] if work.adapter else None for work in works]
        return mix_adapters(model.encoder, packed, chosen), packed

    def _encoder_with(self, adapter: str | None) -> Encoder:
        """Return the encoder with one adapter in all rows, or with none."""
        return self.model.encoder if adapter is None else self.model.adapters[adapter].encoder

    def _encode_packed(
        self,
        encoder: Encoder,
        packed: packing.Packed,
        hidden: frozenset[int] = frozenset(),
        traces: frozenset[int] = frozenset(),
    ) -> Encoded:
        """Encode a batch as Encoder does; what is not finite goes no further."""
        encoded = encoder(packed, hidden=hidden, traces=traces)
        if not (is_finite(encoded.last) if encoded.finite is None else encoded.finite):
            raise NonFiniteOutput(_first_non_finite(encoder, packed))
        return encoded

    def _pool_sequences(self, encoded: Encoded, outputs: Sequence[Outputs]) -> dict[int, Array]:
        """Return the vector of each sequence that is to have one, by its place in the batch."""
        vectors: dict[int, Array] = {}
        by_way = defaultdict[Pooling, list[int]](list)
        for place, each in enumerate(outputs):
            if each.pooling:
                by_way[each.pooling].append(place)
        for how, places in by_way.items():
            vectors |= zip(places, self._pool_places(encoded, places, how), strict=True)
        return vectors

    def _pool_places(self, encoded: Encoded, places: Sequence[int], how: Pooling) -> Array:
        """Return the vectors of the sequences at some places in the batch, (places, size)."""
        rows = [encoded.packed.rows(place) for place in places]
        return to_array(self.model.encoder.pool(encoded.last, rows, how))

    def _cut_result(
        self,
        encoded: Encoded,
        index: int,
        work: Work,
        pooled: Array | None,
        states: Mapping[int | None, Mapping[int, Array]],
    ) -> Result:
        """Return one sequence's share of a batch, as arrays."""
        rows, outputs = encoded.packed.rows(index), work.outputs
        return Result(
            pooled=pooled,
            tokens=states[None].get(index),
            hidden={layer: states[layer][index] for layer in sorted(outputs.hidden)},
            attention=self._show_maps(encoded, rows, work),
            steps=self._explain_layer(encoded, rows, work),
            task=self._apply_task_heads(encoded.last[rows], outputs) if outputs.task_heads else {},
            parts=self._pool_parts(encoded, rows, outputs.parts),
            kept={layer: _copy_entry(encoded, rows, layer) for layer in outputs.kept},
        )

    def _pool_parts(self, encoded: Encoded, rows: slice, parts: Parts | None) -> Array | None:
        """Return the vectors of a sequence's parts."""
        if parts is None:
            return None
        places = [slice(rows.start + first, rows.start + last) for first, last in parts.tokens]
        return to_array(self.model.encoder.pool(encoded.last, places, parts.pooling))

    def _show_maps(self, encoded: Encoded, rows: slice, work: Work) -> Maps | None:
        """Return what is to be shown of one sequence's attention."""
        selection = work.outputs.attention
        if selection is None:
            return None
        traces = encoded.traces
        if self.model.adapters:
            traces = _with_own_attention(traces, self._encoder_with(work.adapter))
        shown = show(traces, rows, selection)
        heads = {layer: _to_arrays(tensors) for layer, tensors in shown.heads.items()}
        return Maps(self.model.encoder.kernels.path, heads, _to_arrays(shown.whole))

    def _apply_task_heads(self, tokens: torch.Tensor, outputs: Outputs) -> dict[str, Array]:
        """Return what the task heads make of one sequence.

        Raises:
            NonFiniteOutput: NaN or infinity, of which no hidden state is to blame.
        """
        parts: dict[str, torch.Tensor] = {}
        with (
            without_idle_threads()
            if self.model.encoder.kernels.linear is PlainLinear
            else nullcontext()
        ):
            for head in outputs.task_heads:
                parts |= head(tokens)
        if not all(bool(part.isfinite().all()) for part in parts.values()):
            raise NonFiniteOutput(self.model.encoder.config.layers)
        return {name: to_array(part) for name, part in parts.items()}

    def _explain_layer(self, encoded: Encoded, rows: slice, work: Work) -> dict[str, Array]:
        """Return every step of one sequence through the layer asked for."""
        layer, encoder = work.outputs.explained_layer, self._encoder_with(work.adapter)
        if layer is None:
            return {}
        torch.set_num_threads(
            1
        )  # the bits of plain products follow from it; `run_batch` sets it anew
        steps = explain_layer(encoder, layer, encoded.hidden[layer][rows])
        if work.outputs.weights:
            steps |= step_weights(encoder, layer)
        return {name: to_array(step) for name, step in steps.items()}


def _flush_denormals() -> None:
    """Set up each lane once: denormal numbers cost up to threefold time and carry no meaning."""
    torch.set_flush_denormal(True)


def _first_non_finite(encoder: Encoder, packed: packing.Packed) -> int:
    """Return the first hidden state that is not finite, of a batch whose last is not."""
    last = encoder.config.layers
    hidden = encoder(packed, hidden=frozenset(range(last + 1))).hidden
    wrong = (state for state in sorted(hidden) if not is_finite(hidden[state]))
    return next(wrong, last)


def is_finite(rows: torch.Tensor) -> bool:
    """Tell whether no number is NaN or infinity: both ends show each, and no sum can overflow."""
    least, most = rows.aminmax()
    return bool(least.isfinite() & most.isfinite())


def _with_own_attention(traces: Mapping[int, Trace], encoder: Encoder) -> dict[int, Trace]:
    """Return traces with the attention of one sequence's encoder, whose weights may be shown."""
    return {i: replace(trace, attention=encoder.layers[i].attention) for i, trace in traces.items()}


def _copy_entry(encoded: Encoded, rows: slice, layer: int) -> packing.Entry:
    """Tell where another pass of a sequence may begin; copies, since a batch is larger."""
    residual, mixed = encoded.hidden[layer][rows], encoded.traces[layer].z[rows]
    return packing.Entry(layer, residual.clone(), mixed.clone())


def _copy_states(
    encoded: Encoded, outputs: Sequence[Outputs]
) -> dict[int | None, dict[int, Array]]:
    """Return the rows that sequences are to have, by hidden state and place; None is the last."""
    packed = encoded.packed
    last = {None: _rows_by_sequence(encoded.last, packed, [each.tokens for each in outputs])}
    return last | {
        layer: _rows_by_sequence(state, packed, [layer in each.hidden for each in outputs])
        for layer, state in encoded.hidden.items()
    }


def _rows_by_sequence(
    state: torch.Tensor, packed: packing.Packed, wanted: list[bool]
) -> dict[int, Array]:
    """Return the rows of a state, (tokens, width), of each sequence that is to have them."""
    places = [place for place, wants in enumerate(wanted) if wants]
    rows = [packed.rows(place) for place in places]
    if state.device.type == "cpu" or not rows:
        return {place: to_array(state[each]) for place, each in zip(places, rows, strict=True)}
    return dict(zip(places, copy_together(state, rows), strict=True))


def copy_together(state: torch.Tensor, rows: Sequence[slice]) -> list[Array]:
    """Return some rows of a state as arrays, in one copy: each is waited for."""
    whole = to_array(torch.cat([state[each] for each in rows]))
    ends = list(accumulate(each.stop - each.start for each in rows))
    return np.split(whole, ends[:-1])


def _to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array, real numbers as float32."""
    numbers = tensor.float() if tensor.is_floating_point() else tensor
    return numbers.cpu().numpy()


logger = logging.getLogger(__name__)


class RecordedBatches:
    """Runs batches as Lanes.run_in_lane does, and tells what they are.

    Args:
        tracing: None where it is off.
    """

    def __init__(
        self, launch: Launch[Work, Result], metrics: Metrics, tracing: "Tracing | None"
    ) -> None:
        self._launch, self._metrics, self._tracing = launch, metrics, tracing
        self.lane_seconds = 0.0  # that lanes have computed, since the start
        self.fault: str | None = None  # why nothing that is computed here can be trusted
        self.on_fault: Callable[[], object] = lambda: None
        self._broken = False  # as a lane's thread has it

    async def __call__(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane; one result or exception for each work.

        Raises:
            ProcessBroken: what came out cannot be trusted, or was not tried.
        """
        if self.fault:
            raise ProcessBroken(self.fault)
        start = time.monotonic()
        records: dict[Record, None] = {}
        tokens = 0
        for work in works:
            tokens += len(work)
            if (record := work.record) is not None:
                records[record] = None
                record.batch_start = record.batch_start or start
        try:
            results = await self._launch(lane, works, threads)
            if self._broken:
                self.distrust("the accelerator failed")
            if self.fault:
                raise ProcessBroken(self.fault)
            return results
        finally:
            seconds = (time.monotonic() - start) * threads
            self.lane_seconds += seconds
            self._metrics.count_batch(tokens, seconds)
            if self._tracing:
                self._tracing.export_batch(list(records), len(works), tokens, start)

    def distrust(self, reason: str) -> None:
        """Return nothing any more: whatever runs or waits ends as ProcessBroken."""
        if self.fault is None:
            self.fault = reason
            logger.error(reason)
            self.on_fault()

    def note_failure(self, error: Exception) -> None:
        """Note what the accelerator did not do; called in a lane's thread."""
        if breaks_process(error):
            self._broken = True
        if isinstance(error, torch.OutOfMemoryError):
            self._metrics.count_accelerator_error("oom")
        elif isinstance(error, torch.AcceleratorError):
            self._metrics.count_accelerator_error("other")
