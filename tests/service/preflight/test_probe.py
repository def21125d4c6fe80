"""What nodes say before an update, and what becomes of it; the served form is in tests/ray."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.loading.files import TOKENIZER, VOCABULARIES
from service import needs
from service.cluster import ingress, room
from service.engine import weights
from service.needs import Node
from service.settings import Settings

with warnings.catch_warnings():  # Ray's import warns of Ray's own age
    warnings.simplefilter("ignore")
    from service import probe

TENSOR = "encoder.layer.3.output.dense.weight"


@pytest.fixture(autouse=True)
def suited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was started with deploy/serve/ray.env."""
    for name, value in ingress.clustered(Settings(device="cpu")).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a model, for a test to spoil."""
    return shutil.copytree(weights.locate(weights.BUNDLED).folder, tmp_path / "model")


def holed(folder: Path) -> None:
    """One number that is none."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[TENSOR][5, 7] = float("nan")
    save_file(tensors, path)


def misshapen(folder: Path) -> None:
    """A row too few."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[TENSOR] = tensors[TENSOR][1:].clone()
    save_file(tensors, path)


def without_words(folder: Path) -> None:
    """Neither a tokenizer nor a vocabulary that one could be made of."""
    for name in (TOKENIZER, *VOCABULARIES):
        (folder / name).unlink(missing_ok=True)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: os.truncate(f / "model.safetensors", 1 << 20), "is not a safetensors file"),
    "not finite": (holed, f"{TENSOR} holds NaN or infinity"),
    "misshapen": (misshapen, f"{TENSOR} is (383, 1536), not (384, 1536)"),
    "no tokenizer": (without_words, "lacks tokenizer.json"),
    "no folder": (shutil.rmtree, "no folder"),
}


@pytest.mark.parametrize(("spoil", "fault"), SPOILT.values(), ids=SPOILT)
def test_a_node_names_what_is_wrong_with_its_files(
    folder: Path, spoil: Callable[[Path], object], fault: str
) -> None:
    """All that a start would find in them, before one is tried."""
    spoil(folder)

    said = needs.of_node(Settings(model=str(folder), device="cpu")).fault

    assert said and fault in said and "\n" not in said


def test_a_right_node_gives_the_digest_that_a_replica_has() -> None:
    """By which two nodes with different files are found."""
    assert needs.of_node(Settings(device="cpu")) == Node(digest="sha256:5fc648cb18e4")


def test_a_node_without_the_device_or_the_variables_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by name."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = needs.of_node(Settings(device="cuda")).fault
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY")
    variable = needs.of_node(Settings(device="cpu")).fault

    assert device and device.startswith("device cuda: torch finds no CUDA device here")
    assert variable and "RAY_SERVE_ENABLE_HA_PROXY is not set there" in variable


def test_weights_of_any_size_and_of_the_hub_cost_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Numbers of larger ones are left to the replica, sizes are not; nothing is fetched."""
    monkeypatch.setattr(needs, "PROBED_BYTES", 0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # others set it
    holed(folder)

    assert needs.of_node(Settings(model=str(folder), device="cpu")) == Node()
    assert needs.of_node(Settings(model="org/name@0123", device="cpu")) == Node()
    positions = needs.of_node(Settings(model=str(folder), device="cpu", max_tokens=513)).fault
    assert positions == "max_tokens 513 exceeds the model's 512 positions"


def test_memory_is_counted_for_one_more_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that serve have theirs."""
    monkeypatch.setattr(room, "memory", lambda: 250 << 20)

    said = needs.of_node(Settings(device="cpu"))

    assert said.fault is None and said.short
    assert said.short.startswith("replicas 1: they need at least 279 MiB")


@pytest.mark.parametrize(
    ("nodes", "beside", "fault"),
    [
        ({"a": Node(), "b": Node(fault="no folder")}, True, "node b: no folder"),
        (
            {"a": Node(digest="sha256:1"), "b": Node(digest="sha256:2")},
            True,
            "the nodes' files of the model differ: sha256:1 on node a; sha256:2 on node b",
        ),
        ({"a": Node(short="1 MiB"), "b": Node(short="2")}, True, "node a: 1 MiB; node b: 2"),
        ({"a": Node(short="1 MiB"), "b": Node(digest="sha256:1")}, True, ""),
        ({"a": Node(short="1 MiB")}, False, ""),
        ({}, True, ""),
    ],
    ids=["fault", "digests", "no memory", "memory on one", "the old one leaves first", "none yet"],
)
def test_one_line_names_each_node_that_fails_an_update(
    nodes: dict[str, Node], beside: bool, fault: str
) -> None:
    """One without memory fails nothing while another has it."""
    said = ""
    try:
        probe.judge(nodes, beside=beside)
    except probe.Unfit as error:
        said = str(error)

    assert said == fault


@pytest.mark.parametrize(
    ("node", "actor", "may"),
    [
        ({"CPU": 2.0}, {"num_cpus": 2}, True),
        ({"CPU": 2.0}, {}, True),
        ({"CPU": 0.0}, {}, False),
        ({"CPU": 0.0}, {"num_cpus": 0}, True),
        ({"CPU": 8.0}, {"num_cpus": 1, "num_gpus": 1}, False),
        ({"CPU": 8.0, "GPU": 1.0}, {"num_cpus": 1, "num_gpus": 0.5}, True),
        ({"CPU": 8.0, "memory": 7.0}, {"memory": 11}, False),
        ({"CPU": 8.0}, {"resources": {"headlight": 1}}, False),
        ({"CPU": 8.0}, {"label_selector": {"zone": "a"}}, False),
    ],
)
def test_only_nodes_that_may_host_a_replica_are_asked(
    node: dict[str, float], actor: dict[str, Any], may: bool
) -> None:
    """A node without a GPU is not at fault where replicas ask for one."""
    assert probe.hosts({"Alive": True, "Resources": node, "Labels": {}}, actor) is may
    assert not probe.hosts({"Alive": False, "Resources": node, "Labels": {}}, actor)
