"""A head and two workers, each with its own address: what serves, and what is refused."""

import os
import signal
import time
from typing import Any

import httpx
import pytest

from tests.cluster import load, nodes
from tests.ray import drill

pytestmark = [pytest.mark.ray, pytest.mark.prove]

JOINED_BARE = 5
MODELS = {"all-MiniLM-L6-v2": 384, "transformer-base": 512}  # the width of each, by its name


def test_a_loopback_on_several_nodes_is_refused_by_their_addresses(three: nodes.Cluster) -> None:
    """Their HAProxies would ask each other's replicas in vain."""

    def loopback(configuration: dict[str, Any]) -> None:
        configuration["http_options"]["host"] = "127.0.0.1"

    three.deploy("laptop.yaml", loopback)
    found = three.wait(lambda found: found.get("headlight", {}).get("status") == "DEPLOY_FAILED")
    three.forget()

    serving = ", ".join(node.address for node in (three.head, *three.workers))
    assert (
        f"host 127.0.0.1: is each machine's own, and {serving} serve together"
        in (found["headlight"]["message"])
    )


@pytest.fixture(scope="module")
def crowded(three: nodes.Cluster) -> nodes.Cluster:
    """More replicas than the workers have room for, and a bare node that has room."""
    bare = three.start(JOINED_BARE, variables="export RAY_AUTH_MODE=token")
    three.deploy("laptop.yaml", nodes.replicated(3))
    three.ready()
    drill.wait(lambda: bare.address in three.alive(), "the bare node")
    return three


def test_a_node_with_the_token_alone_gets_neither_replica_nor_haproxy(
    crowded: nodes.Cluster,
) -> None:
    """The third replica says that it finds no place, though that node has one."""
    found = crowded.wait(lambda found: "to be scheduled" in str(found))
    places = sorted(nodes.replicas(found))

    workers = sorted(worker.address for worker in crowded.workers)
    assert places == [("RUNNING", workers[0]), ("RUNNING", workers[1]), ("STARTING", "")]
    bare = crowded.nodes[JOINED_BARE]
    assert not {"ServeReplica", "HAProxyManager", "haproxy"} & set(bare.processes().values())


def test_a_killed_replica_costs_no_node_a_request(crowded: nodes.Cluster) -> None:
    """Ten requests a second, and the answers' bits are the same from all nodes."""
    worker = crowded.workers[0]

    def kill() -> None:
        time.sleep(1)
        (victim,) = worker.named("ServeReplica")
        os.kill(victim, signal.SIGKILL)
        drill.wait(lambda: worker.named("ServeReplica") not in ([], [victim]), "another")

    addresses = [node.address for node in (crowded.head, *crowded.workers)]
    heard = load.during(kill, addresses, nodes.PORT, per_second=10)

    assert all(each.whole() for each in heard.values()), [str(each) for each in heard.values()]
    assert len(set().union(*(each.journal.data for each in heard.values()))) == 1


def test_a_wrong_update_costs_no_node_a_request(crowded: nodes.Cluster) -> None:
    """Ray names no replica to HAProxy from the moment it builds the new version, nor after that."""

    def wrong(configuration: dict[str, Any]) -> None:
        nodes.replicated(3)(configuration)
        configuration["applications"][0]["args"]["model"] = "/nowhere"

    def update() -> None:
        crowded.deploy("laptop.yaml", wrong)
        crowded.wait(lambda found: found["headlight"]["status"] == "DEPLOY_FAILED")
        time.sleep(1)

    addresses = [node.address for node in (crowded.head, *crowded.workers)]
    heard = load.during(update, addresses, nodes.PORT, per_second=10)

    assert all(each.whole() for each in heard.values()), [str(each) for each in heard.values()]
    page = httpx.get(f"http://{crowded.head.address}:{nodes.PORT}/metrics").text.splitlines()
    told = {"headlight_replicas_expected 2", "headlight_scrape_incomplete 0"}
    assert told <= set(page)  # of the old version, which serves on


def test_two_models_answer_on_every_node(three: nodes.Cluster) -> None:
    """At one address, by their names, wherever their replicas are."""
    three.deploy("two-models.yaml")
    three.wait(nodes.serving(2))

    for node in (three.head, *three.workers):
        url = f"http://{node.address}:{nodes.PORT}"
        for prefix in ("", "/base"):
            drill.wait(lambda url=url + prefix: nodes.answers(url), url)  # type: ignore[misc]
        for name, width in MODELS.items():
            answer = httpx.post(f"{url}/v1/embeddings", json={"input": "a", "model": name})
            assert len(answer.json()["data"][0]["embedding"]) == width
