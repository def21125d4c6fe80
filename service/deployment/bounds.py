"""Bounds of a Serve file that only go together: time-outs, replicas, processors, ports.

request_timeout_s              = the deadline + 5: our own refusal comes first
graceful_shutdown_timeout_s   >= drain + deadline + 5: what was admitted is answered
num_cpus                      >= threads
num_gpus                       > 0 just where the device is cuda
num_replicas                  or max_replicas in args, never both
ssl_*, target_capacity        never: HAProxy does not see the one, the other moves all counts here
"""

from collections.abc import Iterator
from typing import Any

from service.cluster import ingress, nodes, reach
from service.deployment.applications import Application
from service.deployment.faults import Fault
from service.wording.words import listed

# What Ray and HAProxy listen on, as far as nobody says otherwise
TAKEN = {
    6379: "Ray's GCS",
    8265: "Ray's dashboard",
    8404: "HAProxy's state page",
    8500: "Ray's own proxy beside HAProxy",
    9101: "HAProxy's own metrics",
    10001: "Ray's client server",
    44217: "the metrics of Ray's autoscaler",
    44227: "the metrics of Ray's dashboard",
    52365: "the agent of Ray's dashboard",
}
REPLICAS = range(30_000, 31_001)  # where Ray has the replicas listen, behind HAProxy

# What service.app:build works out of the settings: another value breaks what they promise
BUILT = {
    "max_ongoing_requests": "max_waiting_requests in args",
    "max_queued_requests": "max_waiting_requests in args",
    "user_config": "args, with which new replicas start",
    "backpressure_config": "service.app:build",
    "request_router_config": "HAProxy, which chooses the replica",
}
# The same for a whole application: replicas follow the load in one way
SCALED = {"autoscaling_policy", "external_scaler_enabled"}


def of_file(value: dict[str, Any], ours: list[Application]) -> Iterator[Fault]:
    """Find what is wrong with the part of a file that its applications share.

    Args:
        value: the file as schema.plain has it.
    """
    options = value.get("http_options", {})
    yield from _host(options)
    yield from _port(options.get("port", 8000))
    yield from _request_timeout(options, ours)
    yield from _ignored(value, options, ours)
    for name in ("deadline_seconds", "drain_seconds"):
        values = {getattr(each.settings, name): None for each in ours}
        if len(values) > 1:
            text = f"one HAProxy carries all, so they must agree; here are {_several(values)}"
            yield Fault((*ours[-1].loc, "args", name), text)
    if value.get("proxy_location") == "Disabled":
        yield Fault(("proxy_location",), "nobody would listen; write EveryNode")


def _ignored(
    value: dict[str, Any], options: dict[str, Any], ours: list[Application]
) -> Iterator[Fault]:
    """What would not be as the file says: clear text for TLS, other numbers of replicas."""
    for name in sorted(options):
        if name.startswith("ssl_") and options[name]:
            yield Fault(("http_options", name), "HAProxy does not read it; end TLS in front of it")
    if value.get("target_capacity") is not None:
        text = "leave it out; the number of replicas is num_replicas, or max_replicas in args"
        yield Fault(("target_capacity",), text)
    for each in ours:
        application = value["applications"][each.loc[-1]]
        for name in sorted(SCALED & application.keys()):
            if application[name]:
                yield Fault((*each.loc, name), "leave it out; write max_replicas in args")


def of_application(ours: Application) -> Iterator[Fault]:
    """Find what is wrong with one application."""
    for name, where in BUILT.items():
        if name in ours.options:
            yield Fault(ours.at(name), f"leave it out; it comes from {where}")
    yield from _shutdown(ours)
    yield from _scaling(ours)
    yield from _label(ours)
    yield from _processors(ours)
    yield from _gpus(ours)


def _several(values: dict[Any, None]) -> str:
    return listed(
        (f"{value:g}" if isinstance(value, float) else str(value) for value in values), "and"
    )


