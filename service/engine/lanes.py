"""The lanes: threads that pack sequences, run them as a batch and split the results.

A lane is one thread. Lane 0 loads the model and may use several cores; every other lane uses one.
The compiled pass shares them out itself (model/native/team.h). What opens an OpenMP region, the
loop and large batches, does so in lane 0 alone: a second thread that opens one makes libgomp stop
spinning, and doubles the time of a short sentence.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from model import packing
from model.adapters import mix_adapters
from model.decider import Decider, decide_together
from model.encoder import Encoded, Encoder
from model.kernels import HAS_NEON, PlainLinear
from model.loading.checkpoint import Model
from model.pooling import Pooling
from model.steady import without_idle_threads
from model.task_heads import Classifier, TaskHead
from service.engine.arrays import NonFiniteOutput, copy_finite, copy_states, name_arrays
from service.shapes.work import Array, Outputs, Result, Work

logger = logging.getLogger(__name__)

T = TypeVar("T")
# a name, the indices of sequences in the batch, and what is made of each, (indices, ..)
Made = tuple[str, Sequence[int], torch.Tensor]


class ProcessBroken(Exception):
    """Results of this process can no longer be trusted."""


def breaks_process(error: Exception) -> bool:
    """Tell whether an error of the accelerator leaves the process unusable."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


