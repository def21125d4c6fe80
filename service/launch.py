"""Start the service on a Ray of its own or on a cluster, and stop it without a trace.

    preflight     all is there that Ray would otherwise wait for without end
    workspace     a private directory, and the sweeper that outlives us and keeps the logs
    ports         the service's port is free; a block for Ray and HAProxy
    environment   set before ray is imported
    ray           ours, or the cluster named by --address
    application   deployed; ready when /ready says so
    door          HAProxy refuses before the application goes, and shuts after (drain.py)

They end in the opposite order. Ray is imported inside functions, since it reads the environment
on import. torch is not imported at all: the preflight asks another process (preflight/apart.py).
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cluster import drain, ingress, network, progress, relay, tls, workspace
from service.cluster.progress import StartFailed, last_line
from service.commands.terminal import Failed, Unusable
from service.cores import count_cores
from service.engine import weights
from service.models import path_name
from service.observe import logs
from service.preflight import apart, machine
from service.preflight.finding import require, run
from service.settings import PREFIX, Settings

JOIN_SECONDS = 60  # for a cluster to run a task that takes no time
POLL_SECONDS = 0.2  # between two looks whether an application runs or has gone; Ray's is 1 s
STOP_SECONDS = 10  # for Ray to delete what has left; then we give up on it
GIVEN_UP_SECONDS = 3  # the same for a start that was ended or failed
# Methods that start processes of Ray's which a service on one machine has no use for: the
# autoscaler, the dashboard's server, and the reader of the workers' files, replaced by relay.py
UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")
# Ray's node must have two agents, for metrics and for runtime environments, which no service on one
# machine uses: what runs in their place ends with the node. Their ports are written as Ray writes
# those of an agent that does not serve.
AGENT = ["sh", "-c", "exec cat"]
AGENT_PORTS = (
    *("metrics_agent_port", "metrics_export_port"),
    *("dashboard_agent_listen_port", "runtime_env_agent_port"),
)
NO_PORT = -1
Say = Callable[[str], None]  # prints a line

if TYPE_CHECKING:
    from ray.job_config import JobConfig


@contextmanager
def run_service(models: Sequence[Settings], say: Say) -> Iterator[str]:
    """Run the service of some models while the block runs; yields its address.

    Raises:
        Unusable: the port is taken, or the host is not this machine's.
        TimeoutError: it was not ready in time.
        StartFailed: anything else, with its cause.
    """
    with claim_service_port(models[0]), start_service(models, say) as address:
        yield address


@contextmanager
def claim_service_port(settings: Settings) -> Iterator[None]:
    """Claim the service's port against other services; raises as `run_service`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(network.claim_port(settings.host, settings.port))
        except OSError as error:
            place = f"{settings.host} port {settings.port}"
            raise Unusable(f"cannot listen on {place}: {error.strerror}") from error
        yield


