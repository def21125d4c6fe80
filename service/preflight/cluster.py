"""Checks of a running Ray, and of nodes that could run a new replica before an old one goes.

A node that joined without our variables would run HAProxy as Ray leaves it, neither limited nor
locked down; and Ray runs it where a replica is, and on the head node. So every replica demands the
label of nodes that were started with them (ingress.LABEL).

Ray builds an application in a task of its own, and only then begins to replace replicas: a failure
there leaves the serving ones as they are. Only the new replica can show, at its start, that a
model's answers are right; the old one goes on until then, unless the file says
max_surge_percent: 0.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationDetails, ServeInstanceDetails
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.cluster import network
from service.cluster.ingress import NODE_LABEL
from service.cluster.start_report import StartFailed, last_line
from service.preflight.finding import Checks, Finding, NodeReport
from service.preflight.machine import replicas_key
from service.tables.settings import Settings

logger = logging.getLogger(__name__)

HEAD = "node:__internal_head__"  # a resource that Ray counts on the head node
# Of messages on a node without the label: how it was started, and what it lacks
REMEDY = "without deploy/serve/ray.env: the label headlight=serves is missing"
PROBE_SECONDS = 20.0  # for all nodes to answer, at once
# What a replica takes where a file's ray_actor_options leave it out
ACTOR_DEFAULTS = {"num_cpus": 1.0}
COUNTED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # actor option: resource


class Cluster(NamedTuple):
    """The Ray cluster that this process has joined.

    Args:
        nodes: all of them, as ray.nodes() lists them.
        host: what every node listens on for clients.
        here: the address of this node.
    """

    nodes: Sequence[Mapping[str, Any]]
    host: str
    here: str = ""

    @property
    def alive(self) -> Iterator[Mapping[str, Any]]:
        """Yield the nodes that are alive."""
        return (node for node in self.nodes if node["Alive"])

    @property
    def unlabelled(self) -> list[str]:
        """Return the addresses of nodes that get no replica because they lack the label."""
        return sorted(_address(node) for node in self.alive if not _is_labelled(node))

    @property
    def resources(self) -> dict[str, float]:
        """Return the combined resources of the nodes that may get a replica."""
        total: dict[str, float] = {}
        for node in filter(_is_labelled, self.alive):
            for name, count in node["Resources"].items():
                total[name] = total.get(name, 0) + count
        return total


def read_cluster(host: str) -> Cluster:
    """Return the Ray cluster that this process has joined, asked now."""
    return Cluster(list(ray.nodes()), host, here())  # type: ignore[no-untyped-call]  # Ray's gap


def here() -> str:
    """Return the address of this node."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's gap


def serve_client() -> Any:
    """Return Ray's own client of Serve's controller; raises RayServeException if there is none."""
    return _get_global_client()


def http_options() -> HTTPOptions:
    """Return the HTTP options of Ray Serve, such as the host that every node listens on."""
    options: HTTPOptions = serve_client().http_config
    return options


def check_gpus(settings: Settings, cluster: Cluster) -> Iterator[Finding]:
    """Look for a GPU where one is asked for."""
    if settings.device == "cuda" and not int(cluster.resources.get("GPU", 0)):
        yield Finding("", "Ray has no GPU", "use --device cpu")


def check_cores(settings: Settings, cluster: Cluster) -> Iterator[Finding]:
    """Compare the replicas' threads with all cores; where Ray counts no cores, it bounds none."""
    needed = settings.most_replicas * (settings.threads or 0)
    cores = int(cluster.resources.get("CPU", 0))
    if needed > cores > 0:
        text = f"{replicas_key(settings)} x threads is {needed}, but Ray has only {cores} cores"
        yield Finding("", text)


def check_head_label(_: Settings, cluster: Cluster) -> Iterator[Finding]:
    """Check that the head node was started with our variables."""
    for node in filter(_is_head, cluster.alive):
        if not _is_labelled(node):
            yield Finding(f"{_address(node)}, the head", f"was started {REMEDY}")


