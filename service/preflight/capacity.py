"""Room on a cluster's nodes for the replicas that a Serve file asks for."""

from collections.abc import Iterator, Mapping, Sequence

from service.preflight.applications import Application
from service.preflight.cluster import taken
from service.preflight.finding import Finding
from service.wording.words import counted, listed

Resources = Mapping[str, float]
MINOR = 1e-4  # Ray counts resources in such parts


def lacking(ours: Sequence[Application], nodes: Sequence[Resources]) -> Iterator[Finding]:
    """Find replicas for which Ray would wait for ever.

    Args:
        nodes: what each node has in all, as Ray counts it.
    """
    for each in ours:
        replicas, resources = each.replicas[0], need(each)
        bound = each.options.get("max_replicas_per_node") or replicas
        rooms = [min(fits(resources, node), bound) for node in nodes]
        if resources and sum(rooms) < replicas:
            text = f"{counted(replicas, 'replica')} of {said(resources)} each"
            has = f"the nodes have room for {sum(rooms)}"
            if not any(rooms):
                most = {name: max(node.get(name, 0) for node in nodes) for name in resources}
                short = {name: count for name, count in most.items() if count < resources[name]}
                text = f"a replica takes {said(resources)}"
                has = f"no node has {f'more than {said(short)}' if short else 'all of it'}"
            yield Finding(each.at("ray_actor_options"), text, has)


def need(ours: Application) -> Resources:
    """Return what a replica takes of its node."""
    kind = ours.actor.get("accelerator_type")
    resources = taken(ours.actor) | ({f"accelerator_type:{kind}": 0.001} if kind else {})
    if ours.settings.device == "cuda" and "ray_actor_options" not in ours.options:
        resources["GPU"] = 1.0  # as service.app:build has it
    return resources


def fits(resources: Resources, node: Resources) -> int:
    """Return how many replicas a node has room for; no bound if they take nothing."""
    return min((int(node.get(name, 0) / one + MINOR) for name, one in resources.items()), default=0)


def said(resources: Resources) -> str:
    """Return resources in words: CPU 2 and GPU 1."""
    return listed([f"{name} {value:g}" for name, value in sorted(resources.items())], "and")