@contextmanager
def start_service(models: Sequence[Settings], say: Say) -> Iterator[str]:
    """Start the service on a port that is ours; yields its address and raises as `run_service`."""
    settings = max(models, key=lambda model: model.max_waiting_requests)  # what all must find room
    try:
        pem = tls.read_certificate(settings)
    except tls.BadCertificate as error:
        raise Unusable(str(error)) from error
    if settings.address is None:
        require(run("serve", machine.CHECKS, settings))
    elif pem:
        raise StartFailed("tls_cert: on a cluster, end TLS in front of it; see docs/tls.md")
    elif settings.log_to_stderr:
        raise StartFailed(
            "log_to_stderr: on a cluster, replicas log to logs/worker-*.out of each node"
        )
    models = pin_models([network.restrict_hosts(model) for model in models])
    for warning in network.warn_of_exposure(settings):
        say(f"warning: {warning}")
    with ExitStack() as stack:
        frontend = lines = None  # of a Ray of our own alone; it passes on warnings and errors

        def report_ended(name: str) -> None:
            """Print that a replica has ended, as a warning in its log."""
            say(logs.warning_line(settings.log_format, name, "replica ended").decode().rstrip())

        if settings.address is None:
            named = {own_name(model): model for model in models}
            servable = stack.enter_context(apart.checking(named, say))
            folder = stack.enter_context(start_own_ray(settings, say, pem, servable))
            lines = stack.enter_context(relay.Relay(folder / "lines", say, report_ended))
            frontend = drain.Frontend(folder / "haproxy", settings.port)
            stack.callback(frontend.close_listener)
        else:
            stack.enter_context(join_cluster(settings, say))
        say(f"loading {', '.join(model.model for model in models)}")
        stack.enter_context(run_applications(models, say, lines.path if lines else None))
        if frontend:
            stack.callback(frontend.refuse, ingress.shutdown_seconds(settings))
        with progress.report_progress(say, lambda: "/ready does not answer 200 yet"):
            network.wait_until_ready(settings.host, settings.port, tls=bool(pem))
        if pem and frontend:
            stack.enter_context(tls.follow_certificate(settings, folder, frontend, say))
        try:
            if lines:
                lines.watches = True
            scheme = "https" if pem else "http"
            yield f"{scheme}://{network.client_host(settings.host)}:{settings.port}"
        finally:
            if lines:
                lines.watches = False
            say("stopping")


def pin_models(models: Sequence[Settings]) -> list[Settings]:
    """Pin each of the hub's models to one commit, so that every replica, now and later, loads it.

    Raises:
        StartFailed: a revision cannot be looked up.
    """
    try:
        pinned = [weights.pin_revision(settings.model) for settings in models]
    except weights.ModelNotFound as error:
        raise StartFailed(str(error)) from error
    return [
        settings.model_copy(update={"model": model})
        for settings, model in zip(models, pinned, strict=True)
    ]


def own_name(settings: Settings) -> str:
    """Return the name of one of several models; empty where there is no other."""
    return path_name(settings) if settings.other_replicas else ""


