"""Parts of a Serve file that only go together: time-outs, replicas, processors, ports.

request_timeout_s              = the deadline + 5: our own refusal comes first
graceful_shutdown_timeout_s   >= drain + deadline + 5: what was admitted is answered
num_cpus                      >= threads
num_gpus                       > 0 just where the device is cuda
num_replicas                  or max_replicas in args, never both
ssl_*, target_capacity        never: HAProxy does not see the one, the other moves all counts here
"""

from collections.abc import Callable, Iterator
from typing import Any

from service.cluster import ingress, network
from service.preflight import applications, schema
from service.preflight.applications import Application
from service.preflight.document import Document
from service.preflight.finding import Finding
from service.wording.words import listed

# What Ray and HAProxy listen on unless told otherwise
TAKEN = {
    6379: "Ray's GCS",
    8265: "Ray's dashboard",
    8404: "HAProxy's state page",
    8500: "Ray's own proxy behind HAProxy",
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
    "backpressure_config": "service.app:build",
    "user_config": "args, with which new replicas start",
    "request_router_config": "HAProxy, which chooses the replica",
}
# The same for a whole application: replicas follow the load in one way
SCALED = {"autoscaling_policy", "external_scaler_enabled"}
SHARED = ("deadline_seconds", "drain_seconds")  # what one HAProxy does for all


def read(document: Document, environ: dict[str, str]) -> tuple[list[Application], list[Finding]]:
    """Check a Serve file by itself; returns its applications if Ray's schema takes it.

    Args:
        environ: the variables of its nodes, as far as they are known.
    """
    wrong = list(schema.check(document.value))
    ours: list[Application] = []
    if not wrong:
        file = schema.plain(document.value)
        ours, wrong = applications.read(file, environ)
        wrong += schema.names(file)
        wrong += [found for check in OF_FILE for found in check(file, ours)]
        wrong += [found for each in ours for check in OF_APPLICATION for found in check(each)]
    return ours, [document.locate(found) for found in wrong]


def host(file: dict[str, Any], _: list[Application]) -> Iterator[Finding]:
    """Ask for a host: Ray's own default differs between a file and Python, and is open to all."""
    at, options = ("http_options", "host"), file.get("http_options", {})
    if "host" not in options:
        text = "is not set, and Ray would listen on 0.0.0.0"
        yield Finding(at, text, "write 127.0.0.1 or 0.0.0.0")
    elif network.loopback(options["host"]):
        text = "only its own node reaches a replica"
        yield Finding(at, text, "on several nodes write 0.0.0.0", "note")


def port(file: dict[str, Any], _: list[Application]) -> Iterator[Finding]:
    """Find a port that Ray or HAProxy uses itself."""
    at, port = ("http_options", "port"), file.get("http_options", {}).get("port", 8000)
    if not 1 <= port <= 65535:
        yield Finding(at, f"a port is 1 to 65535, not {port}")
    elif port in TAKEN:
        yield Finding(at, f"{port} is for {TAKEN[port]}", "write another, such as 8000")
    elif port in REPLICAS:
        among = f"{REPLICAS.start} to {REPLICAS.stop - 1}"
        yield Finding(at, f"{port} is among {among}, which are the replicas'", "write another")


def request_timeout(file: dict[str, Any], ours: list[Application]) -> Iterator[Finding]:
    """Compare Ray's time-out of a request with the deadline."""
    if ours:
        at, must = ("http_options", "request_timeout_s"), ours[0].settings.deadline_seconds + 5
        value = file.get("http_options", {}).get("request_timeout_s")
        if value is None:
            text = "is not set, so that a request may take for ever"
            yield Finding(at, text, f"write {must:g}")
        elif value != must:
            yield Finding(at, f"{value:g} must be deadline_seconds + 5", f"write {must:g}")


def ignored(file: dict[str, Any], ours: list[Application]) -> Iterator[Finding]:
    """Find what would not be as the file says: clear text for TLS, other numbers of replicas."""
    options = file.get("http_options", {})
    for name in sorted(options):
        if name.startswith("ssl_") and options[name]:
            mend = "end TLS in front of it"
            yield Finding(("http_options", name), "HAProxy does not read it", mend)
    if file.get("target_capacity") is not None:
        mend = "the number of replicas is num_replicas, or max_replicas in args"
        yield Finding(("target_capacity",), "leave it out", mend)
    if file.get("proxy_location") == "Disabled":
        yield Finding(("proxy_location",), "nothing would listen", "write EveryNode")
    for each in ours:
        application = file["applications"][each.loc[-1]]
        for name in sorted(SCALED & application.keys()):
            if application[name]:
                yield Finding((*each.loc, name), "leave it out", "write max_replicas in args")


