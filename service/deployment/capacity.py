"""Room on a cluster's nodes: a replica fits on one node, and all fit together."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from service.deployment.applications import Application
from service.deployment.faults import Fault
from service.wording.words import counted, listed

Resources = dict[str, float]
MINOR = 1e-4  # Ray counts resources in such parts


class Need(NamedTuple):
    """What replicas take.

    Args:
        each: what one takes of its node.
        replicas: how many there are at the least.
        a_node: how many may share a node.
    """

    each: Resources
    replicas: int
    a_node: int | None


def need(ours: Application) -> Need:
    """Return what the replicas of an application take."""
    actor: dict[str, Any] = ours.actor
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    each = {name: float(actor.get(key) or 0) for name, key in named.items()}
    each |= actor.get("resources") or {}
    if actor.get("accelerator_type"):
        each[f"accelerator_type:{actor['accelerator_type']}"] = 0.001
    if ours.settings.device == "cuda" and "ray_actor_options" not in ours.options:
        each["GPU"] = 1.0  # as service.app:build has it
    taken = {name: value for name, value in each.items() if value}
    return Need(taken, ours.replicas[0], ours.options.get("max_replicas_per_node"))


def lacking(ours: Sequence[Application], nodes: Sequence[Resources]) -> Iterator[Fault]:
    """Find what Ray would wait for, for ever.

    Args:
        nodes: what each node has in all, as Ray counts it.
    """
    needs = [need(each) for each in ours]
    for each, its in zip(ours, needs, strict=True):
        if sentence := _alone(its, nodes) or _together(its, nodes):
            yield Fault(each.at("ray_actor_options"), sentence)
            return
    for name in sorted({name for its in needs for name in its.each}):
        there = sum(node.get(name, 0) for node in nodes)
        wanted = sum(its.replicas * its.each.get(name, 0) for its in needs)
        if wanted > there + MINOR:
            text = f"all replicas together take {name} {wanted:g}, and the nodes have {there:g}"
            yield Fault(ours[-1].at("ray_actor_options"), text)


def fits(need: Need, node: Resources) -> int:
    """Return how many replicas a node has room for."""
    rooms = [int(node.get(name, 0) / value + MINOR) for name, value in need.each.items()]
    return min([*rooms, *([need.a_node] if need.a_node else [])], default=need.replicas)


def said(resources: Resources) -> str:
    """Return resources in words: CPU 2 and GPU 1."""
    return listed([f"{name} {value:g}" for name, value in sorted(resources.items())], "and")


def _alone(its: Need, nodes: Sequence[Resources]) -> str:
    """What no single node has."""
    if any(fits(its, node) for node in nodes) or not its.each:
        return ""
    short = {
        name: max((node.get(name, 0) for node in nodes), default=0)
        for name, value in its.each.items()
        if all(node.get(name, 0) < value for node in nodes)
    }
    most = f"; no node has more than {said(short)}" if short else "; no node has all of it"
    return f"a replica takes {said(its.each)}{most}"


def _together(its: Need, nodes: Sequence[Resources]) -> str:
    """What the nodes do not have for all replicas."""
    room = sum(fits(its, node) for node in nodes)
    if its.replicas <= room or not its.each:
        return ""
    apart = f", at most {its.a_node} on a node" if its.a_node else ""
    replicas = counted(its.replicas, "replica")
    return f"{replicas} of {said(its.each)} each{apart}; the nodes have room for {room}"
