"""Whether the nodes could run a new replica, asked before Ray touches an old one.

Ray builds an application in a task of its own, and only then begins to replace replicas: what
fails here leaves those that serve as they are. Each node that may host a replica says what it
lacks (needs.of_node). That a model's answers are right is shown by the new replica alone, at its
start; the old one goes on until then, unless the file says max_surge_percent: 0.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayError
from ray.serve.exceptions import RayServeException
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service import needs
from service.cluster.progress import last_line
from service.needs import Node
from service.settings import Settings

logger = logging.getLogger(__name__)

PROBE_SECONDS = 20.0  # for all nodes to answer, at once
# What a replica is counted as where a file's ray_actor_options leave it out
ASKED = {"num_cpus": 1.0}
COUNTED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


class Unfit(Exception):
    """A node could not run a new replica; its text is one line that names each."""


class Deployed(NamedTuple):
    """A deployment as its file has it.

    Args:
        options: the file's, by their names.
        running: replicas that serve now, of the version before.
    """

    options: Mapping[str, Any]
    running: int


def prove(config: Settings, args: Settings, deployment: str, defaults: Mapping[str, Any]) -> None:
    """Have each node that may host a replica say whether it could; without a Ray, nothing.

    Args:
        config: the settings of the new replica.
        args: what its file says of them, by which the application is found.
        defaults: the deployment's options where the file has none.

    Raises:
        Unfit: one could not, or none has memory for one more.
    """
    if not ray.is_initialized():
        return
    for file, running in _deployed(args, deployment) or [Deployed({}, 0)]:
        options = {**defaults, **file}
        actor = options["ray_actor_options"] or {}
        nodes = [node for node in _nodes() if hosts(node, actor)]
        if not nodes and running:
            raise Unfit(f"no node has what a replica asks for: {_wanted(actor)}")
        if not nodes:  # nodes may join later, as on Kubernetes
            logger.warning("no node to probe", extra={"reason": _wanted(actor)})
        # beside an old one, unless the file keeps it off their nodes or wants the old one gone
        beside = not running or (
            options["max_surge_percent"] > 0 and not options.get("max_replicas_per_node")
        )
        judge(dict(_ask(nodes, config)), beside=beside)


def hosts(node: Mapping[str, Any], actor: Mapping[str, Any]) -> bool:
    """Whether a node, as Ray describes it, has what a replica asks for, taken or not.

    Args:
        actor: ray_actor_options.
    """
    has, labels = node["Resources"], node.get("Labels") or {}
    return bool(
        node["Alive"]
        and all(has.get(name, 0) >= amount for name, amount in _resources(actor).items())
        and (actor.get("label_selector") or {}).items() <= labels.items()
    )


def judge(nodes: Mapping[str, Node], *, beside: bool) -> None:
    """Hold what the nodes said.

    Args:
        nodes: by address.
        beside: whether a new replica needs memory while an old one has its own.

    Raises:
        Unfit: names each node and why.
    """
    faults = [f"node {at}: {node.fault}" for at, node in nodes.items() if node.fault]
    digests = {node.digest: at for at, node in nodes.items() if node.digest}
    if len(digests) > 1:
        lie = "; ".join(f"{digest} on node {at}" for digest, at in digests.items())
        faults.append(f"the nodes' files of the model differ: {lie}")
    if beside and nodes and all(node.short for node in nodes.values()):
        faults += [f"node {at}: {node.short}" for at, node in nodes.items()]
    if faults:
        raise Unfit("; ".join(faults))


def _deployed(args: Settings, deployment: str) -> list[Deployed]:
    """The deployment in each application whose file says the same in args."""
    try:
        controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        configs: Any = controller.get_app_configs.remote()
        files: dict[str, Any] = ray.get(configs, timeout=PROBE_SECONDS)
        applications = serve.status().applications
    except (RayError, RayServeException, ValueError):  # ValueError: there is no controller
        return []
    found = []
    for name, file in files.items():
        if _same(file.args, args):
            listed = [each for each in file.deployments if each.name == deployment]
            options = listed[0].model_dump(exclude_unset=True) if listed else {}
            old = applications[name].deployments.get(deployment) if name in applications else None
            found.append(Deployed(options, old.replica_states.get("RUNNING", 0) if old else 0))
    return found


def _same(file: Mapping[str, Any], args: Settings) -> bool:
    """Whether a file's args are these settings; those of another program are none."""
    try:
        return Settings.model_validate(file) == args
    except ValueError:
        return False


def _nodes() -> list[dict[str, Any]]:
    return list(ray.nodes())  # type: ignore[no-untyped-call]  # Ray's gap


def _ask(nodes: Sequence[Mapping[str, Any]], config: Settings) -> Iterator[tuple[str, Node]]:
    """What each node says by its address; the one we are on in this very process."""
    until = time.monotonic() + PROBE_SECONDS
    here = ray.get_runtime_context().get_node_id()
    probe = ray.remote(needs.of_node)
    tasks = {
        node["NodeManagerAddress"]: probe.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(config)
        for node in nodes
        if node["NodeID"] != here
    }
    yield from (
        (node["NodeManagerAddress"], needs.of_node(config))
        for node in nodes
        if node["NodeID"] == here
    )
    for address, task in tasks.items():
        try:
            yield address, ray.get(task, timeout=max(0.0, until - time.monotonic()))
        except GetTimeoutError:
            ray.cancel(task, force=True)
            yield address, Node(fault=f"it did not answer within {PROBE_SECONDS:g} s")
        except RayError as error:
            yield address, Node(fault=last_line(error))


def _resources(actor: Mapping[str, Any]) -> dict[str, float]:
    """What a replica takes of a node, by Ray's names."""
    counted = {
        COUNTED[name]: amount for name, amount in {**ASKED, **actor}.items() if name in COUNTED
    }
    return {**counted, **(actor.get("resources") or {})}


def _wanted(actor: Mapping[str, Any]) -> str:
    """The same in words."""
    return ", ".join(f"{name} {amount:g}" for name, amount in _resources(actor).items() if amount)
