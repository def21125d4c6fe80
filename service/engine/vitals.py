"""Publishes a replica's constant facts, and gauges that are read at every scrape, as metrics."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from service.engine.batcher import Batcher
from service.observe.metrics import Metrics
from service.shapes.work import Result, Work
from service.tables.memory import KINDS, PROCESS

# How to read the bytes of GPU memory in each state; called only if the replica runs on CUDA
GPU_BYTES: dict[str, Callable[[], float]] = {
    "allocated": torch.cuda.memory_allocated,
    "reserved": torch.cuda.memory_reserved,
    "total": lambda: torch.cuda.mem_get_info()[1],
}


def publish_vitals(
    metrics: Metrics, batcher: Batcher[Work, Result], head: Mapping[str, str], device: str
) -> None:
    """Add a replica's facts about its model, and gauges of its queue and memory, to its metrics.

    Args:
        head: what every answer says about the model, as labels of `model_info`.
    """
    metrics.publish_info(
        "model_info", "Always 1; the labels name the model that is served.", **head, device=device
    )
    watch = metrics.add_gauge
    text = "Requests waiting in the replica's queue."
    watch("waiting_requests", text, lambda: batcher.waiting_requests)
    text = "Tokens waiting in the replica's queue."
    watch("waiting_tokens", text, lambda: batcher.waiting_tokens)
    text = "Seconds of work that waits or runs, by the measured speed."
    watch("waiting_seconds", text, lambda: batcher.waiting_seconds)
    text = "Lanes, each of which runs a batch."
    watch("lanes", text, lambda: batcher.lanes)
    text = "Tokens per second that the replica computes, measured recently."
    watch("speed_tokens_per_second", text, lambda: batcher.speed)
    text = "Bytes held by requests: bodies, arrays being computed, answers not yet read."
    for kind in KINDS:
        watch("held_bytes", text, partial(PROCESS.bytes.__getitem__, kind), kind=kind)
    watch("resident_memory_bytes", "Bytes of the process in RAM.", _resident_bytes)
    if device.startswith("cuda"):
        for state, read in GPU_BYTES.items():
            watch("gpu_memory_bytes", "Bytes of the GPU's memory.", read, state=state)


def _resident_bytes() -> float:
    """Return the bytes of this process in RAM."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