def _host(options: dict[str, Any]) -> Iterator[Fault]:
    """Ray's own default differs between a file and Python, and is open to the network."""
    at = ("http_options", "host")
    if "host" not in options:
        yield Fault(at, "is not set, and Ray would listen on 0.0.0.0; write 127.0.0.1 or 0.0.0.0")
    elif reach.loopback(options["host"]):
        text = "only its own node reaches a replica; on several nodes write 0.0.0.0"
        yield Fault(at, text, note=True)


def _port(port: int) -> Iterator[Fault]:
    at = ("http_options", "port")
    if not 1 <= port <= 65535:
        yield Fault(at, f"a port is 1 to 65535, not {port}")
    elif port in TAKEN:
        yield Fault(at, f"{port} is for {TAKEN[port]}; write another, such as 8000")
    elif port in REPLICAS:
        among = f"{REPLICAS.start} to {REPLICAS.stop - 1}"
        yield Fault(at, f"{port} is among {among}, which are the replicas'; write another")


def _request_timeout(options: dict[str, Any], ours: list[Application]) -> Iterator[Fault]:
    if not ours:
        return
    at, deadline = ("http_options", "request_timeout_s"), ours[0].settings.deadline_seconds
    value, must = options.get("request_timeout_s"), deadline + 5
    if value is None:
        yield Fault(at, f"is not set, so that a request may take for ever; write {must:g}")
    elif value != must:
        yield Fault(at, f"{value:g} must be deadline_seconds + 5; write {must:g}")


def _shutdown(ours: Application) -> Iterator[Fault]:
    name, least = "graceful_shutdown_timeout_s", ingress.shutdown_seconds(ours.settings)
    value = ours.options.get(name, least)
    if value < least:
        terms = "drain_seconds + deadline_seconds + 5"
        yield Fault(ours.at(name), f"{value:g} is less than {terms}; write at least {least:g}")


def _scaling(ours: Application) -> Iterator[Fault]:
    """The number of replicas is said in one place: here if it is fixed, in args if it is not."""
    fixed = ours.options.get("num_replicas")
    if "autoscaling_config" in ours.options:
        text = "not here but min_replicas and max_replicas in args"
        yield Fault(ours.at("autoscaling_config"), text)
    elif fixed == "auto":
        yield Fault(ours.at("num_replicas"), "not auto; write max_replicas in args")
    elif fixed is not None and ours.settings.max_replicas is not None:
        text = "leave it out; with max_replicas in args, min_replicas is the start"
        yield Fault(ours.at("num_replicas"), text)


def _label(ours: Application) -> Iterator[Fault]:
    """What a file says of its actors replaces what the code does, and what keeps bare nodes out."""
    at, selector = ours.at("ray_actor_options", "label_selector"), nodes.LABEL
    if ours.actor and not selector.items() <= (ours.actor.get("label_selector") or {}).items():
        wanted = ", ".join(f"{name}: {value}" for name, value in selector.items())
        yield Fault(at, f"keeps replicas off nodes without ray.env; write {{{wanted}}}")


def _processors(ours: Application) -> Iterator[Fault]:
    at, settings = ours.at("ray_actor_options", "num_cpus"), ours.settings
    cores = ours.actor.get("num_cpus") or 0
    if settings.threads and cores < settings.threads:
        text = f"{cores:g} is less than threads; write num_cpus: {settings.threads}"
        yield Fault(at, text)
    elif settings.threads is None and settings.device != "cuda":
        text = "threads is not set, and a replica takes every core of its node; write it in args"
        yield Fault(at, text, note=True)


def _gpus(ours: Application) -> Iterator[Fault]:
    at, cuda = ours.at("ray_actor_options", "num_gpus"), ours.settings.device == "cuda"
    count = ours.actor.get("num_gpus") or 0
    if cuda and not count and "ray_actor_options" in ours.options:
        yield Fault(at, "device is cuda, but Ray hides every GPU; write num_gpus: 1")
    elif count and ours.settings.device == "cpu":
        yield Fault(at, f"device is cpu, but a replica takes {count:g} GPU; leave it out")
    elif count > 1:
        yield Fault(at, f"a replica uses one GPU, not {count:g}; write num_gpus: 1")
    if cuda and ours.settings.threads not in (None, 1):
        yield Fault((*ours.loc, "args", "threads"), "on a GPU it must be 1; leave it out")
