"""Several models at one address, as `headlight serve` starts them; `prove`: each takes a core."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.ray import drill
from tests.ray.conftest import command
from tests.service.cluster import test_disagreement as disagreement
from tests.service.cluster import test_several_clients as clients
from tests.service.cluster import test_several_models as several
from tests.several_models import (
    EMBEDDER,
    FIRST,
    LARGE,
    RERANKER,
    Address,
    save_embedder,
    save_reranker,
)
from tests.task_heads import checkpoint

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

SPARSE = "tiny-splade"
BODIES = {  # all of POST /v1/encode, each answered by one of the models alone
    FIRST: {"inputs": ["All is well"], "model": FIRST, "encoding": "base64"},
    RERANKER: {"inputs": [{"text": "Is it well?", "pair": "All is well"}], "model": RERANKER},
    SPARSE: {"inputs": ["All is well"], "model": SPARSE},
}
CLIENTS, PAUSE_SECONDS = 16, 0.05
KILLS = 2  # of each model's replicas, one after the other
ROUTE = "/v1/encode"
START_SECONDS = 300  # of a replica, where others use the cores, too


def arguments(folder: Path, models: Sequence[Path | str], replicas: int) -> tuple[str, ...]:
    """What starts a service of some models, by a file."""
    file = folder / "models.yaml"
    each = [{"model": str(model), "replicas": replicas, "threads": 1} for model in models]
    file.write_text(yaml.safe_dump({"models": each}))
    return "--config", str(file)


def address_of(service: "Service", *others: str) -> Address:
    """Where its models answer."""
    return Address(service.url, {FIRST: ""} | {name: f"/{name}" for name in others})


@pytest.fixture(scope="module")
def served(start: "Start", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The bundled model, a small embedder and a reranker, a replica each."""
    folder = tmp_path_factory.mktemp("several")
    models = FIRST, save_embedder(folder), save_reranker(folder)
    with start(*arguments(folder, models, 1), program=("tests.many_cores",)) as service:
        yield address_of(service, EMBEDDER, RERANKER)


def test_what_holds_behind_haproxy_alone_holds_over_ray(served: Address) -> None:
    """The checks of tests/service/cluster, of a service as users start it."""
    for path, body, headers, name in several.WAYS.values():
        several.check_named(served, path, body, headers, name)
    for size in (0, LARGE):
        several.check_unknown(served, size)
    several.check_sent_on(served)
    plain = disagreement.check_bodies(served, disagreement.PLAIN)
    doubtful = disagreement.check_bodies(served, disagreement.DOUBTFUL)

    assert plain == {200: 2 * len(disagreement.PLAIN)}
    assert 0 < doubtful[200] < doubtful.total()


def test_no_random_body_is_answered_by_a_model_that_it_does_not_name(served: Address) -> None:
    """Over Ray, too."""
    disagreement.check_random_bodies(served)


def test_unmodified_clients_are_answered_over_ray(
    served: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are installed, and what is recorded of others, with bodies of every size."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for size in clients.NAMES_OF_SIZES:
        for ask in clients.CLIENTS:
            clients.check_client(served, ask, size)
        for title in clients.NAMING:
            clients.check_recorded(served, title, size)


def replicas_of(service: "Service", application: str) -> set[int]:
    """The processes of a model's replicas."""
    title = f"ray::ServeReplica:{application}:".encode()
    return {pid for pid in service.family() if command(pid).startswith(title)}


def is_whole(service: "Service", application: str, gone: Set[int]) -> bool:
    """Whether a model has two replicas besides those that were killed."""
    return len(replicas_of(service, application) - gone) == 2


def during(do: Callable[[], object], port: int) -> dict[str, drill.Journal]:
    """Ask every model by turns while something is done; what each one's clients saw."""
    over, journals = threading.Event(), {name: drill.Journal() for name in BODIES}

    async def ask_and_do() -> None:
        asking = [
            asyncio.create_task(
                drill.client(
                    port,
                    number,
                    over.is_set,
                    journals[name],
                    kept=number % 2 == 0,
                    pause=PAUSE_SECONDS,
                    body=json.dumps(BODIES[name]).encode(),
                )
            )
            for number, name in enumerate(islice(cycle(BODIES), CLIENTS))
        ]
        try:
            await asyncio.to_thread(do)
        finally:
            over.set()
            await asyncio.gather(*asking)

    asyncio.run(ask_and_do())
    return journals


def test_replicas_that_die_lose_no_request_and_no_other_model_answers(
    start: "Start", tmp_path: Path
) -> None:
    """16 clients ask three models; SIGKILL of a replica of each in turn, and what is counted."""
    checkpoint(tmp_path / SPARSE, "ForMaskedLM")
    models = FIRST, save_reranker(tmp_path), tmp_path / SPARSE
    with start(*arguments(tmp_path, models, 2), program=("tests.many_cores",)) as service:
        address, gone = address_of(service, RERANKER, SPARSE), set[int]()
        weights = address.weights()

        def kill_in_turn() -> None:
            time.sleep(2)
            for application in ("headlight", RERANKER, SPARSE) * KILLS:
                victim = random.choice(sorted(replicas_of(service, application)))
                os.kill(victim, signal.SIGKILL)
                gone.add(victim)
                drill.wait(
                    partial(is_whole, service, application, gone), "a replica", START_SECONDS
                )
                drill.wait(lambda: all_answer(address), "all answer", START_SECONDS)
            time.sleep(2)

        journals = during(kill_in_turn, service.port)
        counted = address.counted()

    for name, journal in journals.items():
        print(f"{name}: {dict(journal.codes)}, lost {len(journal.lost)}", dict(journal.replicas))
        assert journal.lost == [] and set(journal.codes) == {200}
        assert len(journal.data) == 1
        assert {one for one, _ in journal.named} == {weights[name]}
    assert len(gone) == KILLS * len(BODIES)
    seen = sum((journal.replicas for journal in journals.values()), start=Counter[str]())
    exact = {
        replica: count
        for (replica, route, code), count in counted.items()
        if route == ROUTE and code == "200" and count
    }
    assert len(exact) == 2 * len(BODIES)
    assert exact == {replica: seen[replica] for replica in exact}


def all_answer(address: Address) -> bool:
    """Whether two replicas of each model have answered clients."""
    busy = {
        replica
        for (replica, route, _), count in address.counted().items()
        if route == ROUTE and count
    }
    return len(busy) == 2 * len(BODIES)