def shared(_: dict[str, Any], ours: list[Application]) -> Iterator[Finding]:
    """Require one value from all applications of what one HAProxy does for all."""
    for name in SHARED:
        values = {getattr(each.settings, name): None for each in ours}
        if len(values) > 1:
            words = (f"{one:g}" if isinstance(one, float) else str(one) for one in values)
            text = "one HAProxy carries all, so they must agree"
            here = f"here are {listed(words, 'and')}"
            yield Finding((*ours[-1].loc, "args", name), text, here)


def built(ours: Application) -> Iterator[Finding]:
    """Find options that the builder works out."""
    for name in BUILT.keys() & ours.options.keys():
        yield Finding(ours.at(name), "leave it out", f"it comes from {BUILT[name]}")


def shutdown(ours: Application) -> Iterator[Finding]:
    """Compare the time that a replica may take to leave with what it may have admitted."""
    name, least = "graceful_shutdown_timeout_s", ingress.shutdown_seconds(ours.settings)
    if (value := ours.options.get(name, least)) < least:
        text = f"{value:g} is less than drain_seconds + deadline_seconds + 5"
        yield Finding(ours.at(name), text, f"write at least {least:g}")


def scaling(ours: Application) -> Iterator[Finding]:
    """Ask for one number of replicas: here if it is fixed, in args if it is not."""
    fixed = ours.options.get("num_replicas")
    if "autoscaling_config" in ours.options:
        text = "not here but min_replicas and max_replicas in args"
        yield Finding(ours.at("autoscaling_config"), text)
    elif fixed == "auto":
        yield Finding(ours.at("num_replicas"), "not auto", "write max_replicas in args")
    elif fixed is not None and ours.settings.max_replicas is not None:
        mend = "with max_replicas in args, min_replicas is the start"
        yield Finding(ours.at("num_replicas"), "leave it out", mend)


def label(ours: Application) -> Iterator[Finding]:
    """Ask for the label that keeps bare nodes out: a file's actor options replace the code's."""
    at, selector = ours.at("ray_actor_options", "label_selector"), ingress.LABEL
    if ours.actor and not selector.items() <= (ours.actor.get("label_selector") or {}).items():
        wanted = ", ".join(f"{name}: {value}" for name, value in selector.items())
        yield Finding(at, "keeps replicas off nodes without ray.env", f"write {{{wanted}}}")


def processors(ours: Application) -> Iterator[Finding]:
    """Compare the processors of a replica with its threads."""
    at, threads = ours.at("ray_actor_options", "num_cpus"), ours.settings.threads
    cores = ours.actor.get("num_cpus") or 0
    if threads and cores < threads:
        yield Finding(at, f"{cores:g} is less than threads", f"write num_cpus: {threads}")
    elif threads is None and ours.settings.device != "cuda":
        text = "threads is not set, and a replica takes every core of its node"
        yield Finding(at, text, "write it in args", "note")


def gpus(ours: Application) -> Iterator[Finding]:
    """Compare the GPUs of a replica with its device."""
    at, cuda = ours.at("ray_actor_options", "num_gpus"), ours.settings.device == "cuda"
    count = ours.actor.get("num_gpus") or 0
    if cuda and not count and "ray_actor_options" in ours.options:
        yield Finding(at, "device is cuda, but Ray hides every GPU", "write num_gpus: 1")
    elif count and ours.settings.device == "cpu":
        yield Finding(at, f"device is cpu, but a replica takes {count:g} GPU", "leave it out")
    elif count > 1:
        yield Finding(at, f"a replica uses one GPU, not {count:g}", "write num_gpus: 1")
    if cuda and ours.settings.threads not in (None, 1):
        yield Finding((*ours.loc, "args", "threads"), "on a GPU it must be 1", "leave it out")


OF_FILE: tuple[Callable[[dict[str, Any], list[Application]], Iterator[Finding]], ...] = (
    host,
    port,
    request_timeout,
    ignored,
    shared,
)
OF_APPLICATION: tuple[Callable[[Application], Iterator[Finding]], ...] = (
    built,
    shutdown,
    scaling,
    label,
    processors,
    gpus,
)