def check_loopback(_: Settings, cluster: Cluster) -> Iterator[Finding]:
    """Check whether several nodes listen where only their own machine reaches them."""
    serving = sorted(_address(node) for node in cluster.alive if _is_labelled(node))
    if network.is_loopback(cluster.host) and len(serving) > 1:
        text = f"is each machine's own, and {', '.join(serving)} serve together"
        yield Finding(f"host {cluster.host}", text, "listen on 0.0.0.0")


def check_node_addresses(_: Settings, cluster: Cluster) -> Iterator[Finding]:
    """Check that the head node, which probes each replica, can reach one here."""
    heads = {_address(node) for node in cluster.alive if _is_head(node)}
    if network.is_loopback(cluster.host) and heads - {cluster.here}:
        text = f"is this machine's own, and {', '.join(heads)} asks it too"
        yield Finding(f"host {cluster.host}", text, "listen on 0.0.0.0")


CHECKS: Checks = {
    check_gpus: {"serve"},
    check_cores: {"join"},  # on a Ray of its own machine.py counts the same ones
    check_head_label: {"join", "build"},
    check_loopback: {"join", "build"},
    check_node_addresses: {"replica"},
}


def probe_nodes(
    config: Settings, args: Settings, deployment: str, defaults: Mapping[str, Any]
) -> None:
    """Ask each node that may host a replica whether it could; without a Ray, do nothing.

    Args:
        config: the settings of the new replica.
        args: what its file says of them, by which the application is found.
        defaults: the deployment's options where the file has none.

    Raises:
        StartFailed: one could not, or none has memory for one more.
    """
    if not ray.is_initialized():
        return
    for file, running in _find_deployments(args, deployment) or [({}, 0)]:
        options = {**defaults, **file}
        actor = options["ray_actor_options"] or {}
        nodes = [node for node in read_cluster("").nodes if can_host(node, actor)]
        if not nodes:  # they may join later; until then Ray says what it waits for
            needed = resources_of({**ACTOR_DEFAULTS, **actor}).items()
            amounts = ", ".join(f"{name} {amount:g}" for name, amount in needed)
            logger.warning("no node to probe", extra={"reason": amounts})
        # next to an old one, unless the file keeps it off their nodes or wants the old one gone
        overlapping = not running or (
            options["max_surge_percent"] > 0 and not options.get("max_replicas_per_node")
        )
        refuse_faults(dict(_examine_nodes(nodes, config)), overlapping=overlapping)


def can_host(node: Mapping[str, Any], actor: Mapping[str, Any]) -> bool:
    """Tell whether a node, as Ray describes it, has what a replica asks for, taken or not.

    Args:
        actor: ray_actor_options.
    """
    has, labels = node["Resources"], node.get("Labels") or {}
    needed = resources_of({**ACTOR_DEFAULTS, **actor}).items()
    return bool(
        node["Alive"]
        and all(has.get(name, 0) >= amount for name, amount in needed)
        and (actor.get("label_selector") or {}).items() <= labels.items()
    )


def resources_of(actor: Mapping[str, Any]) -> dict[str, float]:
    """Return the amount of each of Ray's resources that these ray_actor_options take."""
    amounts = {ours: float(actor.get(name) or 0) for name, ours in COUNTED.items()}
    return {
        name: amount
        for name, amount in (amounts | (actor.get("resources") or {})).items()
        if amount
    }


