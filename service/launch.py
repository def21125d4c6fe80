"""Start the service on a Ray of its own or on a cluster, and stop it without a trace.

    workspace     a private directory, and the sweeper that outlives us
    ports         the service's port is free; a block for Ray and HAProxy
    environment   set before ray is imported
    ray           ours, or the cluster named by --address
    application   deployed; ready when /ready says so
    door          HAProxy refuses before the application goes, and shuts after (drain.py)

Each is left in the opposite order. Ray is imported inside functions: it reads the environment
when it is.
"""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from service.cluster import drain, ingress, sweep
from service.engine import weights
from service.settings import MIB, PREFIX, Settings

READY_SECONDS = 60  # from deployed to ready: canary and HAProxy's own checks
JOIN_SECONDS = 60  # for a cluster to run a task that takes no time
STOP_SECONDS = 10  # for the sweeper, beyond which we leave it alone

# Ray's shared memory carries requests only behind its Python proxy; 75 MiB is its least.
STORE_BYTES = {"haproxy": 80 * MIB, "proxy": 512 * MIB}

Say = Callable[[str], None]


class CannotListen(Exception):
    """The host and port asked for cannot be had; its text is one line."""


class StartFailed(Exception):
    """The service could not be started; its text is one line."""


class Lost(Exception):
    """Ray died under the service; its text is one line."""


@contextmanager
def running(settings: Settings, say: Say) -> Iterator[str]:
    """Run the service while the block runs; gives its address.

    Raises:
        CannotListen: the port is taken, or the host is not this machine's.
        StartFailed: anything else, with its cause.
    """
    try:
        ingress.free(settings.host, settings.port)
    except OSError as error:
        place = f"{settings.host} port {settings.port}"
        raise CannotListen(f"cannot listen on {place}: {error.strerror}") from error
    settings = pinned(settings)
    with ExitStack() as stack:
        frontend = None  # which stops only with a Ray of our own
        if settings.address is None:
            look_for_model(settings)
            run = stack.enter_context(own_ray(settings, say))
            if settings.ingress == "haproxy":
                frontend = drain.Frontend(run / "haproxy", settings.port)
                stack.callback(frontend.shut)
        else:
            stack.enter_context(cluster(settings, say))
        say(f"loading {settings.model}")
        stack.enter_context(deployed(settings))
        if frontend:
            stack.callback(frontend.refuse, ingress.shutdown_seconds(settings))
        wait_until_ready(settings)
        try:
            yield f"http://{reachable(settings.host)}:{settings.port}"
        finally:
            say("stopping")


def pinned(settings: Settings) -> Settings:
    """Name one commit of a hub's model, so that every replica, now and later, loads the same.

    Raises:
        StartFailed: the revision cannot be looked up.
    """
    try:
        return settings.model_copy(update={"model": weights.pin(settings.model)})
    except weights.ModelNotFound as error:
        raise StartFailed(str(error)) from error


def look_for_model(settings: Settings) -> None:
    """Refuse a model that is not there before a replica does, ten seconds later.

    Raises:
        StartFailed: it is not.
    """
    try:
        weights.locate(settings.model)
    except weights.ModelNotFound as error:
        raise StartFailed(str(error)) from error


@contextmanager
def workspace() -> Iterator[Path]:
    """Make a private directory, swept with all processes of the service whatever ends us."""
    # Unix sockets have paths of at most 107 bytes, and TMPDIR may be long.
    directory = tempfile.mkdtemp(prefix="headlight-", dir="/tmp")
    command = [sys.executable, "-I", "-S", sweep.__file__, directory]
    sweeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # out of reach of what ends our group
    )
    try:
        yield Path(directory)
    finally:
        with suppress(subprocess.TimeoutExpired):
            sweeper.communicate(timeout=STOP_SECONDS)  # closes its input


@contextmanager
def own_ray(settings: Settings, say: Say) -> Iterator[Path]:
    """Start a Ray of our own, that nothing but this service uses; gives its directory."""
    with workspace() as run, ingress.block(settings.port) as block, quiet(run / "driver.log"):
        cores = os.cpu_count() or 1
        os.environ.update(ingress.promised(settings))
        os.environ.update(ingress.placed(settings, block, run, cores))
        guard(settings)
        say("starting Ray")
        import ray

        try:
            with our_sigterm():
                ray.init(
                    address="local",
                    num_cpus=cores,
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES[settings.ingress],
                    log_to_driver=False,
                    _temp_dir=str(run / "ray"),  # Ray opens it to all; ours stays private
                )
            yield run
        finally:
            ray.shutdown()


