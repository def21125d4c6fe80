"""Start the service on a Ray of its own or on a cluster, and stop it without a trace.

    preflight     all is there that Ray would otherwise wait for without end
    workspace     a private directory, and the sweeper that outlives us and keeps the logs
    ports         the service's port is free; a block for Ray and HAProxy
    environment   set before ray is imported
    ray           ours, or the cluster named by --address
    application   deployed; ready when /ready says so
    door          HAProxy refuses before the application goes, and shuts after (drain.py)

They end in the opposite order; ray_session.py has the Ray. Ray is imported inside functions, since
it reads the environment on import. torch is not imported at all: the preflight asks another process
(preflight/isolated.py).
"""

import errno
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from service.cluster import drain, ingress, network, start_report, terminal_relay, tls
from service.cluster.model_settings import APPLICATION, path_name
from service.cluster.start_report import StartFailed, last_line
from service.commands.terminal import Unusable
from service.files import weights
from service.observe import logs
from service.preflight import isolated, machine
from service.preflight.finding import require, run
from service.start.ray_session import Say, dead_process, join_cluster, start_own_ray
from service.tables.settings import Settings
from service.tables.sources import PREFIX

STOP_SECONDS = 10  # for Ray to delete what has left; then we give up on it
NO_ROOM = re.compile(r"required for each replica: (.*), total resources available: (.*?)\. Use ")
GIVEN_UP_SECONDS = 3  # the same for a start that was ended or failed


@contextmanager
def run_service(models: Sequence[Settings], say: Say, write: Say) -> Iterator[str]:
    """Run the service of some models while the block runs; yields its address.

    Args:
        say: says what happens.
        write: passes on lines of the replicas' logs, which are written already.

    Raises:
        Unusable: the port is taken, or the host is not this machine's, and the models are right.
        TimeoutError: it was not ready in time.
        StartFailed: anything else, with its cause.
    """
    host, port = models[0].host, models[0].port
    with ExitStack() as stack:
        try:
            stack.enter_context(network.claim_port(host, port))
        except OSError as error:
            require_servable(models)  # a wrong model is told first: no other port mends it
            place = "HOST" if error.errno == errno.EADDRNOTAVAIL else "PORT"
            mend = f"choose another with --{place.lower()} or {PREFIX}{place}"
            line = f"cannot listen on {host} port {port}: {error.strerror}; {mend}"
            raise Unusable(line) from error
        yield stack.enter_context(start_service(models, say, write))


@contextmanager
def start_service(models: Sequence[Settings], say: Say, write: Say) -> Iterator[str]:
    """Start the service on a port that is ours; yields its address; otherwise as `run_service`."""
    settings = max(models, key=lambda model: model.max_waiting_requests)  # what all must find room
    try:
        pem = tls.read_certificate(settings)
    except tls.BadCertificate as error:
        raise Unusable(str(error)) from error
    if settings.address is None:
        require(run("serve", machine.CHECKS, settings))
    elif pem:
        raise StartFailed(
            "tls_cert cannot be used on a cluster: end TLS in front of it (docs/tls.md)"
        )
    elif settings.log_to_stderr:
        raise StartFailed(
            "log_to_stderr cannot be used on a cluster: see logs/worker-*.out of each node"
        )
    models = pin_models([network.restrict_hosts(model) for model in models])
    for warning in network.warn_of_exposure(settings):
        say(f"warning: {warning}")
    with ExitStack() as stack:
        frontend = lines = None  # of a Ray of our own alone; it passes on warnings and errors

        def report_ended(name: str) -> None:
            """Print that a replica has ended, as a warning in its log."""
            write(logs.write_line(settings.log_format, name, "replica ended"))

        if settings.address is None:
            named = {own_name(model): model for model in models}
            servable = stack.enter_context(isolated.checking(named, say))
            folder = stack.enter_context(start_own_ray(settings, say, pem, servable))
            lines = stack.enter_context(terminal_relay.Relay(folder / "lines", write, report_ended))
            frontend = drain.Frontend(folder / "haproxy", settings.port)
            stack.callback(frontend.close_listener)
        else:
            stack.enter_context(join_cluster(settings, say))
        say(f"loading {', '.join(model.model for model in models)}")
        stack.enter_context(run_applications(models, say, lines.path if lines else None))
        if frontend:
            stack.callback(answer_admitted, frontend, ingress.shutdown_seconds(settings), say)
        with start_report.report_progress(say, lambda: "/ready does not answer 200 yet"):
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


