"""One replica of the service: its parts are made, proved and closed here."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from model.loading.checkpoint import Model
from model.loading.files import find_adapters
from model.loading.formats.bge_m3 import find_unread_pickles
from model.loading.modules import has_task_adapters
from service import VERSION
from service.engine import vitals
from service.engine.batcher import Batcher
from service.engine.fair.rotation import FairRoom
from service.engine.lanes import Lanes
from service.engine.recorded import RecordedBatches
from service.files.loading import find_foreign_adapters, load_model
from service.files.weights import ModelSource, locate_model
from service.heads.samples import sample_texts
from service.heads.sentences import pick_evenly
from service.heads.store import StoredSurvey
from service.observe import logs
from service.observe.families import Objective
from service.observe.metrics import Metrics
from service.observe.observer import Observer, make_loop_clock
from service.pipeline.admission import Admission
from service.pipeline.cost import make_cost_counter
from service.pipeline.find.resolver import Resolver
from service.pipeline.gateway import Gateway
from service.pipeline.reader import MOST_EMBEDDING, MOST_TEXT_CHARACTERS, Reader
from service.pipeline.space import Spaces
from service.pipeline.worker import Worker
from service.proof import machine
from service.proof.health import Health
from service.proof.machine import Unservable
from service.proof.numerics import ROUNDING_BOUNDS
from service.proof.proof import prove_lanes
from service.shapes.answer import Identity
from service.shapes.price import MOST_ARRAYS
from service.shapes.work import Result, Work
from service.tables.keyring import STALE_SECONDS, follow_keys
from service.tables.keys import limits_by_name
from service.tables.memory import PROCESS
from service.tables.refusals import Refused
from service.tables.settings import Settings

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing

logger = logging.getLogger(__name__)

STALE_WARNING = (
    f"1 while a replica's API keys are not known to be those of their file: for {STALE_SECONDS:g} s"
    " it could not be used, or not be read."
)
PLAIN_WARNING = (
    "the checkpoint does not say how token vectors become one: pooling is %s, and nothing is"
    " normalised, unless a request asks otherwise"
)
UNAPPLIED_WARNING = (
    "adapters in the checkpoint's folder are not applied, and answers are those without them: %s"
)
UNTASKED_WARNING = (
    "the checkpoint's own code asks for a task each time: here a request without one is answered"
    " with the plain weights"
)
UNREAD_WARNING = (
    "the checkpoint's pickles are not read; `headlight convert` makes them safetensors: %s"
)
TOKENIZER_WARNING = "tokenizer.json is read as it is, and transformers may read texts otherwise: %s"


class Replica:
    """A replica: model, batcher, gateway and all else that answers; made by `Replica.start`.

    Args:
        label: the name its metrics and answers carry.
        kept: a folder for digests of the last good keys (keyring.py); None: none are kept.
    """

    def __init__(self, settings: Settings, label: str, kept: Path | None = None) -> None:
        self.settings, self.label = settings, label
        self.ring = ring = follow_keys(settings.api_keys, settings.api_keys_file, kept)
        self.shared = ring.keys  # whose limits batcher and metrics have now
        self.tracing = _start_tracing(settings, label)
        self.source = locate_model(settings.model, settings.adapter)
        name = settings.served_model_name or self.source.name
        objective = Objective(settings.objective_seconds, settings.objective_tokens)
        self.metrics = Metrics(label, name, limits_by_name(self.shared), objective)
        if settings.api_keys_file:
            self.metrics.add_gauge("keys_stale", STALE_WARNING, lambda: float(ring.stale))
        logs.count_losses(self.metrics.line_lost)

    @classmethod
    async def start(cls, settings: Settings, label: str, kept: Path | None = None) -> "Replica":
        """Return a replica that serves: its weights are loaded and proved, its lanes started.

        Raises:
            Unservable, ModelNotFound, CheckpointError, NotTrustworthy, UnusableKeys: why it
                cannot serve.
        """
        replica = cls(settings, label, kept)
        await replica.load_model()
        return replica

    async def load_model(self) -> None:
        """Load the weights, prove them, and make the parts that need them; raises as `start`."""
        settings = self.settings
        device, kind = machine.choose_precision(settings)
        machine.check_same_bits(settings)
        count = machine.count_lanes(settings, device)
        self.lanes = await Lanes.start(partial(load_model, self.source, device, kind), count)
        proving = partial(prove_lanes, self.lanes, self.source, kind, settings.batch_tokens)
        # where bfloat16 was chosen by hand: a start on a GPU would wait for the CPU's float32
        compared = sample_texts() if settings.dtype == "bfloat16" else []
        proving = partial(proving, settings.require_same_bits, pick_evenly(), compared)
        self.proof = await self.lanes.call_in_lane(0, proving)
        self.device, self.dtype = str(device), str(kind).removeprefix("torch.")
        self._make_parts()

    def _make_parts(self) -> None:
        """Make the parts that need the model."""
        settings, metrics, lanes, model = self.settings, self.metrics, self.lanes, self.lanes.model
        name = settings.served_model_name or self.source.name
        self.identity = Identity(name, model.digest, self.proof.numerics)
        preamble = self.identity.preamble(self.dtype)
        batches = RecordedBatches(lanes.run_in_lane, metrics, self.tracing)
        lanes.on_failure = batches.note_failure
        self.batcher = Batcher[Work, Result](
            batches,
            lanes=len(lanes),
            budget=self.proof.budget,
            speed=self.proof.speed,
            costs=make_cost_counter(model.config, model.adapters, self.proof.speed / len(lanes)),
            small=self.proof.small,
            most_requests=settings.max_waiting_requests,
            most_tokens=settings.max_waiting_tokens,
            limits=limits_by_name(self.shared),
            processor_seconds=lanes.processor_seconds,
        )
        self.admission = admission = Admission(self.batcher, metrics, settings, self.dtype)
        self.reader = _make_reader(settings, model, admission.texts)
        vitals.publish_vitals(metrics, self.batcher, preamble, self.device)
        _warn_of_unread(self.source, model)
        logger.info("started", extra={"weights": model.digest})
        self.released = self.source.released  # the date of the weights
        self.identities: dict[str | None, Identity] = {None: self.identity}
        for name, adapter in model.adapters.items():
            numerics = self.proof.adapted[name]
            self.identities[name] = self.identity.adapted(name, adapter.digest, numerics)
        self.gateway = self._make_gateway()
        self.heads = StoredSurvey(model, self.name, admission.run_own, settings.deadline_seconds)
        self.health = Health(settings, self.proof, self.batcher, batches, metrics)
        self.observer = Observer(metrics, model.digest, self.tracing, lines=settings.access_log)
        self.loop_seconds = make_loop_clock()  # returns the seconds that the event loop computed
        self.writing = FairRoom()  # held while a large answer is written, one at a time

    def _make_gateway(self) -> Gateway:
        """Return the gateway to the model, and set `spaces`."""
        settings, model = self.settings, self.lanes.model
        bound = ROUNDING_BOUNDS[getattr(torch, self.dtype)]
        resolver = Resolver(self.name, model, settings)
        self.spaces = Spaces(resolver, self.reader, self.dtype, bound)
        parts = self.identities, self.reader, resolver, self.admission, settings
        return Gateway(*parts, self.spaces)

    def apply_key_limits(self) -> None:
        """Give batcher and metrics the limits of the keys that are valid now, if they changed."""
        if self.shared is not self.ring.keys:
            self.shared = self.ring.keys
            limits = limits_by_name(self.shared)
            self.metrics.set_keys(limits)
            self.batcher.set_limits(limits)

    async def close(self) -> None:
        """Finish admitted work, then stop the lanes and export what is left to report."""
        self.health.close()
        self.heads.close()
        await self.batcher.drain()
        self.lanes.close()
        self.observer.report()
        self.observer.log_summaries()
        if self.tracing:
            await asyncio.to_thread(self.tracing.close)

    @property
    def name(self) -> str:
        """Return what clients call the model."""
        return self.identity.model

    @property
    def pooled_width(self) -> int:
        """Return the length of a vector pooled in the checkpoint's own way."""
        return self.lanes.model.pooling.vector_size(self.lanes.model.config.width)

    def info(self) -> dict[str, Any]:
        """Return the answer of GET /info: facts of the model, and the limits."""
        model, config = self.lanes.model, self.lanes.model.config
        certificate = self.proof.certificate
        return {
            **self.identity.preamble(self.dtype),
            "revision": self.source.commit,
            "family": config.family,
            "trained": model.trained,
            "tasks": model.tasks,
            "adapters": self.gateway.names.every[1:],
            **self.spaces.facts(),
            "layers": config.layers,
            "heads": config.heads,
            "width": config.width,
            "embedding_width": config.embedding_width,
            "max_tokens": self.reader.max_tokens,
            "truncate": self.settings.truncate or "refuse",
            "pooling": "+".join(model.pooling.modes),
            "normalize": model.pooling.normalize,
            "pooling_from": "checkpoint" if model.states_pooling else "default",
            "prompts": sorted(model.prompts.texts),
            "default_prompt_name": model.prompts.default,
            "device": self.device,
            **({"certificate": certificate.facts()} if certificate else {}),
            "limits": self._limits(),
            "versions": {"headlight": VERSION, "torch": torch.__version__},
        }

    def freeze_metrics(self, openmetrics: bool) -> Callable[[], bytes]:
        """Return what writes this replica's metrics in any thread; see Metrics.freeze."""
        self.apply_key_limits()
        self.observer.report()
        self.metrics.readers_cut_off[()] = PROCESS.cut_off
        self.metrics.loop_seconds[()] = self.loop_seconds()
        return self.metrics.freeze(exemplars=openmetrics)

    def check_health(self) -> None:
        """Raise RuntimeError when Ray must replace this replica, and log why."""
        try:
            self.health.raise_if_faulty()
        except RuntimeError as error:
            logger.warning("not ready", extra={"reason": str(error)})
            raise

    def check_ready(self) -> None:
        """Refuse where `check_health` raises.

        Raises:
            Refused: the replica must not serve; only the log says why.
        """
        try:
            self.check_health()
        except RuntimeError:
            raise Refused("not_ready", retry_after=1) from None

    def _limits(self) -> dict[str, Any]:
        """Return the limits on requests, as GET /info has them."""
        names = {name for name in type(self.settings).model_fields if name.startswith("max_")}
        names -= {"max_replicas"}  # which bounds no request
        return {
            **self.settings.model_dump(include=names | {"deadline_seconds"}, exclude_none=True),
            "max_binary_body_bytes": self.settings.max_binary_body_bytes,
            "max_text_characters": self.reader.max_characters,
            "max_embedding": self.reader.max_embedding,
            "max_answer_json_bytes": self.settings.max_answer_json_bytes,
            "max_file_arrays": MOST_ARRAYS,
            "max_tokens": self.reader.max_tokens,
            "batch_tokens": self.batcher.budget,
        }


