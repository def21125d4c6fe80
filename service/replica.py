"""One replica's life: its parts made, proved, closed."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from model.loading.checkpoint import Model
from service.api.teaching.lessons import Lessons
from service.api.vocabulary import Vocabulary
from service.encode.admission import Admission
from service.encode.answer import Identity
from service.encode.aside import Aside
from service.encode.encoding import Encodings
from service.encode.gateway import Ending, Gateway
from service.encode.inputs import Reader
from service.encode.likeness import Likenesses
from service.encode.maxsim import Maxsims
from service.encode.plan import Planner
from service.encode.price import cost, costs
from service.encode.request import Encoding, Likeness, Maxsim
from service.engine import machine, vitals
from service.engine.batcher import Batcher
from service.engine.fair.rotation import Lock
from service.engine.health import Health
from service.engine.lanes import Batches, Lanes
from service.engine.loading import load
from service.engine.machine import Unservable
from service.engine.proof import Proof, prove
from service.engine.weights import Source, locate
from service.engine.work import Result, Work
from service.heads.sentences import some
from service.heads.store import Heads
from service.keys import STALE_SECONDS, Key, Limits, Ring, follow_keys, tenants
from service.memory import PROCESS
from service.observe import logs
from service.observe.metrics import Metrics
from service.observe.observer import Observer, loop_clock, watch_lag
from service.refusals import Refused
from service.settings import Settings

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing

logger = logging.getLogger(__name__)

STALE = (
    f"1 while a replica's API keys are not known to be those of their file: for {STALE_SECONDS:g} s"
    " it could not be used, or not be read."
)
PLAIN = (
    "the checkpoint does not say how token vectors become one: they are pooled by the mean and not"
    " normalised, unless a request asks otherwise"
)


@dataclass(kw_only=True, eq=False, repr=False)
class Replica:
    """What a replica is made of; `Replica.start` makes one.

    Args:
        label: the name its metrics and answers carry.
        source: where the model's files lie.
        device: it runs on, and dtype: its number format, as answers name them.
        loop_seconds: that the event loop has computed, asked in any thread.
        writing: of the one large answer that is being written.
        ring: the keys that let in now, and shared: those among which there is sharing.
    """

    settings: Settings
    label: str
    source: Source
    identity: Identity
    device: str
    dtype: str
    lanes: Lanes
    proof: Proof
    batcher: Batcher[Work, Result]
    admission: Admission
    reader: Reader
    gateway: Gateway
    lessons: Lessons
    vocabulary: Vocabulary
    heads: Heads
    health: Health
    metrics: Metrics
    observer: Observer
    tracing: "Tracing | None"
    lagging: asyncio.Task[None]
    loop_seconds: Callable[[], float]
    writing: Lock
    ring: Ring
    shared: tuple[Key, ...]

    @classmethod
    async def start(cls, settings: Settings, label: str) -> "Replica":
        """Load the weights, check them, start the lanes.

        Raises:
            Unservable, ModelNotFound, CheckpointError, NotTrustworthy, Unusable: why it cannot
                serve.
        """
        ring = follow_keys(settings.api_keys, settings.api_keys_file)
        shared = ring.keys
        began, tracing = time.perf_counter(), _tracing(settings, label)
        metrics = Metrics(label, tenants(shared))
        if settings.api_keys_file:
            metrics.watch("keys_stale", STALE, lambda: float(ring.stale))
        logs.on_loss(metrics.line_lost)
        source = locate(settings.model)
        device, kind = machine.precision(settings)
        machine.same_bits(settings)
        count = machine.lanes(settings, device)
        lanes = await Lanes.start(partial(load, source, device, kind), count)
        proving = partial(prove, lanes, source, device, kind, settings.batch_tokens)
        texts = [] if settings.untrained else some()
        proof = await lanes.call(0, partial(proving, settings.require_same_bits, texts))
        model, dtype = lanes.model, str(kind).removeprefix("torch.")
        identity = Identity(settings.served_model_name or source.name, model.digest, proof.numerics)
        reader = _reader(settings, model, Aside(settings.max_waiting_characters))
        batches = Batches(lanes.launch, metrics, tracing)
        lanes.on_failure = batches.failed
        batcher = _batcher(settings, lanes, proof, batches, tenants(shared))
        admission = Admission(batcher, metrics, dtype)
        head, loading = identity.preamble(dtype), time.perf_counter() - began
        vitals.publish(metrics, settings, batcher, head, str(device), loading)
        if model.trained and not model.own_pooling:
            logger.warning(PLAIN)
        logger.info("started", extra={"weights": model.digest})
        return cls(
            settings=settings,
            label=label,
            source=source,
            identity=identity,
            device=str(device),
            dtype=dtype,
            lanes=lanes,
            proof=proof,
            batcher=batcher,
            admission=admission,
            reader=reader,
            gateway=_gateway(settings, identity, model, reader, admission, metrics),
            lessons=_lessons(settings, identity, reader, admission),
            vocabulary=Vocabulary(reader, admission, settings),
            heads=Heads(model, identity.model, admission.run, settings.deadline_seconds),
            health=Health(settings, proof, batcher, batches, metrics),
            metrics=metrics,
            observer=_observer(settings, metrics, model, tracing),
            tracing=tracing,
            lagging=asyncio.create_task(watch_lag(metrics.lagged)),
            loop_seconds=loop_clock(),
            writing=Lock(),
            ring=ring,
            shared=shared,
        )

    def share(self) -> None:
        """Share among the keys that let in now; a name that stays keeps what it has and has had."""
        if self.shared is not self.ring.keys:
            self.shared = self.ring.keys
            limits = tenants(self.shared)
            self.metrics.follow(limits)
            self.batcher.follow(limits)

    async def close(self) -> None:
        """Let admitted work finish, stop the lanes."""
        self.health.close()
        self.lagging.cancel()
        self.heads.close()
        await self.batcher.drain()
        self.lanes.close()
        self.observer.tell()
        self.observer.sum_up()
        if self.tracing:
            await asyncio.to_thread(self.tracing.close)

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.identity.model

    @property
    def pooled_width(self) -> int:
        """Numbers in a pooled vector of the checkpoint's own way."""
        return self.lanes.model.pooling.size(self.lanes.model.config.width)

    def info(self) -> dict[str, Any]:
        """What GET /info says of the model and the limits."""
        model, config = self.lanes.model, self.lanes.model.config
        return {
            **self.identity.preamble(self.dtype),
            "revision": self.source.commit,
            "family": config.family,
            "trained": model.trained,
            "tasks": model.tasks,
            "layers": config.layers,
            "heads": config.heads,
            "width": config.width,
            "embedding_width": config.embedding_width,
            "max_tokens": self.reader.max_tokens,
            "pooling": "+".join(model.pooling.modes),
            "normalize": model.pooling.normalize,
            "pooling_from": "checkpoint" if model.own_pooling else "default",
            "prompts": sorted(model.prompts.texts),
            "default_prompt_name": model.prompts.default,
            "device": self.device,
            "limits": self._limits(),
            "versions": {"headlight": version("headlight"), "torch": torch.__version__},
        }

    def page(self, openmetrics: bool) -> bytes:
        """This replica's metrics; see Metrics.render."""
        self.observer.tell()
        self.metrics.cut_off(PROCESS.cut_off)
        self.metrics.looped(self.loop_seconds())
        return self.metrics.render(exemplars=openmetrics)

    def trust(self) -> None:
        """Let a request pass, or its answer.

        Raises:
            Refused: this replica knows itself wrong; why stands in the log alone.
        """
        if self.health.fault:
            raise Refused("not_ready", retry_after=1)

    def check_health(self) -> None:
        """Raise RuntimeError when Ray must replace this replica; why stands in the log."""
        try:
            self.health.check()
        except RuntimeError as error:
            logger.warning("not ready", extra={"reason": str(error)})
            raise

    def check_ready(self) -> None:
        """What `check_health` says, for clients.

        Raises:
            Refused: the replica must not serve; why stands in the log alone.
        """
        try:
            self.check_health()
        except RuntimeError:
            raise Refused("not_ready", retry_after=1) from None

    def _limits(self) -> dict[str, Any]:
        names = {name for name in type(self.settings).model_fields if name.startswith("max_")}
        names -= {"max_replicas"}  # no bound of a request's
        return {
            **self.settings.model_dump(include=names | {"deadline_seconds"}, exclude_none=True),
            "max_tokens": self.reader.max_tokens,
            "batch_tokens": self.batcher.budget,
        }


