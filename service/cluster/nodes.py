"""Which nodes of a cluster serve: those that say they were started with our variables.

    LABEL      what such a node is labelled with, and what every replica demands of its node
    unsuited   why a cluster's nodes cannot serve, if they cannot
    bare       those without the label: no replica comes there, and so no HAProxy

A node that joined without the variables would run HAProxy as Ray leaves it, with neither limits
nor closed doors. Ray runs it where a replica is, and on the head.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from service.cluster import reach

LABEL = {"headlight": "serves"}
DEMAND = {"label_selector": LABEL}  # of each replica
LABELLED = {"RAY_OVERRIDE_LABELS": json.dumps(LABEL)}  # which Ray reads when a node starts
HEAD = "node:__internal_head__"  # what Ray counts among the resources of the head
REMEDY = "without deploy/serve/ray.env: the label headlight=serves is missing"

Nodes = Iterable[Mapping[str, Any]]  # as ray.nodes() lists them


def unsuited(nodes: Nodes, host: str) -> Iterator[str]:
    """Say in a sentence each why a cluster cannot serve.

    Args:
        nodes: the cluster's.
        host: what every node listens on.
    """
    alive = [node for node in nodes if node["Alive"]]
    for head in filter(_is_head, alive):
        if not _labelled(head):
            yield f"{_address(head)}, the head, was started {REMEDY}"
    serving = sorted(_address(node) for node in alive if _labelled(node))
    if reach.loopback(host) and len(serving) > 1:
        yield (
            f"host {host} is each machine's own, and {', '.join(serving)} serve together: listen"
            " on 0.0.0.0"
        )


def apart(nodes: Nodes, host: str, here: str) -> Iterator[str]:
    """Say in a sentence why a replica here cannot be reached, if it cannot: the head asks too."""
    heads = {_address(node) for node in nodes if node["Alive"] and _is_head(node)}
    if reach.loopback(host) and heads - {here}:
        yield f"host {host} is this machine's own, and {', '.join(heads)} asks it too"


def bare(nodes: Nodes) -> list[str]:
    """List the addresses of nodes that get no replica, for want of the label."""
    return sorted(_address(node) for node in nodes if node["Alive"] and not _labelled(node))


def resources(nodes: Nodes) -> dict[str, float]:
    """Add up what the nodes have that may get a replica."""
    total: dict[str, float] = {}
    for node in nodes:
        if node["Alive"] and _labelled(node):
            for name, count in node["Resources"].items():
                total[name] = total.get(name, 0) + count
    return total


def _labelled(node: Mapping[str, Any]) -> bool:
    return all(node["Labels"].get(name) == value for name, value in LABEL.items())


def _is_head(node: Mapping[str, Any]) -> bool:
    return HEAD in node["Resources"]


def _address(node: Mapping[str, Any]) -> str:
    return str(node["NodeManagerAddress"])
