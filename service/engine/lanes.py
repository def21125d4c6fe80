"""The lanes: threads that pack sequences, run them as a batch and split the results.

A lane is one thread. Lane 0 loads the model and may use several cores; every other lane uses one
and so never opens an OpenMP region. That is deliberate: a second thread that opens one makes
libgomp stop spinning and doubles the time of a short sentence.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

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
from service.engine.work import Array, Maps, Outputs, Parts, Result, Work

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessBroken(Exception):
    """Results of this process can no longer be trusted."""


def breaks_process(error: Exception) -> bool:
    """Tell whether an error of the accelerator leaves the process unusable."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


class NonFiniteOutput(Exception):
    """The forward pass produced NaN or infinity.

    Args:
        layer: the first hidden state that has one: 0 = embeddings, i = after i layers.
    """

    def __init__(self, layer: int) -> None:
        super().__init__(f"hidden state {layer} is not finite")
        self.layer = layer


class Lanes:
    """A loaded model and the threads that run it.

    Args:
        threads: one per lane.

    Attributes:
        alone: whether each sequence runs in a forward pass of its own, on one core.
        on_failure: called in the lane's thread with each error of a batch, also if the batch is
            then split and a part of it succeeds.
    """

    def __init__(self, model: Model, threads: Sequence[ThreadPoolExecutor]) -> None:
        self.model, self._threads, self.alone = model, threads, False
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def start(cls, load: Callable[[], Model], count: int) -> "Lanes":
        """Start `count` lanes, with the model that `load` returns, called in lane 0."""
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
        """Return the name of the kernels that compute without an adapter; see numerics.py."""
        return self.arithmetic_of(None)

    def arithmetic_of(self, adapter: str | None) -> str:
        """Return the name of the kernels that compute with an adapter; None: without one."""
        return self._encoder_with(adapter).arithmetic + ("+alone" if self.alone else "")

    async def call_in_lane(self, lane: int, function: Callable[[], T]) -> T:
        """Call a function in a lane's thread and return what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[lane], function)

    async def run_in_lane(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane's thread; see `run_batch`."""
        return await self.call_in_lane(lane, partial(self.run_batch, works, threads))

    def close(self) -> None:
        """Stop the threads once their batches are done."""
        for thread in self._threads:
            thread.shutdown()

    @torch.inference_mode()
    def run_batch(self, works: Sequence[Work], threads: int) -> list[Result | Exception]:
        """Run one batch in the calling thread; return a result or exception for each work.

        Args:
            threads: how many cores the batch may use.
        """
        cores = 1 if self.alone else threads
        if torch.get_num_threads() != cores:
            torch.set_num_threads(cores)
        return self._encode_or_split(works)

    def _encode_or_split(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Run works together, or in halves if that fails, so that a bad work fails alone."""
        try:
            return self._encode_works(works)
        except Exception as error:
            logger.exception("batch failed", extra={"sequences": len(works)})
            self.on_failure(error)
            if len(works) == 1 or breaks_process(error):
                return [error] * len(works)
        half = len(works) // 2
        return self._encode_or_split(works[:half]) + self._encode_or_split(works[half:])

    def _encode_works(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Run works, together where their forward passes begin in the same layer."""
        if self.alone:
            return [self._run_together([work])[0] for work in works]
        starts = [work.entered for work in works]
        if len(set(starts)) == 1:
            return self._run_together(works)
        by_start = defaultdict[int | None, list[int]](list)
        for index, start in enumerate(starts):
            by_start[start].append(index)
        results: dict[int, Result | Exception] = {}
        for indices in by_start.values():
            group = self._run_together([works[index] for index in indices])
            results |= zip(indices, group, strict=True)
        return [results[index] for index in range(len(works))]

    def _run_together(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Run works whose forward passes begin in the same layer as one batch."""
        outputs = [work.outputs for work in works]
        encoder, packed = self._pack_with_adapters(works)
        pooling = outputs[0].pooling
        if pooling and outputs.count(Outputs(pooling)) == len(outputs):  # the usual case
            encoded = self._encode_packed(encoder, packed)
            vectors = self._pool_indices(encoded, range(len(outputs)), pooling)
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
        """Pack works, and return the encoder that applies to each sequence its own adapter."""
        model, names = self.model, {work.adapter for work in works}
        sequences = [work.sequence for work in works]
        if len(names) == 1:
            encoder = self._encoder_with(names.pop())
            return encoder, encoder.pack(sequences)
        packed = packing.pack_sequences(sequences, model.encoder.device, model.config.pad)
        adapters = [model.adapters[work.adapter] if work.adapter else None for work in works]
        return mix_adapters(model.encoder, packed, adapters), packed

    def _encoder_with(self, adapter: str | None) -> Encoder:
        """Return the encoder that applies one adapter to all sequences; None: none."""
        return self.model.encoder if adapter is None else self.model.adapters[adapter].encoder

    def _encode_packed(
        self,
        encoder: Encoder,
        packed: packing.Packed,
        hidden: frozenset[int] = frozenset(),
        traces: frozenset[int] = frozenset(),
    ) -> Encoded:
        """Encode a batch as Encoder does; raise NonFiniteOutput for NaN or infinity."""
        encoded = encoder(packed, hidden=hidden, traces=traces)
        if not (is_finite(encoded.last) if encoded.finite is None else encoded.finite):
            raise NonFiniteOutput(_first_non_finite(encoder, packed))
        return encoded

    def _pool_sequences(self, encoded: Encoded, outputs: Sequence[Outputs]) -> dict[int, Array]:
        """Return the pooled vector of each sequence with a pooling, by its index in the batch."""
        vectors: dict[int, Array] = {}
        by_pooling = defaultdict[Pooling, list[int]](list)
        for index, each in enumerate(outputs):
            if each.pooling:
                by_pooling[each.pooling].append(index)
        for pooling, indices in by_pooling.items():
            vectors |= zip(indices, self._pool_indices(encoded, indices, pooling), strict=True)
        return vectors

    def _pool_indices(self, encoded: Encoded, indices: Sequence[int], pooling: Pooling) -> Array:
        """Pool the sequences with these indices in the batch, to (indices, size)."""
        rows = [encoded.packed.rows(index) for index in indices]
        return to_array(self.model.encoder.pool(encoded.last, rows, pooling))

    def _cut_result(
        self,
        encoded: Encoded,
        index: int,
        work: Work,
        pooled: Array | None,
        states: Mapping[int | None, Mapping[int, Array]],
    ) -> Result:
        """Return one sequence's part of an encoded batch, as arrays.

        Args:
            index: of the sequence in the batch.
            pooled: its pooled vector, if asked for.
            states: as `_copy_states` returns them.
        """
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
        """Return the vectors of a sequence's parts, (parts, size); None if none are asked for."""
        if parts is None:
            return None
        slices = [slice(rows.start + first, rows.start + end) for first, end in parts.tokens]
        return to_array(self.model.encoder.pool(encoded.last, slices, parts.pooling))

    def _show_maps(self, encoded: Encoded, rows: slice, work: Work) -> Maps | None:
        """Return the attention maps asked for of one sequence; None if none are."""
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
        """Return the outputs of one sequence's task heads, by name.

        Raises:
            NonFiniteOutput: a head, not the encoder, produced NaN or infinity.
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
        """Return the steps of one sequence through the layer to explain, by name; {} if none is."""
        layer, encoder = work.outputs.explained_layer, self._encoder_with(work.adapter)
        if layer is None:
            return {}
        # the bits of plain products depend on the number of threads; `run_batch` sets it again
        torch.set_num_threads(1)
        steps = explain_layer(encoder, layer, encoded.hidden[layer][rows])
        if work.outputs.weights:
            steps |= step_weights(encoder, layer)
        return {name: to_array(step) for name, step in steps.items()}


def _flush_denormals() -> None:
    """Have this thread round denormal numbers to 0: they take up to three times as long."""
    torch.set_flush_denormal(True)


def _first_non_finite(encoder: Encoder, packed: packing.Packed) -> int:
    """Encode a batch whose last state is not finite again; return its first state that is not."""
    last = encoder.config.layers
    hidden = encoder(packed, hidden=frozenset(range(last + 1))).hidden
    non_finite = (state for state in sorted(hidden) if not is_finite(hidden[state]))
    return next(non_finite, last)


def is_finite(rows: torch.Tensor) -> bool:
    """Tell whether no number is NaN or infinity; by minimum and maximum, which show either."""
    least, most = rows.aminmax()
    return bool(least.isfinite() & most.isfinite())


def _with_own_attention(traces: Mapping[int, Trace], encoder: Encoder) -> dict[int, Trace]:
    """Return traces with the attention weights of an encoder, that of one sequence's adapter."""
    return {i: replace(trace, attention=encoder.layers[i].attention) for i, trace in traces.items()}


def _copy_entry(encoded: Encoded, rows: slice, layer: int) -> packing.Entry:
    """Return a copy of what another pass of the sequence needs to begin inside a layer."""
    residual, mixed = encoded.hidden[layer][rows], encoded.traces[layer].z[rows]
    return packing.Entry(layer, residual.clone(), mixed.clone())


def _copy_states(
    encoded: Encoded, outputs: Sequence[Outputs]
) -> dict[int | None, dict[int, Array]]:
    """Return the hidden states to answer, (tokens, width), by state (None: last) and sequence."""
    packed = encoded.packed
    last = {None: _rows_by_sequence(encoded.last, packed, [each.tokens for each in outputs])}
    return last | {
        layer: _rows_by_sequence(state, packed, [layer in each.hidden for each in outputs])
        for layer, state in encoded.hidden.items()
    }


def _rows_by_sequence(
    state: torch.Tensor, packed: packing.Packed, returned: list[bool]
) -> dict[int, Array]:
    """Return the rows of a hidden state, (tokens, width), by the index of their sequence.

    Args:
        returned: of each sequence, whether its rows are returned.
    """
    indices = [index for index, is_returned in enumerate(returned) if is_returned]
    slices = [packed.rows(index) for index in indices]
    if state.device.type == "cpu" or not slices:
        return {index: to_array(state[rows]) for index, rows in zip(indices, slices, strict=True)}
    return dict(zip(indices, copy_together(state, slices), strict=True))


def copy_together(state: torch.Tensor, slices: Sequence[slice]) -> list[Array]:
    """Copy slices of a hidden state from the GPU at once, since each copy waits for it."""
    whole = to_array(torch.cat([state[rows] for rows in slices]))
    ends = list(accumulate(rows.stop - rows.start for rows in slices))
    return np.split(whole, ends[:-1])


def _to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Return tensors as arrays of the same dtype."""
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array; floating-point numbers as float32."""
    numbers = tensor.float() if tensor.is_floating_point() else tensor
    return numbers.cpu().numpy()