def _reader(settings: Settings, model: Model, aside: Aside) -> Reader:
    """What reads inputs, within the model's positions."""
    machine.positions(settings, model.config)
    machine.filled(settings, model.task_head)
    return Reader(
        model.tokenizer,
        model.config,
        settings.max_tokens or model.max_tokens,
        settings.max_text_characters,
        settings.max_embedding,
        model.prompts,
        aside,
    )


def _gateway(
    settings: Settings,
    identity: Identity,
    model: Model,
    reader: Reader,
    admission: Admission,
    metrics: Metrics,
) -> Gateway:
    planner = Planner(identity.model, model, reader, settings)
    aside, width = Aside(settings.max_waiting_requests), model.config.width
    endings: dict[type, Ending] = {
        Encoding: Encodings(model.config),
        Likeness: Likenesses(model.pooling, width, aside),
        Maxsim: Maxsims(aside),
    }
    return Gateway(identity, model.config, planner, admission, settings, metrics, endings)


def _lessons(
    settings: Settings, identity: Identity, reader: Reader, admission: Admission
) -> Lessons:
    return Lessons(identity.preamble("float32"), reader, admission, settings.max_answer_json_bytes)


def _batcher(
    settings: Settings,
    lanes: Lanes,
    proof: Proof,
    batches: Batches,
    limits: Mapping[str, Limits],
) -> Batcher[Work, Result]:
    """The queue in front of the lanes, each batch counted and traced."""
    config = lanes.model.config
    return Batcher[Work, Result](
        batches,
        lanes=len(lanes),
        budget=proof.budget,
        speed=proof.speed,
        cost=costs(config, cache(partial(cost, config))),
        small=proof.small,
        most_requests=settings.max_waiting_requests,
        most_tokens=settings.max_waiting_tokens,
        limits=limits,
    )


def _observer(
    settings: Settings, metrics: Metrics, model: Model, tracing: "Tracing | None"
) -> Observer:
    lines, ratio = settings.access_log, settings.access_log_ratio
    return Observer(metrics, model.digest, tracing, lines=lines, ratio=ratio)


def _tracing(settings: Settings, label: str) -> "Tracing | None":
    """The spans' way out, where they are asked for."""
    if settings.tracing is None:
        return None
    from service.observe import tracing

    try:
        trusting = settings.tracing_trust_parent
        return tracing.Tracing(settings.tracing, settings.tracing_ratio, label, trusting=trusting)
    except (tracing.CannotTrace, OSError) as error:
        raise Unservable(str(error)) from error