def answer_admitted(frontend: drain.Frontend, seconds: float, say: Say) -> None:
    """Refuse new requests, and wait some seconds for those with a replica, which is said."""

    def cause() -> str:
        """Say how many requests are waited for."""
        return f"{frontend.count_requests()} to be answered; Ctrl-C ends all at once"

    if under_way := frontend.count_requests():
        say(f"requests under way: {under_way}; they get up to {seconds:g} s, new ones a 503")
    with start_report.report_progress(say, cause):
        frontend.refuse(seconds)


def require_servable(models: Sequence[Settings]) -> None:
    """Check models as a start does; a cluster's are left to the cluster.

    Raises:
        StartFailed: one cannot be served.
    """
    if models[0].address is None:
        named = {own_name(model): model for model in pin_models(models)}
        with isolated.checking(named, say=lambda note: None) as servable:
            servable()


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

    applications = {APPLICATION: models[0]} | {path_name(model): model for model in models[1:]}
    for settings in models:
        require(run("serve", CHECKS, settings, read_cluster(settings.host)))
    with start_report.report_progress(say, lambda: "Ray Serve has not started yet"):
        start_serve(models[0], applications)
    patience: float = GIVEN_UP_SECONDS
    try:
        for name, settings in applications.items():
            with (
                start_report.naming_failures(own_name(settings)),
                start_report.report_progress(say, partial(awaited_replicas, name)),
            ):
                deploy_application(name, settings, lines)
        patience = ingress.shutdown_seconds(models[0]) + STOP_SECONDS
        yield
    finally:
        if not dead_process():
            # HAProxy stays while replicas drain; serve.shutdown would end it first. Ray waits for
            # ever when its controller does not answer; we do not.
            leaving = [
                threading.Thread(target=serve.delete, args=[name], daemon=True)
                for name in applications
            ]
            for leave in leaving:
                leave.start()
            end = time.monotonic() + patience
            cause = f"replicas to end; after {patience:g} s they are ended"
            with start_report.report_progress(say, lambda: cause):
                for leave in leaving:
                    leave.join(max(end - time.monotonic(), 0))


def start_serve(settings: Settings, applications: Iterable[str]) -> None:
    """Start Ray Serve and its proxies.

    Args:
        applications: the names of those to deploy.

    Raises:
        StartFailed: an application of our name is there already.
    """
    from ray import serve

    # HAProxy alone listens for others (haproxy.HOST); on a cluster a replica is asked by the
    # HAProxy of other nodes too
    host = settings.host if settings.address else network.REPLICA_HOST
    logging = {"log_level": "WARNING", "enable_access_log": False}
    serve.start(http_options={"host": host, "port": settings.port}, logging_config=logging)
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
        prefix = "/" if name == APPLICATION else f"/{name}"
        serve.run(application, name=name, route_prefix=prefix)
    except RuntimeError as error:
        raise StartFailed(last_line(app.deployment_status(name)[1] or str(error))) from error


def awaited_replicas(name: str) -> str:
    """Return in words an application's number of replicas by state, and Ray's message."""
    from service import app

    states, message = app.deployment_status(name)
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items() if count)
    reason = word_wait(message)
    return f"replicas: {counts or 'none yet'}" + (f"; {reason}" if reason else "")


def word_wait(message: str) -> str:
    """Return why replicas have not started, given Ray's message on it; empty: it says nothing."""
    if not message:
        return ""
    if "to initialize" in message:  # Ray's next words are about code that is ours
        return "loading and checking the model takes long; on a busy machine it may take minutes"
    if found := NO_ROOM.search(message):
        return "no node has room for one more: each needs {}, free are {}".format(*found.groups())
    return last_line(message)
