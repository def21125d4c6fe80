"""The spine: one function shows every stage of an answer, in order.

`Gateway.encode` is what every route that encodes does. Everything before `batcher.submit` is
refusal without work.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from model import packing
from model.maps.forms import Asked
from model.pooling import Pooling
from service.api.teaching.spine import Lessons
from service.api.tei.vocabulary import Vocabulary
from service.encode import answer, maps
from service.encode.answer import Encoded
from service.encode.inputs import Read, Reader
from service.encode.plan import ask
from service.encode.price import Caps, attention_bytes, check, cost, flops
from service.encode.request import EncodeRequest, Pooled
from service.engine import machine, vitals
from service.engine.batcher import Batcher, DeadlinePassed, Overloaded, Timing
from service.engine.batches import Batches
from service.engine.health import Health
from service.engine.lanes import Done, Lanes, NonFiniteOutput, Wanted, Work
from service.engine.loading import load
from service.engine.machine import Unservable
from service.engine.proof import prove
from service.engine.weights import locate
from service.heads.store import Heads
from service.observe import lag
from service.observe.metrics import Metrics
from service.observe.observer import Observer
from service.observe.record import Record
from service.refusals import Fault, Refused
from service.settings import Settings

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing

logger = logging.getLogger(__name__)


class Gateway:
    """One replica's service: the model, the queue in front of it, and what is known of both.

    Args:
        replica: the name its metrics and answers carry.
    """

    def __init__(self, settings: Settings, replica: str) -> None:
        self.settings, self.replica = settings, replica
        self.metrics = Metrics(replica)
        self.writing = asyncio.Lock()  # of the one large answer that is being written
        self._health: Health | None = None  # until started

    async def start(self) -> None:
        """Load the weights, check them, start the lanes.

        Raises:
            Unservable, ModelNotFound, CheckpointError, NotTrustworthy: why it cannot serve.
        """
        settings = self.settings
        self._tracing = _tracing(settings, self.replica)
        began = time.perf_counter()
        found = locate(settings.model)
        self.name = settings.served_model_name or found.name
        device, dtype = machine.precision(settings)
        threads = settings.threads or machine.cores(settings.replicas)
        runner = await Lanes.start(partial(load, found, device, dtype), threads)
        proof = await prove(runner, found, device, dtype, settings.batch_tokens)
        model, config = runner.model, runner.model.config
        self.max_tokens = settings.max_tokens or model.max_tokens
        if self.max_tokens > config.max_tokens:
            raise Unservable(
                f"max_tokens {self.max_tokens} exceeds the model's {config.max_tokens} positions"
            )
        self._runner, self._proof, self._device = runner, proof, device
        self._config, self._revision = config, found.commit
        self._reader = Reader(
            model.tokenizer,
            config,
            self.max_tokens,
            settings.max_text_characters,
            settings.max_embedding,
            model.prompts,
        )
        self.vocabulary = Vocabulary(self._reader, settings)
        batches = Batches(runner.launch, self.metrics, self._tracing)
        runner.on_failure = batches.failed
        self._batcher = Batcher[Work, Done](
            batches,
            lanes=threads,
            budget=proof.budget,
            speed=proof.speed,
            cost=cache(partial(cost, config)),
            most_requests=settings.max_waiting_requests,
            most_tokens=settings.max_waiting_tokens,
        )
        self._dtype, loading = str(dtype).removeprefix("torch."), time.perf_counter() - began
        head, place = self.head(self._dtype), str(device)
        vitals.publish(self.metrics, settings, self._batcher, head, place, loading)
        digest, lines = runner.model.digest, settings.access_log
        self.observer = Observer(self.metrics, digest, self._tracing, lines=lines)
        self.lessons = Lessons(
            self.head("float32"), self._reader, self._run, settings.max_attention_json_bytes
        )
        self.heads = Heads(model, self.name, self._run, settings.deadline_seconds)
        self._health = Health(settings, proof, self._batcher, self.metrics)
        self._lag = asyncio.create_task(lag.watch(self.metrics.lagged))
        logger.info("started", extra={"weights": digest})

    async def close(self) -> None:
        """Let admitted work finish, stop the lanes."""
        if self._health:
            self._health.close()
            self._lag.cancel()
        self.heads.close()
        await self._batcher.drain()
        self._runner.close()
        self.observer.tell()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close)

    async def encode(
        self,
        asked: EncodeRequest,
        deadline: float,
        seen: Record,
        *,
        numbers: bool,
        padded: bool = False,
    ) -> Encoded:
        """Answer a request, whatever dialect it came in.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.
            numbers: whether the answer holds its arrays as JSON numbers.
            padded: whether it pads its arrays to the longest sequence; padding counts as tokens.

        Raises:
            Refused, SequenceError: what service/refusals.py gives a status.
        """
        seen.input = _kind(asked)
        read, works = await self._work(asked, seen)
        if padded:
            self._check_tokens(len(read) * max(map(len, read)))
        attention_bytes = self._price(asked, works, numbers, padded)
        done, timing = await self._run(works, [len(r) for r in read], deadline, seen)
        if asked.attention:
            heads = sum(len(h) for one in _shown(works) for h in one.heads.values())
            self.metrics.shown(asked.attention.form, heads, attention_bytes)
        # one at a time, when the answer has come so far: others have a turn between them
        items = (_item(asked, w, r, d) for w, r, d in zip(works, read, done, strict=True))
        usage = _usage(read, attention_bytes, timing)
        return Encoded(self.head(asked.dtype), items, usage)

    async def dry_run(
        self, asked: EncodeRequest, deadline: float, seen: Record, *, numbers: bool
    ) -> dict[str, Any]:
        """What a request would cost, and whether it would be admitted now; computes nothing.

        Raises:
            Refused, SequenceError: of a request that would never be answered.
        """
        seen.input = _kind(asked)
        read, works = await self._work(asked, seen)
        lengths, shown = [len(r) for r in read], _shown(works)
        told = {
            "tokens": sum(lengths),
            "attention_bytes": attention_bytes(shown),
            "flops": flops(self._config, lengths, shown),
        }
        try:
            self._price(asked, works, numbers)
            with self._admitting(lengths, deadline, seen):
                self._batcher.check(lengths, deadline)
        except Refused as refused:
            after = refused.retry_after
            return {**told, "admitted": False, "code": refused.code, "retry_after_s": after}
        return {**told, "admitted": True, "code": None, "retry_after_s": None}

    def head(self, dtype: str) -> dict[str, Any]:
        """What every answer says of the model that made it."""
        return {
            "model": self.name,
            "weights": self._runner.model.digest,
            "dtype": dtype,
            "numerics": self._proof.numerics,
        }

    def info(self) -> dict[str, Any]:
        """The body of GET /info."""
        config = self._config
        return {
            **self.head(self._dtype),
            "revision": self._revision,
            "family": config.family,
            "trained": self._runner.model.trained,
            "layers": config.layers,
            "heads": config.heads,
            "width": config.width,
            "embedding_width": config.embedding_width,
            "max_tokens": self.max_tokens,
            "pooling": "+".join(self._runner.model.pooling.modes),
            "prompts": sorted(self._runner.model.prompts.named),
            "default_prompt_name": self._runner.model.prompts.default,
            "device": str(self._device),
            "limits": self._limits(),
            "versions": {"headlight": version("headlight"), "torch": torch.__version__},
        }

    @property
    def pooled_width(self) -> int:
        """Numbers in a pooled vector of the checkpoint's own way."""
        return self._runner.model.pooling.size(self._config.width)

    def page(self, openmetrics: bool) -> bytes:
        """This replica's metrics; see Metrics.render."""
        self.observer.tell()
        return self.metrics.render(exemplars=openmetrics)

    def check_health(self) -> None:
        """Raise RuntimeError with the reason when the replica must not serve."""
        if self._health is None:
            raise RuntimeError("starting")
        self._health.check()

    def check_ready(self) -> None:
        """What check_health says, for clients.

        Raises:
            Refused: the replica must not serve; why stands in the log alone.
        """
        try:
            self.check_health()
        except RuntimeError:
            logger.warning("not ready", exc_info=True)
            raise Refused("not_ready", retry_after=1) from None

    def _wanted(self, asked: EncodeRequest) -> Wanted:
        """What the runner returns of each sequence."""
        if asked.model is not None and asked.model != self.name:
            raise Refused("model_not_found", [Fault(("model",), "model_not_found")])
        config = self._config
        try:
            hidden = asked.hidden(config.layers)
        except IndexError:
            raise _out_of_range("layers", limit=config.layers) from None
        return Wanted(self._pooling(asked.pooled), asked.tokens, hidden)

    async def _work(self, asked: EncodeRequest, seen: Record) -> tuple[list[Read], list[Work]]:
        """The inputs as sequences, and what is wanted of each."""
        wanted, (heads, gates) = self._wanted(asked), self._heads(asked)
        with seen.stage("tokenize"):
            read = await self._read(asked)
        seen.sequences, seen.tokens = len(read), sum(map(len, read))
        shown: Sequence[Asked | None] = [None] * len(read)
        if asked.attention:
            shown = ask(asked.attention, heads, read, self._runner.model.tokenizer)
        works = [
            Work(_sequence(r, gates), replace(wanted, attention=one))
            for r, one in zip(read, shown, strict=True)
        ]
        return read, works

    def _heads(
        self, asked: EncodeRequest
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, dict[int, float]]]:
        """The heads to show, and the heads to scale, by layer."""
        limits = {"layers": self._config.layers, "heads": self._config.heads}
        try:
            shown = asked.attention.resolve(**limits) if asked.attention else {}
        except IndexError:
            raise _out_of_range("attention", **limits) from None
        try:
            return shown, asked.scales(**limits)
        except IndexError:
            raise _out_of_range("gates", **limits) from None

    def _pooling(self, asked: bool | Pooled) -> Pooling | None:
        own = self._runner.model.pooling
        if isinstance(asked, bool):
            return own if asked else None
        normalize = own.normalize if asked.normalize is None else asked.normalize
        # the checkpoint's Dense layers are made for its own reduction and for no other
        how = own if asked.mode == "model" else Pooling((asked.mode,), normalize)
        size = how.size(self._config.width)
        if asked.dimensions is not None and asked.dimensions > size:
            at = [Fault(("pooled", "dimensions"), "out_of_range")]
            raise Refused("out_of_range", at, limit=size)
        return replace(how, normalize=normalize, dimensions=asked.dimensions)

    async def _read(self, asked: EncodeRequest) -> list[Read]:
        """The inputs as sequences, within the limits of a request."""
        if not asked.inputs:
            raise Refused("batch_empty", [Fault(("inputs",), "batch_empty")])
        if len(asked.inputs) > self.settings.max_sequences:
            raise Refused("batch_too_large", limit=self.settings.max_sequences)
        shown = bool(asked.tokens or asked.layers or asked.attention)
        read = await self._reader.read(
            asked.items, asked.truncate, shown=shown, prompt_name=asked.prompt_name
        )
        self._check_tokens(sum(map(len, read)))
        return read

    def _check_tokens(self, tokens: int) -> None:
        limit = self.settings.max_request_tokens
        if tokens > limit:
            raise Refused("too_many_tokens", tokens=tokens, limit=limit)

    def _price(
        self, asked: EncodeRequest, works: Sequence[Work], numbers: bool, padded: bool = False
    ) -> int:
        """Bytes of attention in the answer, refused when too many."""
        if asked.attention is None:
            return 0
        caps = Caps(self.settings.max_attention_json_bytes, self.settings.max_attention_bytes)
        return check(_shown(works, padded), numbers, caps)

    async def _run(
        self,
        works: Sequence[Work],
        sizes: Sequence[int],
        deadline: float,
        seen: Record | None = None,
    ) -> tuple[list[Done], Timing]:
        """Wait for the batches that hold these sequences.

        Args:
            seen: the request they are of; None for what nobody asked for.
        """
        seen = seen or Record("own")
        works = [replace(work, record=seen) for work in works]
        try:
            with seen.batched(), self._admitting(sizes, deadline, seen):
                async with asyncio.timeout(deadline - time.monotonic()):
                    done = await self._batcher.submit(works, sizes, deadline)
        except asyncio.CancelledError:
            self.metrics.cancelled("forward" if seen.began else "queue")
            raise
        except NonFiniteOutput as error:
            raise Refused("nonfinite_output", layer=error.layer, dtype=self._dtype) from None
        self.metrics.encoded(sum(sizes))
        return done

    @contextmanager
    def _admitting(self, sizes: Sequence[int], deadline: float, seen: Record) -> Iterator[None]:
        """Word what the batcher does not admit, or not in time.

        A client may come again with what is late because others wait; what is late by itself
        would be late for ever, and is refused like any other request that cannot be served. That
        is said of all the time it was given, at the best speed, so that neither a slow moment of
        this machine nor what reading it took makes it so.
        """
        try:
            yield
        except (Overloaded, DeadlinePassed, TimeoutError) as error:
            most = deadline - time.monotonic() + seen.elapsed
            fewest = self._batcher.fewest_seconds(sizes)
            if fewest >= most:
                raise Refused(
                    "deadline_unreachable",
                    estimate_ms=math.ceil(fewest * 1000),
                    deadline_ms=math.floor(most * 1000),
                ) from None
            if not isinstance(error, Overloaded):
                raise Refused("deadline_exceeded") from None
            seen.shed = error.bound
            raise Refused("overloaded", retry_after=1 + int(error.retry_after)) from None

    def _limits(self) -> dict[str, Any]:
        limits = self.settings.model_dump(
            include={name for name in type(self.settings).model_fields if name.startswith("max_")}
            | {"deadline_seconds"}
        )
        return {**limits, "max_tokens": self.max_tokens, "batch_tokens": self._batcher.budget}


