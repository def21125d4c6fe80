"""What nodes say before an update, and what becomes of it; the served form is in tests/ray."""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import kernels
from model.loading import checkpoint
from service.cluster import ingress
from service.cluster.start_report import StartFailed
from service.files import weights
from service.preflight import isolated, model
from service.preflight.finding import NodeReport, run
from service.preflight.machine import mib
from service.tables.settings import MIB, Settings
from tests import task_heads
from tests.model.loading.test_adapters import LEFT, RIGHT, adapter
from tests.model.loading.test_families import CPU, saved, theirs
from tests.model.small_tokenizer import save_small_tokenizer

with warnings.catch_warnings():  # Ray's import warns of Ray's own age
    warnings.simplefilter("ignore")
    from ray.serve.schema import (
        ApplicationDetails,
        ServeActorDetails,
        ServeApplicationSchema,
        ServeInstanceDetails,
    )

    from service.preflight import cluster
    from service.preflight.cluster import Cluster

TENSOR = "encoder.layer.3.output.dense.weight"


@pytest.fixture(autouse=True)
def suited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was started with deploy/serve/ray.env."""
    for name, value in ingress.cluster_variables(Settings(device="cpu")).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a model, for a test to spoil."""
    return shutil.copytree(weights.locate_model(weights.BUNDLED_MODEL).folder, tmp_path / "model")


def holed(folder: Path) -> None:
    """One number that is none."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[TENSOR][5, 7] = float("nan")
    save_file(tensors, path)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: os.truncate(f / "model.safetensors", 1 << 20), "is not a safetensors file"),
    "not finite": (holed, f"{TENSOR} holds NaN or infinity"),
    "no folder": (shutil.rmtree, "no folder"),
}


@pytest.mark.parametrize(("spoil", "fault"), SPOILT.values(), ids=SPOILT)
def test_a_node_names_what_is_wrong_with_its_files(
    folder: Path, spoil: Callable[[Path], object], fault: str
) -> None:
    """All that a start would find in them, before one is tried."""
    spoil(folder)

    said = model.examine_node(Settings(model=str(folder), device="cpu")).fault

    assert said and fault in said and "\n" not in said


def test_a_right_node_gives_the_digest_that_a_replica_has() -> None:
    """By which two nodes with different files are found."""
    assert model.examine_node(Settings(device="cpu")) == NodeReport(digest="sha256:5fc648cb18e4")


def test_a_node_without_the_device_or_the_variables_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by name."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = model.examine_node(Settings(device="cuda")).fault
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY")
    variable = model.examine_node(Settings(device="cpu")).fault

    assert device and device.startswith("device cuda: torch finds no CUDA device here")
    assert variable and "RAY_SERVE_ENABLE_HA_PROXY: is not set" in variable


def test_weights_of_any_size_and_of_the_hub_cost_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Numbers of larger ones are left to the replica, sizes are not; nothing is fetched."""
    monkeypatch.setattr(model, "PROBED_BYTES", 0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # others set it
    holed(folder)

    assert model.examine_node(Settings(model=str(folder), device="cpu")) == NodeReport()
    assert model.examine_node(Settings(model="org/name@0123", device="cpu")) == NodeReport()
    positions = model.examine_node(Settings(model=str(folder), device="cpu", max_tokens=513)).fault
    assert positions == "max_tokens 513 exceeds the model's 512 positions"


def test_memory_is_counted_for_one_more_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that serve have theirs."""
    monkeypatch.setattr(model, "free_memory", lambda: 250 << 20)

    said = model.examine_node(Settings(device="cpu"))

    assert said.fault is None and said.short
    assert said.short.startswith("replicas 1: they need at least 279 MiB")


def test_memory_is_judged_for_all_models_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `doctor` and by `serve`: each alone would fit, and each one's share is named."""
    task_heads.checkpoint(tmp_path / "reranker", "ForSequenceClassification", num_labels=1)
    both = [Settings(replicas=2, device="cpu"), Settings(model=str(tmp_path / "reranker"))]
    monkeypatch.setattr(model, "free_memory", lambda: 700 * MIB)

    alone = [*model.examine_models(both[:1]), *model.examine_models(both[1:])]
    assert not any(finding.is_wrong for finding in alone)
    (said,) = [finding for finding in model.examine_models(both) if finding.is_wrong]
    with pytest.raises(StartFailed) as refused:
        isolated.check_here(dict(zip("ab", both, strict=True)))

    assert str(refused.value) == str(said)
    assert re.fullmatch(
        r"replicas: they need at least 7\d\d MiB of memory \(5\d\d MiB for 2 of all-MiniLM-L6-v2, "
        r"19\d MiB for 1 of reranker\), and only 700 MiB are free",
        str(said),
    )


@pytest.mark.parametrize(("dtype", "number"), [("float32", 4), ("bfloat16", 2)])
def test_memory_counts_what_is_made_of_a_debertas_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, number: int
) -> None:
    """In the number format of the weights, besides their files."""
    theirs("deberta-v2", position_buckets=8192, max_relative_positions=32768).save_pretrained(
        tmp_path
    )
    save_small_tokenizer(tmp_path)
    monkeypatch.setattr(model, "free_memory", lambda: 0)

    (said,) = model.check_memory(
        (Settings(model=str(tmp_path), dtype=dtype), weights.locate_model(str(tmp_path)))
    )

    encoder = checkpoint.load_checkpoint(
        tmp_path, CPU, getattr(torch, dtype), kernels.PLAIN
    ).encoder
    distances = [layer.attention.distances for layer in encoder.layers]
    tables = [one for each in distances for one in (each.keys, each.queries)]
    made = sum(table.nbytes for table in tables)
    files = (tmp_path / "model.safetensors").stat().st_size
    assert made == number * sum(table.numel() for table in tables) > 8 * MIB
    assert f"at least {mib(model.REPLICA_BYTES + files + made)} of memory" in str(said)


