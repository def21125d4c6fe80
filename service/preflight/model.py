"""Checks of what a model needs from the machine it is to run on, and of its files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from model import kernels
from model.decider import Decider
from model.decisions import LEAST_TEMPERATURE, MOST_TEMPERATURE
from model.errors import CheckpointError
from model.loading.checkpoint import Model, count_adapter_numbers
from model.loading.files import LAYA
from service.cluster.start_report import StartFailed
from service.files import loading, weights
from service.files.weights import ModelNotFound, ModelSource
from service.heads.samples import sample_texts
from service.preflight import variables
from service.preflight.finding import Checks, Finding, NodeReport, require, run
from service.preflight.machine import WITH_TORCH, free_memory, mib, replicas_key
from service.proof import machine
from service.proof.certificate import NO_CERTIFICATE, certify
from service.proof.formats import compare_speeds
from service.proof.machine import Unservable
from service.tables import keyring
from service.tables.keyring import UnusableKeys
from service.tables.settings import MIB, Settings
from service.tables.wording.values import word_error

# The least memory of a replica without its weights: Python, torch and Ray
REPLICA_BYTES = 192 * MIB
SINGLE, HALF = 4, 2  # bytes of a number
# The most that a layer's bfloat16 was ever measured to be faster than float32: 13 rows on Zen 4
# (benchmarks/results.md). A figure beyond it would say more of the moment than of the processor.
MEASURED_RATIO = 2.1
# Weights up to this size are read whole, in seconds; of larger ones only the headers are, before a
# replica's start reads all
PROBED_BYTES = 1024 * MIB
# What says that a model cannot be served
REFUSED = (StartFailed, ModelNotFound, CheckpointError, Unservable, UnusableKeys, OSError)
ALONE = {"replicas": 1, "min_replicas": None, "max_replicas": None}  # settings of one replica


def open_checkpoint(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    """Open the checkpoint as a replica's start does, and compare its limits with the settings."""
    try:
        model = rehearse(settings, source)
    except REFUSED as error:
        yield Finding("", word_error(error))
        return
    for warning in loading.find_foreign_adapters(source):
        yield Finding("", warning, grade="note")
    if model is not None and model.tokenizer_note:
        yield Finding("tokenizer.json", f"read as it is: {model.tokenizer_note}", grade="note")
    if model is not None:
        yield from _judge_temperatures(model)
        yield Finding("model", _describe(model, settings, source), grade="ok")


