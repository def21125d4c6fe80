"""Which nodes of a cluster serve, and which cannot."""

from typing import Any

import pytest

from service.cluster import nodes

HEAD, WORKER, OTHER = "10.0.0.2", "10.0.0.3", "10.0.0.5"


def node(address: str, *, label: bool = True, alive: bool = True) -> dict[str, Any]:
    """One node, as Ray lists it."""
    head = {nodes.HEAD: 1.0} if address == HEAD else {}
    return {
        "NodeManagerAddress": address,
        "Alive": alive,
        "Labels": {"ray.io/node-id": address} | (nodes.LABEL if label else {}),
        "Resources": {"CPU": 7.0} | head,
    }


def test_a_head_without_the_variables_is_named() -> None:
    """Ray runs HAProxy on the head, whatever it has."""
    (said,) = nodes.unsuited([node(HEAD, label=False), node(WORKER)], "0.0.0.0")

    assert said.startswith(f"{HEAD}, the head, was started without deploy/serve/ray.env")


def test_a_loopback_that_several_share_is_refused_by_their_addresses() -> None:
    """One node alone may listen there, whatever bare or dead node there is beside it."""
    (said,) = nodes.unsuited([node(HEAD), node(WORKER)], "127.0.0.1")

    assert said.startswith(f"host 127.0.0.1 is each machine's own, and {HEAD}, {WORKER} serve")
    beside = [node(HEAD), node(OTHER, label=False), node(WORKER, alive=False)]
    assert list(nodes.unsuited(beside, "127.0.0.1")) == []
    assert list(nodes.unsuited([node(HEAD), node(WORKER)], "0.0.0.0")) == []


@pytest.mark.parametrize(("here", "said"), [(HEAD, 0), (WORKER, 1)])
def test_a_replica_beside_the_head_needs_more_than_the_loopback(here: str, said: int) -> None:
    """On a node that joins later too; the one on the head keeps serving."""
    cluster = [node(HEAD), node(WORKER)]

    assert len(list(nodes.apart(cluster, "localhost", here))) == said
    assert list(nodes.apart(cluster, "0.0.0.0", here)) == []


def test_what_a_bare_node_has_does_not_count() -> None:
    """Nor what a dead one had."""
    cluster = [node(HEAD), node(OTHER, label=False), node(WORKER, alive=False)]

    assert nodes.bare(cluster) == [OTHER]
    assert nodes.resources(cluster) == {"CPU": 7.0, nodes.HEAD: 1.0}