@pytest.mark.parametrize(  # each family and each type once; `make prove` tries the others
    ("family", "dtype", "number"),
    [
        ("bert", "bfloat16", 2),
        ("albert", "float32", 4),
        ("gemma3_text", "bfloat16", 2),
        pytest.param("bert", "float32", 4, marks=pytest.mark.prove),
        pytest.param("albert", "bfloat16", 2, marks=pytest.mark.prove),
        pytest.param("gemma3_text", "float32", 4, marks=pytest.mark.prove),
    ],
)
def test_memory_counts_what_adapters_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, dtype: Any, number: int
) -> None:
    """Each matrix as it is multiplied by, once for layers that share it."""
    monkeypatch.setattr("tests.model.loading.test_adapters.RANK", 4096)
    reference, own = theirs(family), {name: tmp_path / name for name in (LEFT, RIGHT)}
    saved(reference, tmp_path)
    for seed, folder in enumerate(own.values()):
        adapter(reference, folder, family, seed)
    monkeypatch.setattr(model, "free_memory", lambda: 0)
    named = tuple(f"{name}={folder}" for name, folder in own.items())
    settings = Settings(model=str(tmp_path), dtype=dtype, adapter=named)

    (said,) = model.check_memory((settings, weights.locate_model(str(tmp_path), named)))

    plain = checkpoint.load_checkpoint(tmp_path, CPU, getattr(torch, dtype), kernels.PLAIN)
    read = checkpoint.with_adapters(plain, tmp_path, own).adapters.values()
    terms = [term for one in read for term in one.terms.values()]
    matrices = [linear.weight() for term in terms for linear in (term.narrow, term.widen)]
    made = sum(matrix.nbytes for matrix in matrices)
    files = (tmp_path / "model.safetensors").stat().st_size
    assert made == number * sum(matrix.numel() for matrix in matrices) > 8 * MIB
    assert f"at least {mib(model.REPLICA_BYTES + files + made)} of memory" in str(said)


@pytest.mark.parametrize(
    ("nodes", "overlapping", "fault"),
    [
        ({"a": NodeReport(), "b": NodeReport(fault="no folder")}, True, "node b: no folder"),
        (
            {"a": NodeReport(digest="sha256:1"), "b": NodeReport(digest="sha256:2")},
            True,
            "the nodes' files of the model differ: sha256:1 on node a; sha256:2 on node b",
        ),
        (
            {"a": NodeReport(short="1 MiB"), "b": NodeReport(short="2")},
            True,
            "node a: 1 MiB; node b: 2",
        ),
        ({"a": NodeReport(short="1 MiB"), "b": NodeReport(digest="sha256:1")}, True, ""),
        ({"a": NodeReport(short="1 MiB")}, False, ""),
        ({}, True, ""),
    ],
    ids=["fault", "digests", "no memory", "memory on one", "the old one leaves first", "none yet"],
)
def test_one_line_names_each_node_that_fails_an_update(
    nodes: dict[str, NodeReport], overlapping: bool, fault: str
) -> None:
    """One without memory fails nothing while another has it."""
    said = ""
    try:
        cluster.refuse_faults(nodes, overlapping=overlapping)
    except StartFailed as error:
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
    assert cluster.can_host({"Alive": True, "Resources": node, "Labels": {}}, actor) is may
    assert not cluster.can_host({"Alive": False, "Resources": node, "Labels": {}}, actor)


HEAD, WORKER, OTHER = "10.0.0.2", "10.0.0.3", "10.0.0.5"


def node(address: str, *, label: bool = True, alive: bool = True) -> dict[str, Any]:
    """One node, as Ray lists it."""
    head = {cluster.HEAD: 1.0} if address == HEAD else {}
    return {
        "NodeManagerAddress": address,
        "Alive": alive,
        "Labels": {"ray.io/node-id": address} | (ingress.NODE_LABEL if label else {}),
        "Resources": {"CPU": 7.0} | head,
    }