@contextmanager
def cluster(settings: Settings, say: Say) -> Iterator[None]:
    """Join a running cluster, if it carries requests as promised.

    Raises:
        StartFailed: it does not; names each variable that differs.
    """
    promised = ingress.promised(settings)
    os.environ.update(promised)
    guard(settings)
    say(f"joining the Ray cluster at {settings.address}")
    import ray

    with quiet(Path(os.devnull)):
        try:
            reach(settings.address or "")
            with our_sigterm():
                ray.init(address=settings.address, log_to_driver=False)
            read = ray.remote(num_cpus=0)(lambda: dict(os.environ)).remote()
            actual = ray.get(read, timeout=JOIN_SECONDS)
            ingress.check(settings, actual)
            yield
        except ingress.Unsuited as error:
            raise StartFailed(str(error)) from error
        except (OSError, ray.exceptions.GetTimeoutError) as error:
            raise StartFailed(f"no Ray cluster at {settings.address}: {error}") from error
        finally:
            ray.shutdown()


def guard(settings: Settings) -> None:
    """Leave in the environment, which Ray's processes inherit, what the outermost layer needs."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]  # settled already, and one of them may be an API key
    os.environ.update(ingress.guarded(settings))


def reach(address: str) -> None:
    """Connect once to a cluster's host:port, where Ray would try for minutes.

    Raises:
        OSError: nothing answers there.
    """
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()


@contextmanager
def our_sigterm() -> Iterator[None]:
    """Keep our handler of SIGTERM through ray.init, which puts one there that exits."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def deployed(settings: Settings) -> Iterator[None]:
    """Deploy the application; at the end let it answer what it admitted, then delete it.

    Raises:
        StartFailed: a replica could not start; says why.
    """
    from ray import serve

    from service import app

    serve.start(
        http_options={
            "host": settings.host,
            "port": settings.port,
            "request_timeout_s": settings.deadline_seconds + 5,
        },
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    if app.APPLICATION in serve.status().applications:
        raise StartFailed(f"the cluster already serves an application named {app.APPLICATION}")
    try:
        try:
            tries = app.TRIES_ALONE if settings.address is None else app.TRIES_ON_A_CLUSTER
            described = app.describe(settings, tries)
            serve.run(described, name=app.APPLICATION, route_prefix="/")
        except RuntimeError as error:
            status = serve.status().applications[app.APPLICATION].deployments
            said = status[app.DEPLOYMENT].message if app.DEPLOYMENT in status else str(error)
            raise StartFailed(last_line(said)) from error
        yield
    finally:
        if not dead():
            # HAProxy is still there while replicas drain; serve.shutdown would end it first.
            # Ray waits for ever when its controller does not answer; we do not.
            leave = threading.Thread(target=serve.delete, args=[app.APPLICATION], daemon=True)
            leave.start()
            leave.join(ingress.shutdown_seconds(settings) + STOP_SECONDS)


def dead() -> list[str]:
    """List the processes of our own Ray that died; on a cluster there are none of ours."""
    from ray._private.worker import _global_node

    return [name for name, _ in _global_node.dead_processes()] if _global_node else []


def check() -> None:
    """Check that our Ray still runs; Ray itself restarts only what runs below its raylet.

    Raises:
        Lost: it does not.
    """
    if names := dead():
        raise Lost(f"Ray's {names[0]} died, and the service with it")


def wait_until_ready(settings: Settings) -> None:
    """Ask /ready until it answers 200.

    Raises:
        StartFailed: it did not in time.
    """
    deadline = time.monotonic() + READY_SECONDS
    said = "no answer"
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(
            reachable(settings.host).strip("[]"), settings.port, timeout=5
        )
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            if answer.status == 200:
                return
            said = f"{answer.status} {answer.read(200).decode(errors='replace')}"
        except OSError as error:
            said = str(error)
        finally:
            connection.close()
        time.sleep(0.1)
    raise StartFailed(f"not ready after {READY_SECONDS} s: /ready says {said}")


def reachable(host: str) -> str:
    """Turn the address we listen on into one a client here can use."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def last_line(text: object) -> str:
    """Return the last line of a traceback, without colours and the exception's class."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(text)).strip()
    line = plain.splitlines()[-1] if plain else "no reason given"
    return re.sub(r"^([\w.]+(Error|Exception|Failed|Refused)): ", "", line)


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what Ray's libraries print to a file; whoever speaks to the user kept a copy."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