def _tracing(settings: Settings, replica: str) -> "Tracing | None":
    """The spans' way out, where they are asked for."""
    if settings.tracing is None:
        return None
    from service.observe import tracing

    try:
        return tracing.Tracing(settings.tracing, settings.tracing_ratio, replica)
    except (tracing.CannotTrace, OSError) as error:
        raise Unservable(str(error)) from error


def _kind(asked: EncodeRequest) -> str:
    """The kind of a request's inputs, as the metrics' label."""
    kinds = {item.kind for item in asked.items}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def _sequence(read: Read, gates: Mapping[int, Mapping[int, float]]) -> packing.Sequence:
    embeddings = None if read.embeddings is None else torch.from_numpy(read.embeddings)
    return packing.Sequence(read.token_ids, read.types, embeddings, gates)


def _out_of_range(field: str, **limits: int) -> Refused:
    return Refused("index_out_of_range", [Fault((field,), "index_out_of_range")], **limits)


def _shown(works: Sequence[Work], padded: bool = False) -> list[Asked]:
    """What is to be shown of each sequence's attention; padded, of as many like the longest."""
    works = [max(works, key=len)] * len(works) if padded else works
    return [work.wanted.attention for work in works if work.wanted.attention]


def _item(asked: EncodeRequest, work: Work, read: Read, done: Done) -> answer.Item:
    """One sequence's share of the answer."""

    def cast(array: answer.Array, layer: int = -1) -> answer.Array:
        try:
            return answer.cast(array, asked.dtype)
        except answer.NotFinite:
            raise Refused("nonfinite_output", layer=layer, dtype=asked.dtype) from None

    item = answer.Item(
        len(read),
        facts={**read.facts, "truncated": len(read) < read.length, "length": read.length},
        pooled=None if done.pooled is None else cast(done.pooled),
        tokens=None if done.tokens is None else cast(done.tokens),
        layers={layer: cast(array, layer) for layer, array in done.hidden.items()},
    )
    if asked.attention is None or work.wanted.attention is None or done.attention is None:
        return item
    one, shown = work.wanted.attention, done.attention
    return replace(
        item,
        attention=maps.facts(one, shown.path),
        shown=maps.tree(one, shown, asked.encoding),
        named=dict(maps.named(one, shown)),
    )


def _usage(read: Sequence[Read], attention_bytes: int, timing: Timing) -> dict[str, Any]:
    return {
        "tokens": sum(map(len, read)),
        "attention_bytes": attention_bytes,
        "queue_ms": round(timing.queued * 1000, 3),
        "compute_ms": round(timing.computed * 1000, 3),
    }