class Lanes:
    """A loaded model and the threads that run it.

    Args:
        threads: one per lane.
        clocks: of each thread's processor time, by its lane, once it has begun.

    Attributes:
        alone: whether each sequence runs in a forward pass of its own, on one core.
        on_failure: called in the lane's thread with each error of a batch, also if the batch is
            then split and a part of it succeeds.
    """

    def __init__(
        self,
        model: Model,
        threads: Sequence[ThreadPoolExecutor],
        clocks: Mapping[int, int] | None = None,
    ) -> None:
        self.model, self._threads, self.alone = model, threads, False
        self._clocks = {} if clocks is None else clocks
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def start(cls, load: Callable[[], Model], count: int) -> "Lanes":
        """Start `count` lanes, with the model that `load` returns, called in lane 0."""
        clocks = dict[int, int]()
        threads = [
            ThreadPoolExecutor(1, f"lane-{i}", _begin_lane, (clocks, i)) for i in range(count)
        ]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads[0], torch.set_num_threads, count)
        return cls(await loop.run_in_executor(threads[0], load), threads, clocks)

    def __len__(self) -> int:
        return len(self._threads)

    def arithmetic_of(self, adapter: str | None) -> str:
        """Return the name of the kernels that compute with an adapter; see numerics.py."""
        return self._encoder_with(adapter).arithmetic + ("+alone" if self.alone else "")

    def processor_seconds(self, lane: int) -> float:
        """Return the processor time that a lane's thread has had; any thread may ask."""
        clock = self._clocks.get(lane)
        return 0.0 if clock is None else time.clock_gettime(clock)

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
            encoded = encoder(packed)
            vectors = self._pool_indices(encoded, range(len(outputs)), pooling)
            (arrays,) = copy_finite(encoder, encoded, [vectors])
            return [Result(vector) for vector in arrays]
        encoded = encoder(
            packed,
            hidden=frozenset().union(*(each.states for each in outputs)),
            traces=frozenset().union(*(each.traces for each in outputs)),
        )
        answers = self._answer_sequences(encoder, encoded, outputs)
        states = copy_states(encoded, outputs)
        return [
            self._cut_result(encoded, i, work, answers[i], states) for i, work in enumerate(works)
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

    def _answer_sequences(
        self, encoder: Encoder, encoded: Encoded, outputs: Sequence[Outputs]
    ) -> list[dict[str, Array]]:
        """Return what is made of each sequence's last state, by name: all is copied together.

        Raises:
            NonFiniteOutput: an output, or the last state, has NaN or infinity.
        """
        made = [*self._pool_sequences(encoded, outputs), *self._apply_task_heads(encoded, outputs)]
        arrays = copy_finite(encoder, encoded, [numbers for _, _, numbers in made])
        answers: list[dict[str, Array]] = [{} for _ in outputs]
        for (name, indices, _), array in zip(made, arrays, strict=True):
            for index, each in zip(indices, array, strict=True):
                answers[index][name] = each
        return answers

    def _pool_sequences(self, encoded: Encoded, outputs: Sequence[Outputs]) -> Iterator[Made]:
        """Yield "pooled" of the sequences with a pooling."""
        by_pooling = defaultdict[Pooling, list[int]](list)
        for index, each in enumerate(outputs):
            if each.pooling:
                by_pooling[each.pooling].append(index)
        for pooling, indices in by_pooling.items():
            yield "pooled", indices, self._pool_indices(encoded, indices, pooling)

    def _pool_indices(
        self, encoded: Encoded, indices: Sequence[int], pooling: Pooling
    ) -> torch.Tensor:
        """Pool the sequences with these indices in the batch, to (indices, size)."""
        rows = [encoded.packed.rows(index) for index in indices]
        return self.model.encoder.pool(encoded.last, rows, pooling)

    def _apply_task_heads(self, encoded: Encoded, outputs: Sequence[Outputs]) -> Iterator[Made]:
        """Yield the outputs of task heads by name.

        A GPU classifies all sequences at once. A processor applies a head to one at a time, so
        that it has the same bits in any batch. Questions go through their head's layers together,
        which keep bits as the encoder's do.
        """
        last, by_head = encoded.last, defaultdict[TaskHead, list[int]](list)
        deciding = list[tuple[int, Decider]]()
        for index, each in enumerate(outputs):
            for head in each.task_heads:
                if isinstance(head, Decider):
                    deciding.append((index, head))
                else:
                    by_head[head].append(index)
        plain = self.model.encoder.kernels.linear is PlainLinear
        with without_idle_threads() if plain else nullcontext():
            if deciding:
                tokens = [last[encoded.packed.rows(index)] for index, _ in deciding]
                decided = decide_together([head for _, head in deciding], tokens)
                for (index, _), logits in zip(deciding, decided, strict=True):
                    yield "logits", [index], logits[None]
            for head, indices in by_head.items():
                rows = [encoded.packed.rows(index) for index in indices]
                if isinstance(head, Classifier) and last.device.type != "cpu":
                    for name, numbers in head.classify_together(last, rows).items():
                        yield name, indices, numbers
                    continue
                for index, own in zip(indices, rows, strict=True):
                    for name, numbers in head(last[own]).items():
                        yield name, [index], numbers[None]

    def _cut_result(
        self,
        encoded: Encoded,
        index: int,
        work: Work,
        answers: dict[str, Array],
        states: Mapping[int | None, Mapping[int, Array]],
    ) -> Result:
        """Return one sequence's part of an encoded batch, as arrays.

        Args:
            index: of the sequence in the batch.
            answers: of `_answer_sequences`.
            states: as `copy_states` returns them.
        """
        rows, outputs = encoded.packed.rows(index), work.outputs
        return Result(
            pooled=answers.pop("pooled", None),
            task=answers,
            tokens=states[None].get(index),
            hidden={layer: states[layer][index] for layer in sorted(outputs.hidden)},
            made=self._run_probes(encoded, rows, work),
            kept={layer: _copy_entry(encoded, rows, layer) for layer in outputs.kept},
        )

    def _run_probes(self, encoded: Encoded, rows: slice, work: Work) -> dict[str, Any]:
        """Return what each probe of one sequence makes, by the probe's name.

        Raises:
            NonFiniteOutput: it has NaN or infinity where it must not.
        """
        encoder, made = self._encoder_with(work.adapter), dict[str, Any]()
        for probe in work.outputs.probes:
            if probe.one_core:
                torch.set_num_threads(1)  # until `run_batch` sets it again
            made[probe.name] = name_arrays(probe.run(encoder, encoded, rows, work.sequence))
            if probe.finite and not np.isfinite(made[probe.name]).all():
                raise NonFiniteOutput(encoder.config.layers)
        return made


def _begin_lane(clocks: dict[int, int], lane: int) -> None:
    """Prepare a lane's thread, which calls this first, and add the clock of its processor time."""
    # denormal numbers would take up to three times as long on x86; on arm64 that makes torch's GELU
    # by tanh wrong (docs/decisions/0037-arm64.md)
    torch.set_flush_denormal(not HAS_NEON)
    clocks[lane] = time.pthread_getcpuclockid(threading.get_ident())


def _copy_entry(encoded: Encoded, rows: slice, layer: int) -> packing.Entry:
    """Return a copy of what another pass of the sequence needs to begin inside a layer."""
    residual, mixed = encoded.hidden[layer][rows], encoded.traces[layer].z[rows]
    return packing.Entry(layer, residual.clone(), mixed.clone())
