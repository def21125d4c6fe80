"""A new version beside the old: right and wrong, on a cluster of deploy/serve."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from service.files import weights
from tests.ray import drill
from tests.ray.test_deploy import VARIABLES, Cluster, cluster

pytestmark = pytest.mark.ray

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def here() -> Iterator[Cluster]:
    """A cluster that serves deploy/serve/laptop.yaml."""
    with cluster(VARIABLES) as started:
        send(started)
        running(started)
        yield started


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the bundled model: with other weights, and with files that are no model's."""
    bundled, root = (
        weights.locate_model(weights.BUNDLED_MODEL).folder,
        tmp_path_factory.mktemp("models"),
    )
    folders = {name: shutil.copytree(bundled, root / name) for name in ("other", "nan", "cut")}
    folders["missing"] = root / "missing"
    tensors = load_file(bundled / "model.safetensors")
    name = "encoder.layer.3.output.dense.weight"
    tensors[name] = tensors[name] * 0.9
    save_file(tensors, folders["other"] / "model.safetensors")
    tensors[name][5, 7] = float("nan")
    save_file(tensors, folders["nan"] / "model.safetensors")
    os.truncate(folders["cut"] / "model.safetensors", 1 << 20)
    return folders


def send(here: Cluster, change: Change = lambda _: None) -> None:
    """Send deploy/serve/laptop.yaml, with changes to its application."""
    here.put(lambda configuration: change(configuration["applications"][0]))


def args(**settings: Any) -> Change:
    """An application with other settings."""
    return lambda application: application["args"].update(settings)


def running(here: Cluster) -> None:
    """Wait until what was sent runs; a replica that leaves may still be there."""
    here.wait(lambda found: [each["status"] for each in found.values()] == ["RUNNING"])


def failed(here: Cluster) -> str:
    """Wait until what was sent has failed; the last line that says why."""
    found = here.wait(
        lambda found: [each["status"] for each in found.values()] == ["DEPLOY_FAILED"]
    )
    line: str = found["headlight"]["message"].strip().splitlines()[-1]
    return line


def ask(here: Cluster, texts: int = 1) -> httpx.Response:
    """Ask for what the journal's clients ask for, or for the same of several texts."""
    body = {**json.loads(drill.BODY), "inputs": ["All is well"] * texts}
    return httpx.post(f"{here.url}/v1/encode", json=body, timeout=30)


def version(here: Cluster) -> tuple[str, bytes]:
    """The weights that answer now, and their answer, as the journal keeps them."""
    answer = ask(here)
    assert answer.json()["weights"] == answer.headers["x-headlight-weights"]
    return drill.name_answer(answer.headers, answer.content)


def loaded(here: Cluster, do: Callable[[], object]) -> drill.Journal:
    """What clients see who ask 40 times a second while something is done."""
    return drill.during(do, here.port, kept=4, pause=0.1)


def held(journal: drill.Journal, *versions: tuple[str, bytes]) -> None:
    """Whether all was answered, by these weights, with what is theirs."""
    print(f"\n{dict(journal.codes)} answers, {journal.longest:.2f} s at the longest without one")
    assert journal.lost == [] and set(journal.codes) == {200} and journal.unconnected == 0, journal
    assert journal.named == set(versions)


WRONG = {
    "nan": "model.safetensors: encoder.layer.3.output.dense.weight holds NaN or infinity",
    "cut": "model.safetensors is not a safetensors file",
    "missing": "no folder",
    "cuda": "device cuda: torch finds no CUDA device here",
}


@pytest.mark.prove
def test_a_wrong_update_leaves_the_old_version_and_says_why(
    here: Cluster, models: dict[str, Path]
) -> None:
    """Each names the node and the reason; the old version answers all the while."""
    old, took = version(here), dict[str, float]()

    def update() -> None:
        for name in WRONG:
            began = time.monotonic()
            wrong = {"device": "cuda"} if name == "cuda" else {"model": str(models[name])}
            send(here, args(**wrong))
            line = failed(here)
            took[name] = time.monotonic() - began
            assert (
                line.startswith("service.cluster.start_report.StartFailed: node 127.0.0.1: ")
                and WRONG[name] in line
            )

    journal = loaded(here, update)

    print(f"\n{ {name: f'{seconds:.1f} s' for name, seconds in took.items()} } until it said why")
    held(journal, old)


@pytest.mark.prove
def test_a_right_update_of_one_replica_pauses_nothing(
    here: Cluster, models: dict[str, Path]
) -> None:
    """Other weights start beside the old ones; every answer is right and names its own."""
    before = after = version(here)

    def update() -> None:
        nonlocal after
        send(here, args(model=str(models["other"])))
        running(here)
        drill.wait(lambda: version(here)[0] != before[0], "the new weights answer")
        after = version(here)

    journal = loaded(here, update)

    assert after[0] != before[0] and after[1] != before[1]
    held(journal, before, after)


@pytest.mark.prove
def test_without_room_the_old_version_goes_on_and_the_status_says_what_is_missing(
    here: Cluster,
) -> None:
    """A replica that asks for every core finds none free beside the old one."""
    old = version(here)

    def large(application: dict[str, Any]) -> None:
        application["deployments"][0]["ray_actor_options"]["num_cpus"] = 2

    def message(found: dict[str, Any]) -> str:
        said: str = found["headlight"]["deployments"].get("Encoder", {}).get("message", "")
        return said

    def update() -> None:
        send(here, args(model=weights.BUNDLED_MODEL, max_sequences=2047))
        running(here)
        send(here, large)
        found = here.wait(lambda found: "to be scheduled" in message(found))
        print(f"\n{message(found)}")

    journal = loaded(here, update)

    assert journal.lost == [] and set(journal.codes) == {200}, journal
    assert old in journal.named