def refuse_faults(nodes: Mapping[str, NodeReport], *, overlapping: bool) -> None:
    """Check that the nodes can host a new replica, by their reports.

    Args:
        nodes: reports by the address of the node.
        overlapping: whether a new replica needs memory while an old one has its own.

    Raises:
        StartFailed: they cannot; names each node and why.
    """
    faults = [f"node {at}: {node.fault}" for at, node in nodes.items() if node.fault]
    digests = {node.digest: at for at, node in nodes.items() if node.digest}
    if len(digests) > 1:
        lie = "; ".join(f"{digest} on node {at}" for digest, at in digests.items())
        faults.append(f"the nodes' files of the model differ: {lie}")
    if overlapping and nodes and all(node.short for node in nodes.values()):
        faults += [f"node {at}: {node.short}" for at, node in nodes.items()]
    if faults:
        raise StartFailed("; ".join(faults))


def read_options(application: str, deployment: str) -> dict[str, Any]:
    """Return the options of a deployment that its application's Serve file has; none without one.

    An update of some of them alone reaches replicas that run, which do not read them again.
    """
    found = _read_applications().get(application)
    return _options_in_file(found, deployment) if found else {}


def _find_deployments(args: Settings, deployment: str) -> list[tuple[Mapping[str, Any], int]]:
    """Find the deployment in each application whose file says the same in args.

    Returns:
        The options that the file has, and the replicas of the previous version that serve now.
    """
    matches = list[tuple[Mapping[str, Any], int]]()
    for application in _read_applications().values():
        file = application.deployed_app_config
        if file and _are_same_settings(file.args, args):
            serving = application.deployments.get(deployment)
            replicas = serving.replicas if serving else []
            running = sum(replica.state == "RUNNING" for replica in replicas)
            matches.append((_options_in_file(application, deployment), running))
    return matches


def _read_applications() -> Mapping[str, ApplicationDetails]:
    """Return what Ray knows of the applications, by name; nothing where it does not answer."""
    try:
        return ServeInstanceDetails(**serve_client().get_serve_details()).applications
    except (RayError, RayServeException):
        return {}


def _options_in_file(application: ApplicationDetails, deployment: str) -> dict[str, Any]:
    """Return the options of a deployment that an application's Serve file has."""
    file = application.deployed_app_config
    listed = [config for config in file.deployments if config.name == deployment] if file else []
    return listed[0].model_dump(exclude_unset=True) if listed else {}


def _are_same_settings(file_args: Mapping[str, Any], args: Settings) -> bool:
    """Tell whether a file's args are these settings; another program's args are not."""
    try:
        return Settings.model_validate(file_args) == args
    except ValueError:
        return False


def _examine_nodes(
    nodes: Sequence[Mapping[str, Any]], config: Settings
) -> Iterator[tuple[str, NodeReport]]:
    """Yield each node's address and its report, this node's made in this process."""

    def examine_node(settings: Settings) -> NodeReport:
        """Import torch, which takes seconds of a core, where the report is made alone."""
        from service.preflight import model

        return model.examine_node(settings)

    deadline = time.monotonic() + PROBE_SECONDS
    here = ray.get_runtime_context().get_node_id()
    probe = ray.remote(examine_node)
    tasks = {
        _address(node): probe.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(config)
        for node in nodes
        if node["NodeID"] != here
    }
    for node in nodes:
        if node["NodeID"] == here:
            yield _address(node), examine_node(config)
    for address, task in tasks.items():
        try:
            yield address, ray.get(task, timeout=max(0.0, deadline - time.monotonic()))
        except GetTimeoutError:
            ray.cancel(task, force=True)
            yield address, NodeReport(fault=f"it did not answer within {PROBE_SECONDS:g} s")
        except RayError as error:
            yield address, NodeReport(fault=last_line(error))


def _is_labelled(node: Mapping[str, Any]) -> bool:
    """Tell whether a node was started with our variables, of which one labels it."""
    return all(node["Labels"].get(name) == value for name, value in NODE_LABEL.items())


def _is_head(node: Mapping[str, Any]) -> bool:
    """Tell whether a node is the cluster's head."""
    return HEAD in node["Resources"]


def _address(node: Mapping[str, Any]) -> str:
    """Return a node's IP address."""
    return str(node["NodeManagerAddress"])