def measure_speed(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    """Measure a layer where bfloat16 would be faster, or where the format asked for is slower."""
    try:
        device, dtype = machine.choose_precision(settings)
        config = loading.read_model_sizes(source)
    except REFUSED:  # which another check tells of
        return
    if device.type != "cpu" or settings.dtype == "float32":
        return
    if settings.dtype != "auto":
        ratio = compare_speeds(config, dtype)
        what = _word_ratio(ratio, source)
        yield Finding(settings.dtype, what, grade="ok" if ratio >= 1 else "note")
    elif kernels.choose_kernels(device, torch.bfloat16, config.head_dim).half:
        what = _word_ratio(compare_speeds(config, torch.bfloat16), source)
        mend = "--dtype bfloat16; `headlight doctor --dtype bfloat16` says how near its vectors are"
        yield Finding("bfloat16", what, mend, "note")


def measure_nearness(settings: Settings, source: ModelSource) -> Iterator[Finding]:
    """Measure how near to float32's vectors those of bfloat16 are, if it is asked for."""
    if settings.dtype != "bfloat16":
        return
    try:
        device, dtype = machine.choose_precision(settings)
        if device.type != "cpu":
            return
        model = loading.load_model(source, device, dtype)
        exact = loading.load_model(source, device, torch.float32)
        certificate = certify(model, exact, sample_texts())
    except REFUSED:  # which another check tells of
        return
    if certificate is None:
        yield Finding("bfloat16", NO_CERTIFICATE, grade="note")
        return
    what = (
        f"cosines of {certificate.texts} texts to float32's: {certificate.worst_cosine:.5f} at"
        f" worst, {certificate.mean_cosine:.5f} on average; {certificate.neighbour_overlap:.3f} of"
        f" their {certificate.neighbours} nearest texts kept"
    )
    yield Finding("bfloat16", what, grade="ok")


def rehearse(settings: Settings, source: ModelSource) -> Model | None:
    """Load a model without its weights, and check it as a replica's start does.

    Returns:
        The model, with a digest if its weights were read whole; None for a preset.

    Raises:
        CheckpointError, Unservable: a replica would refuse it.
    """
    model, meta = None, torch.device("meta")
    if source.preset is None:
        whole = _weights_bytes(source) <= PROBED_BYTES
        model = loading.load_model(source, meta, torch.float32, kernels.PLAIN, numbers=whole)
    config = model.config if model else loading.read_model_sizes(source)
    machine.check_lengths(settings, config, model.task_heads if model else ())
    return model


def check_memory(*models: tuple[Settings, ModelSource]) -> Iterator[Finding]:
    """Compare the least memory of all replicas of some models with what is free."""
    shares = [
        settings.most_replicas * _replica_bytes(settings, source) for settings, source in models
    ]
    needed, free = sum(shares), free_memory()
    (settings, _), *others = models
    text = f"they need at least {mib(needed)} of memory"
    if others:
        each = (
            f"{mib(share)} for {settings.most_replicas} of {source.name}"
            for share, (settings, source) in zip(shares, models, strict=True)
        )
        text += f" ({', '.join(each)})"
    place = "replicas" if others else f"{replicas_key(settings)} {settings.most_replicas}"
    if needed <= free:
        yield Finding(place, f"{text}, and {mib(free)} are free", grade="ok")
    else:
        yield Finding(place, f"{text}, and only {mib(free)} are free")


CHECKS: Checks = {
    measure_speed: {"doctor"},  # serve prints it (isolated.py)
    # neither for a node, whose report has the digest, and a lack of memory apart
    open_checkpoint: {"doctor", "serve"},
    measure_nearness: {"doctor"},
}
# Those of all models together
TOGETHER: Checks = {check_memory: {"doctor", "serve"}}


def examine_models(models: Sequence[Settings]) -> Iterator[Finding]:
    """Find the models and yield the findings of all checks of them, or that one cannot be found."""
    found = []
    for settings in models:
        try:
            source = weights.locate_model(settings.model, settings.adapter)
        except ModelNotFound as error:
            yield Finding("model", str(error))
        else:
            found.append((settings, source))
    if found:
        yield from run("doctor", TOGETHER, *found)
    for settings, source in found:
        for finding in run("doctor", CHECKS, settings, source):
            yield replace(finding, place=finding.place or "model")


def examine_node(settings: Settings) -> NodeReport:
    """Return what this node lacks for a new replica; called in a process that Ray started there.

    It reads what a replica's start reads: variables, device, files, sizes, and each number of the
    weights. It leaves out files that the hub has yet to send, and the memory of a GPU.
    """
    try:
        variables.require_variables(settings, os.environ, "it")
        keyring.check_keys(settings.api_keys, settings.api_keys_file)
        require(run("node", WITH_TORCH, settings))
        if not weights.is_local(settings.model):
            return NodeReport()
        source = weights.locate_model(settings.model, settings.adapter)
        model = rehearse(settings, source)
    except REFUSED as error:
        return NodeReport(fault=word_error(error))
    (memory,) = check_memory((settings.model_copy(update=ALONE), source))
    return NodeReport(
        short=str(memory) if memory.is_wrong else None,
        digest=(model.digest or None) if model else None,
    )


def _word_ratio(ratio: float, source: ModelSource) -> str:
    """Say how many times as fast as float32 a layer is; above MEASURED_RATIO without a figure."""
    times = f"{ratio:.2g}" if ratio <= MEASURED_RATIO else f"over {MEASURED_RATIO:g}"
    return f"{times} times as fast as float32 here, a layer of {source.name}"


def _judge_temperatures(model: Model) -> Iterator[Finding]:
    """Yield a note on each temperature of a decision model that is not applied as stored."""
    for head in model.task_heads:
        if isinstance(head, Decider):
            for name, stored, applied in head.temperatures.list_replaced():
                limits = f"no number from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}"
                what = f"the temperature of {name} is {stored!r}, {limits}: {applied:g} is applied"
                yield Finding(LAYA, what, grade="note")


def _describe(model: Model, settings: Settings, source: ModelSource) -> str:
    """Return what a model is, in a line, and the number format in which it is to run."""
    pooling = "+".join(model.pooling.modes)
    if not model.states_pooling:
        pooling += ", which the checkpoint does not say"
    what = (
        f"{source.name}, family {model.config.family}; tasks {', '.join(model.tasks)}; pooling"
        f" {pooling}; at most {settings.max_tokens or model.max_tokens:,} tokens"
    )
    with suppress(Unservable):  # which another check tells of
        device, dtype = machine.choose_precision(settings)
        what += f"; {str(dtype).removeprefix('torch.')} on {device}"
    return what


def _replica_bytes(settings: Settings, source: ModelSource) -> int:
    """Return the least bytes of a replica: with its weights, DeBERTa's distances and adapters."""
    if source.preset:
        return REPLICA_BYTES
    size = REPLICA_BYTES + _weights_bytes(source)
    try:
        config = loading.read_model_sizes(source)
        added = count_adapter_numbers(source.folder, source.adapters)
    except CheckpointError:  # which another check tells of
        return size
    number = HALF if settings.dtype in ("bfloat16", "float16") else SINGLE
    added += config.own_layers * config.relative.count_stored(config.width)
    return size + number * added


def _weights_bytes(source: ModelSource) -> int:
    """Return the total size of the weights' files in bytes."""
    return sum(file.stat().st_size for file in source.folder.glob("*.safetensors"))
