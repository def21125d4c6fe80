"""What a replica publishes of itself: facts that stay, and gauges read at every scrape."""

import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from service.engine.batcher import Batcher
from service.engine.lanes import Done, Work
from service.observe.metrics import Metrics
from service.settings import Settings

# by state; asked only of a replica on CUDA
GPU_BYTES: dict[str, Callable[[], float]] = {
    "allocated": torch.cuda.memory_allocated,
    "reserved": torch.cuda.memory_reserved,
    "total": lambda: torch.cuda.mem_get_info()[1],
}


def publish(
    metrics: Metrics,
    settings: Settings,
    batcher: Batcher[Work, Done],
    head: Mapping[str, str],
    device: str,
    load_seconds: float,
) -> None:
    """Put a replica's own facts and gauges into its metrics.

    Args:
        head: what every answer says of the model.
        load_seconds: what loading and checking the model took.
    """
    metrics.describe("model_info", "The model; 1.", **head, device=device)
    metrics.describe(
        "build_info",
        "The software; 1.",
        version=version("headlight"),
        python=platform.python_version(),
        torch=torch.__version__,
        ray=version("ray"),
    )
    watch, limits = metrics.watch, settings
    watch("model_load_duration_seconds", "Time to load and check it.", lambda: load_seconds)
    watch("waiting_requests", "Requests that wait.", lambda: batcher.waiting_requests)
    watch("waiting_requests_limit", "Most that may.", lambda: limits.max_waiting_requests)
    watch("waiting_tokens", "Tokens that wait.", lambda: batcher.waiting_tokens)
    watch("waiting_tokens_limit", "Most that may.", lambda: limits.max_waiting_tokens)
    watch("speed_tokens", "Tokens per second, as lately measured.", lambda: batcher.speed)
    watch("resident_memory_bytes", "Memory of the process in RAM.", _resident_bytes)
    if device.startswith("cuda"):
        for state, read in GPU_BYTES.items():
            watch("gpu_memory_bytes", "Memory of the device.", read, state=state)


def _resident_bytes() -> float:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
