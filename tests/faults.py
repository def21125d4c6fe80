"""`headlight serve` with faults that are switched while it runs; for drills, never in the product.

    python -m tests.faults FILE serve [flags of `headlight serve`]

FILE holds the fault of the moment, or nothing:

    nan     its result is NaN
    flip    the last bit of every number of its result is another
    hang    it does not end, and no new replica gets through its start
    sticky  it fails as after a fault of a GPU, in the first replica that sees it and for good

Ray gives replicas by value what is defined in __main__, so they need not find this file.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch

from model.encoder import Encoded, Encoder
from service.cli import main
from service.pipeline.replica import Replica
from service.start import launch, ray_session
from service.tables.settings import Settings


def fault(file: Path) -> str:
    """The fault that is on."""
    return file.read_text() if file.exists() else ""


def wait(file: Path) -> None:
    """Hang until that fault is off."""
    while fault(file) == "hang":
        time.sleep(1)  # by more looks its thread would seem to wait for a core


def sticky(file: Path) -> bool:
    """Tell whether this process has that fault: the one that moves the file away has it."""
    mine = file.with_suffix(f".{os.getpid()}")
    if fault(file) == "sticky":
        with suppress(FileNotFoundError):
            file.rename(mine)
    return mine.exists()


def forward(
    encoder: Encoder, *given: Any, right: Callable[..., Encoded], file: Path, **asked: Any
) -> Encoded:
    """Encoder.__call__, with the fault that is on."""
    wait(file)
    if sticky(file):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    encoded, now = right(encoder, *given, **asked), fault(file)
    if now == "nan":
        return replace(encoded, last=encoded.last * torch.nan, finite=False)
    elif now == "flip":
        bits = encoded.last.view(torch.int32) ^ 1
        return replace(encoded, last=bits.view(torch.float32))
    return encoded


class FaultyGateway(Replica):
    """A replica that starts well, and then has the fault that is on."""

    file: ClassVar[Path]

    @classmethod
    async def start(cls, settings: Settings, label: str, kept: Path | None = None) -> Replica:
        """Start; a device that hangs does not load a model either."""
        await asyncio.to_thread(wait, cls.file)
        replica = await super().start(settings, label, kept)
        right, file = Encoder.__call__, cls.file
        # for good: a replica has its process to itself
        patch.object(Encoder, "__call__", partialmethod(forward, right=right, file=file)).start()
        return replica


async def start_replica(encoder: Any) -> Replica:
    """The deployment's method, which starts a faulty replica instead."""
    return await FaultyGateway.start(encoder.settings, encoder.label)


@contextmanager
def own_ray(
    *arguments: Any,
    right: Callable[..., AbstractContextManager[Path]] = ray_session.start_own_ray,
) -> Iterator[Path]:
    """ray_session.start_own_ray, on which faulty replicas are deployed."""
    with right(*arguments) as run:
        from service import (
            app,  # not before ray_session has set the environment, which Ray then reads
        )

        with patch.object(app.EncoderDeployment.func_or_class, "_start_replica", start_replica):
            yield run


if __name__ == "__main__":
    FaultyGateway.file = Path(sys.argv[1])
    with patch.object(launch, "start_own_ray", own_ray):
        main(sys.argv[2:], prog_name="headlight")
