"""What a start needs, asked before Ray waits for it: in vain, for ever, and without a word.

of_machine   of this machine, for a Ray of our own
of_model     of it and of the model's files, once they are here
of_ray       of a Ray's resources, once it runs
of_node      of a cluster's node for a new replica beside those that serve; service/probe.py asks
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from model.errors import CheckpointError
from service.cluster import haproxy, ingress, room
from service.engine import loading, machine, weights
from service.engine.machine import Unservable
from service.engine.weights import ModelNotFound, Source
from service.keys.ring import Ring, Unusable
from service.settings import MIB, Settings

# A replica's own memory beside its weights, at the least: Python, torch and Ray
REPLICA_BYTES = 192 * MIB
# Weights that a probe reads whole, in seconds; of larger ones only a replica's start reads all
PROBED_BYTES = 1024 * MIB
REFUSED = (ingress.Unsuited, Unservable, ModelNotFound, CheckpointError, Unusable)
ALONE = {"replicas": 1, "min_replicas": None, "max_replicas": None}


class Node(NamedTuple):
    """What a node shows of itself before a replica starts there.

    Args:
        fault: why none can, in a sentence.
        short: why there is no memory for one more, if there is none.
        digest: of the weights, where they were read whole.
    """

    fault: str | None = None
    short: str | None = None
    digest: str | None = None


def of_machine(settings: Settings) -> Iterator[str]:
    """Say in a sentence each what this machine lacks, whatever the model."""
    for check in (_device, _cores, _shared_memory, _haproxy, _tracing):
        try:
            check(settings)
        except Unservable as error:
            yield str(error)


def of_model(settings: Settings, source: Source) -> Iterator[str]:
    """Say in a sentence each what a model or this machine lacks for it."""
    try:
        machine.positions(settings, loading.sizes(source))
    except (Unservable, CheckpointError) as error:
        yield str(error)
    if short := _memory(settings, source):
        yield short


def of_ray(settings: Settings, resources: Mapping[str, float]) -> Iterator[str]:
    """Say in a sentence each what a Ray lacks.

    Args:
        resources: of all its nodes, as Ray counts them.
    """
    if settings.device == "cuda" and not int(resources.get("GPU", 0)):
        yield "Ray has no GPU; use --device cpu"
    cores, most = settings.most * (settings.threads or 0), int(resources.get("CPU", 0))
    if cores > most > 0:
        yield f"{_counted(settings)} x threads is {cores}, but Ray has only {most} cores"


def of_node(settings: Settings) -> Node:
    """Say what this node, in a process that Ray started there, lacks for a new replica.

    Shown is what the start of a replica reads: variables, device, files, sizes, and each number
    of the weights. Files of the hub that are yet to be fetched, and the memory of a GPU, are not.
    """
    try:
        ingress.check(settings, os.environ)
        Ring(settings.api_keys, settings.api_keys_file)
        _device(settings)
        if not weights.local(settings.model):
            return Node()
        source = weights.locate(settings.model)
        machine.positions(settings, loading.sizes(source))
        whole = _size(source) <= PROBED_BYTES
        digest = loading.rehearse(source) if whole else None
    except (*REFUSED, OSError) as error:
        return Node(fault=str(error))
    return Node(short=_memory(settings.model_copy(update=ALONE), source), digest=digest)


def gpus(settings: Settings, resources: Mapping[str, float]) -> float:
    """Return the part of a GPU that a replica takes; without one, Ray hides them all from it."""
    if settings.device == "cpu":
        return 0
    there = int(resources.get("GPU", 0))
    return machine.share(settings.most, there) if there else int(settings.device == "cuda")


def _memory(settings: Settings, source: Source) -> str | None:
    """What the replicas lack of memory."""
    least = settings.most * (REPLICA_BYTES + (0 if source.preset else _size(source)))
    free = room.memory()
    if least <= free:
        return None
    return (
        f"{_counted(settings)} {settings.most}: they need at least {_mib(least)} of memory, and"
        f" only {_mib(free)} are free"
    )


def _size(source: Source) -> int:
    """Bytes of the weights' files."""
    return sum(file.stat().st_size for file in source.folder.glob("*.safetensors"))


def _device(settings: Settings) -> None:
    machine.lanes(settings, machine.device(settings))
    machine.same_bits(settings)


def _cores(settings: Settings) -> None:
    here = len(os.sched_getaffinity(0))
    if settings.threads and settings.most * settings.threads > here:
        raise Unservable(
            f"threads {settings.threads}: {_counted(settings)} x threads is"
            f" {settings.most * settings.threads}, but this machine has only {here} cores"
        )


def _shared_memory(settings: Settings) -> None:
    needed = room.STORE_BYTES
    shared, files = room.files(room.SHARED), room.files(room.TEMPORARY)
    if needed > max(shared, files):
        raise Unservable(
            f"Ray needs {_mib(needed)} of shared memory, and only {_mib(shared)} are free in"
            f" {room.SHARED} and {_mib(files)} in {room.TEMPORARY}"
        )


def _haproxy(settings: Settings) -> None:
    try:
        haproxy.binary()
    except FileNotFoundError as error:
        raise Unservable(str(error)) from error


def _tracing(settings: Settings) -> None:
    if settings.tracing is None:
        return
    from service.observe import tracing  # which imports much, and is rarely on

    try:
        tracing.check(settings.tracing)
    except (tracing.CannotTrace, OSError) as error:
        raise Unservable(f"tracing: {error}") from error


def _counted(settings: Settings) -> str:
    """The setting that says how many replicas there may be."""
    return "replicas" if settings.max_replicas is None else "max_replicas"


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