def _warn_of_unread(source: ModelSource, model: Model) -> None:
    """Log what a checkpoint holds and no answer is made of, and what it does not state."""
    has_plain_vectors = not model.states_pooling and not model.task_heads
    if model.trained and has_plain_vectors:
        logger.warning(PLAIN_WARNING, *model.pooling.modes)
    if model.tokenizer_note:
        logger.warning(TOKENIZER_WARNING, model.tokenizer_note)
    if left := find_unread_pickles(source.folder):
        logger.warning(UNREAD_WARNING, ", ".join(left))
    if adapters := find_adapters(source.folder):
        logger.warning(UNAPPLIED_WARNING, ", ".join(adapters))
    for warning in find_foreign_adapters(source):
        logger.warning(warning)
    if has_task_adapters(source.folder) and not model.instructions:
        logger.warning(UNTASKED_WARNING)


def _make_reader(settings: Settings, model: Model, worker: Worker) -> Reader:
    """Return the reader of inputs, whose longest sequence fits into the model's positions."""
    machine.check_lengths(settings, model.config, model.task_heads)
    return Reader(
        model.tokenizer,
        model.config,
        settings.max_tokens or model.max_tokens,
        MOST_TEXT_CHARACTERS,
        MOST_EMBEDDING,
        model.prompts,
        model.instructions,
        worker,
    )


def _start_tracing(settings: Settings, label: str) -> "Tracing | None":
    """Return the exporter of traces, started; None where tracing is off."""
    if settings.tracing is None:
        return None
    from service.observe import tracing

    try:
        return tracing.Tracing(settings.tracing, settings.tracing_ratio, label)
    except (tracing.CannotTrace, OSError) as error:
        raise Unservable(str(error)) from error