@contextmanager
def start_own_ray(
    settings: Settings, say: Say, pem: bytes = b"", servable: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Start a Ray of our own, which only this service uses; yields its directory.

    Args:
        pem: certificate and key of HAProxy, if clients speak TLS.
        servable: waits until the models have been checked, and raises if they cannot be served.
    """
    kept = workspace.logs_folder(settings.port)
    with (
        workspace.make_directory(kept) as run,
        network.reserve_ports(settings.port) as block,
    ):
        forget_settings()  # before ours: HAProxy's wrapper reads two
        os.environ.update(ingress.common_variables(settings))
        os.environ.update(ingress.own_ray_variables(settings, block, run, count_cores()))
        if pem:
            tls.write_certificate(pem, run)
        import ray.serve  # which takes half as long as the check

        servable()
        stay = f"in {kept / run.name}" if kept else "lost: no folder for them can be made"
        say(f"logs: {run / workspace.LOGS}; after the service stops: {stay}")
        say("starting Ray")
        with workspace.redirect_output(run / workspace.DRIVER):
            try:
                waiting = progress.report_progress(say, lambda: "Ray has not started yet")
                with keep_sigterm(), waiting:
                    start_ray_processes(settings, run, stay)
                yield run
            except ray.exceptions.RayError as error:  # as a proxy that died at the start
                raise explain_failure(error, run, stay) from error
            finally:
                ray.shutdown()


def start_ray_processes(settings: Settings, run: Path, stay: str) -> None:
    """Start Ray's processes, without those of UNUSED and agents; arguments as of explain_failure.

    Raises:
        StartFailed: one could not start.
    """
    import ray
    from ray._private import services
    from ray._private.node import Node

    for name in UNUSED:  # ray.init has no option for it
        setattr(Node, name, lambda *_, **__: None)
    services._build_python_executable_command_memory_profileable = lambda *_: AGENT
    start = partialmethod(start_raylet, Node.start_raylet)
    Node.start_raylet = start  # type: ignore[method-assign,assignment]
    try:
        ray.init(
            address="local",
            job_config=job_config(),
            num_cpus=count_cores(),
            include_dashboard=False,
            object_store_memory=machine.STORE_BYTES,
            log_to_driver=False,
            _temp_dir=str(run / "ray"),  # Ray opens it to all; ours stays private
        )
    except Exception as error:  # Ray raises that class itself where its node times out
        raise explain_failure(error, run, stay) from error


def start_raylet(node: Any, start: Callable[..., None], *sizes: object) -> None:
    """Start the raylet of a node of Ray's as `start` does, told that no agent serves."""
    from ray._raylet import persist_port  # type: ignore[attr-defined]  # compiled

    for name in AGENT_PORTS:
        persist_port(node.get_session_dir_path(), node.node_id, name, NO_PORT)
    start(node, *sizes)


def job_config() -> "JobConfig":
    """Return options that keep the current folder, and a model.py there, off the workers' path."""
    from ray.job_config import JobConfig

    return JobConfig(_client_job=True)  # a client's folder is not the cluster's


def explain_failure(error: Exception, run: Path, stay: str) -> StartFailed:
    """Return the error of a Ray that did not start, or died; driver.log gets the traceback.

    Args:
        run: the service's directory.
        stay: where the logs are once the service has stopped.
    """
    with (run / workspace.DRIVER).open("a") as file:
        traceback.print_exception(error, file=file)
    mend = "is the machine busy? try again when it is less so"
    return StartFailed(f"Ray failed: {last_line(error)}; {mend}; the traceback is {stay}")


@contextmanager
def join_cluster(settings: Settings, say: Say) -> Iterator[None]:
    """Join a running cluster if it carries requests as promised.

    Raises:
        StartFailed: it does not; names each variable that differs.
    """
    promised = ingress.common_variables(settings)
    os.environ.update(promised)
    forget_settings()
    say(f"joining the Ray cluster at {settings.address}")
    import ray

    with workspace.redirect_output(Path(os.devnull)):
        try:
            with (
                keep_sigterm(),
                progress.report_progress(say, lambda: "the cluster has not answered yet"),
            ):
                warnings = connect(settings)
            for warning in warnings:
                say(warning)
            yield
        finally:
            ray.shutdown()


def connect(settings: Settings) -> list[str]:
    """Join a cluster; return a warning for each node that will get no replica."""
    import ray

    from service.preflight import variables
    from service.preflight.cluster import CHECKS, REMEDY, read_cluster

    try:
        network.check_ray_answers(settings.address or "")
        ray.init(address=settings.address, job_config=job_config(), log_to_driver=False)
        cluster = read_cluster(settings.host)
        require(run("join", CHECKS, settings, cluster))
        address = ray.util.get_node_ip_address
        task = ray.remote(num_cpus=0, label_selector=ingress.NODE_LABEL)
        read = task(lambda: (address(), dict(os.environ))).remote()  # type: ignore[no-untyped-call]
        node, actual = ray.get(read, timeout=JOIN_SECONDS)
        variables.require_variables(settings, actual, node)
        return [
            f"warning: {node} gets no replica: it was started {REMEDY}"
            for node in cluster.unlabelled
        ]
    except (OSError, ValueError, RuntimeError, ray.exceptions.GetTimeoutError) as error:
        raise StartFailed(f"no Ray cluster at {settings.address}: {last_line(error)}") from error


@contextmanager
def run_applications(models: Sequence[Settings], say: Say, lines: Path | None) -> Iterator[None]:
    """Deploy an application a model; at the end let each answer what it has, then delete it.

    The first model is mounted at the root, each other one below its name.

    Args:
        lines: a relay's pipe for the replicas' log lines; None: there is no relay.

    Raises:
        StartFailed: Ray lacks what it needs, or a replica could not start; says why.
    """
    from ray import serve

    from service.preflight.cluster import CHECKS, read_cluster

    applications = name_applications(models)
    for settings in models:
        require(run("serve", CHECKS, settings, read_cluster(settings.host)))
    with progress.report_progress(say, lambda: "Ray Serve has not started yet"):
        start_serve(models[0], applications)
    patience: float = GIVEN_UP_SECONDS
    try:
        for name, settings in applications.items():
            with (
                progress.naming_failures(own_name(settings)),
                progress.report_progress(say, partial(awaited_replicas, name)),
            ):
                deploy_application(name, settings, lines)
        patience = ingress.shutdown_seconds(models[0]) + STOP_SECONDS
        yield
    finally:
        if not dead_processes():
            # HAProxy stays while replicas drain; serve.shutdown would end it first. Ray waits for
            # ever when its controller does not answer; we do not.
            leaving = [
                threading.Thread(target=serve.delete, args=[name], daemon=True)
                for name in applications
            ]
            for leave in leaving:
                leave.start()
            end = time.monotonic() + patience
            for leave in leaving:
                leave.join(max(end - time.monotonic(), 0))


def name_applications(models: Sequence[Settings]) -> dict[str, Settings]:
    """Return the models by the names of their applications, the first one's at the root."""
    from service import app

    first, *others = models
    return {app.APPLICATION: first} | {path_name(model): model for model in others}


def start_serve(settings: Settings, applications: Iterable[str]) -> None:
    """Start Ray Serve and its proxies; on a Ray of our own replicas need not wait for HAProxy.

    Args:
        applications: the names of those to deploy.

    Raises:
        StartFailed: an application of our name is there already.
    """
    from ray import serve
    from ray.serve._private import api, client
    from ray.serve.config import ControllerOptions

    client.CLIENT_POLLING_INTERVAL_S = POLL_SECONDS  # type: ignore[attr-defined]  # its own import
    logging = {"log_level": "WARNING", "enable_access_log": False}
    if settings.address is None:
        # HAProxy alone listens for others (haproxy.HOST)
        http = {"host": network.REPLICA_HOST, "port": settings.port}
        api._create_controller_and_proxy_refs(http, None, logging, None, ControllerOptions())
        return
    # here a replica is asked by the HAProxy of other nodes too
    serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=logging)
    for name in serve.status().applications.keys() & {*applications}:
        raise StartFailed(f"the cluster already serves an application named {name}")


