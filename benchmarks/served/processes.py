"""Processes from outside: signals, processor time, memory, as the kernel tells them."""

import os
import signal
import socket
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's CPU clocks, per second


def find_marked(mark: bytes) -> list[int]:
    """Return the processes that have this variable, NAME=VALUE, in their environment."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in every if mark in read_proc(pid, "environ").split(b"\0")]


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def read_proc(pid: int, file: str) -> bytes:
    """Return a file of a process; empty when it has ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def cpu_seconds(pid: int) -> float:
    """Return processor time of one process, in user code and in the kernel."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


def peak_mib(pid: int) -> float:
    """Return most memory of one process since its peak was forgotten."""
    status, rollup = (
        parse_kilobytes(read_proc(pid, "status")),
        parse_kilobytes(read_proc(pid, "smaps_rollup")),
    )
    above = status.get("VmHWM", 0) - status.get("VmRSS", 0)
    return (rollup.get("Pss", 0) + max(0, above)) / 1024


def parse_kilobytes(text: bytes) -> dict[str, int]:
    """Return the lines of a file of /proc that count kB."""
    lines = [line.split() for line in text.decode().splitlines() if line.endswith(" kB")]
    return {name.rstrip(":"): int(count) for name, count, _ in lines}


def busy_seconds() -> float:
    """Return processor time of everyone on this machine so far."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().split(None, 9)[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS  # without idle and waiting for a disk


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