def built(there: Cluster) -> list[str]:
    """What the builder of an application says of a cluster."""
    return [str(each) for each in run("build", cluster.CHECKS, Settings(), there)]


def test_a_head_without_the_variables_is_named() -> None:
    """Ray runs HAProxy on the head, whatever it has."""
    (said,) = built(Cluster([node(HEAD, label=False), node(WORKER)], "0.0.0.0"))

    assert said.startswith(f"{HEAD}, the head: was started without deploy/serve/ray.env")


def test_a_loopback_that_several_share_is_refused_by_their_addresses() -> None:
    """One node alone may listen there, even next to bare or dead ones."""
    (said,) = built(Cluster([node(HEAD), node(WORKER)], "127.0.0.1"))

    assert said.startswith(f"host 127.0.0.1: is each machine's own, and {HEAD}, {WORKER} serve")
    others = [node(HEAD), node(OTHER, label=False), node(WORKER, alive=False)]
    assert built(Cluster(others, "127.0.0.1")) == []
    assert built(Cluster([node(HEAD), node(WORKER)], "0.0.0.0")) == []


@pytest.mark.parametrize(("here", "said"), [(HEAD, 0), (WORKER, 1)])
def test_a_replica_beside_the_head_needs_more_than_the_loopback(here: str, said: int) -> None:
    """On a node that joins later too; the one on the head keeps serving."""
    nodes = [node(HEAD), node(WORKER)]

    for host, count in (("localhost", said), ("0.0.0.0", 0)):
        there = Cluster(nodes, host, here)
        assert len(list(run("replica", cluster.CHECKS, Settings(), there))) == count


def test_what_a_bare_node_has_does_not_count() -> None:
    """Nor what a dead one had."""
    nodes = [node(HEAD), node(OTHER, label=False), node(WORKER, alive=False)]
    there = Cluster(nodes, "0.0.0.0")

    assert there.unlabelled == [OTHER]
    assert there.resources == {"CPU": 7.0, cluster.HEAD: 1.0}


@pytest.mark.parametrize(
    ("given", "resources", "line"),
    [
        ({"device": "cuda"}, {"CPU": 7.0}, "Ray has no GPU; use --device cpu"),
        ({}, {"CPU": 7.0, "GPU": 2.0}, None),  # they share
        ({"threads": 5}, {"CPU": 13.0}, "replicas x threads is 15, but Ray has only 13 cores"),
        ({"device": "cuda"}, {"CPU": 7.0, "GPU": 3.0}, None),
        ({"device": "cpu", "threads": 2}, {"CPU": 7.0}, None),
        ({"device": "cpu", "threads": 2}, {}, None),
    ],
)
def test_what_a_cluster_lacks_is_told_before_anything_is_deployed(
    given: dict[str, object], resources: dict[str, float], line: str | None
) -> None:
    """Of three replicas; a Ray that counts no cores holds none back."""
    there = Cluster([node(HEAD) | {"Resources": resources}], "127.0.0.1")

    checks = cluster.CHECKS, Settings(replicas=3, **given), there
    said = [str(each) for entry in ("join", "serve") for each in run(entry, *checks)]

    assert [text.startswith(line or "") for text in said] == [True] * (line is not None)


def deployed(name: str, **options: Any) -> ApplicationDetails:
    """What Ray knows of an application whose Serve file says so of its deployment."""
    own = {"name": name, "route_prefix": f"/{name}"}
    file = {
        **own,
        "import_path": "service.app:build",
        "args": {"threads": 1},
        "deployments": [{"name": ingress.DEPLOYMENT, **options}],
    }
    return ApplicationDetails(
        **own,
        docs_path=None,
        status="DEPLOYING",
        message="",
        last_deployed_time_s=0.0,
        deployed_app_config=ServeApplicationSchema.model_validate(file),
        source="declarative",
        deployments={},
        external_scaler_enabled=False,
    )


def test_a_replica_reads_the_options_of_its_own_application_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another may have the same args; what no file has was deployed by `headlight serve`."""

    class Client:
        """Says what Ray's own client says of two applications."""

        def get_serve_details(self) -> dict[str, Any]:
            both = deployed("one", max_ongoing_requests=5), deployed("other")
            details = ServeInstanceDetails(
                controller_info=ServeActorDetails(),
                proxies={},
                applications={each.name: each for each in both},
            )
            return details.model_dump(exclude_unset=True)

    monkeypatch.setattr(cluster, "serve_client", Client)
    read = [cluster.read_options(name, ingress.DEPLOYMENT) for name in ("one", "other", "none")]

    name = {"name": ingress.DEPLOYMENT}
    assert read == [{**name, "max_ongoing_requests": 5}, name, {}]