def deploy_application(name: str, settings: Settings, lines: Path | None) -> None:
    """Deploy a model's application, and wait until all its replicas have started.

    Args:
        lines: as `run_applications` takes them.

    Raises:
        StartFailed: one could not; says why.
    """
    from ray import serve

    from service import app

    try:
        tries = app.TRIES_ALONE if settings.address is None else app.TRIES_ON_A_CLUSTER
        application = app.make_application(settings, tries, lines)
        prefix = "/" if name == app.APPLICATION else f"/{name}"
        serve.run(application, name=name, route_prefix=prefix)
    except RuntimeError as error:
        raise StartFailed(last_line(app.deployment_status(name)[1] or str(error))) from error


def awaited_replicas(name: str) -> str:
    """Return in words an application's number of replicas by state, and Ray's message."""
    from service import app

    states, message = app.deployment_status(name)
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items() if count)
    return f"replicas: {counts or 'none yet'}" + (f"; {last_line(message)}" if message else "")


def forget_settings() -> None:
    """Delete our settings from the environment, which Ray's processes inherit.

    Replicas get theirs with the deployment, and one of them may be an API key.
    """
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Keep our SIGTERM handler through ray.init, which installs one that exits."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def check_ray() -> None:
    """Check that our own Ray still runs; Ray itself restarts only what runs under its raylet.

    Raises:
        Failed: it does not.
    """
    if names := dead_processes():
        raise Failed(f"Ray's {names[0]} died, so the service has stopped")


def dead_processes() -> list[str]:
    """Return the names of our own Ray's processes that died; on a cluster none are ours."""
    from ray._private.worker import _global_node

    return [name for name, _ in _global_node.dead_processes()] if _global_node else []
