"""The Ray that a service runs on: one of its own, started and ended with it, or a cluster's.

Ray is imported inside functions, since it reads the environment on import.
"""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cluster import ingress, network, ray_directory, start_report, tls
from service.cluster.start_report import StartFailed, last_line
from service.commands.terminal import Failed
from service.preflight import machine
from service.preflight.finding import require, run
from service.tables.cores import count_cores
from service.tables.settings import Settings
from service.tables.sources import PREFIX
from service.tables.wording.values import word_error

JOIN_SECONDS = 60  # for a cluster to run a task that takes no time

# Methods that start processes of Ray's which a service on one machine has no use for: the
# autoscaler, the dashboard's server, and the reader of the workers' files, whose part
# terminal_relay.py has
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
def start_own_ray(
    settings: Settings, say: Say, pem: bytes = b"", servable: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Start a Ray of our own, which only this service uses; yields its directory.

    Args:
        pem: certificate and key of HAProxy, if clients speak TLS.
        servable: waits until the models have been checked, and raises if they cannot be served.
    """
    kept = ray_directory.logs_folder(settings.port)
    with ray_directory.make_directory(kept) as run, network.reserve_ports(settings.port) as block:
        forget_settings()  # before ours: HAProxy's wrapper reads two
        os.environ.update(ingress.common_variables(settings))
        os.environ.update(ingress.own_ray_variables(settings, block, run, count_cores()))
        if pem:
            tls.write_certificate(pem, run)
        import ray.serve  # which takes half as long as the check

        servable()
        stay = f"in {kept / run.name}" if kept else "lost: no folder for them can be made"
        say(f"logs: {run / ray_directory.LOGS}; after the service stops: {stay}")
        say("starting Ray")
        with ray_directory.redirect_output(run / ray_directory.DRIVER):
            try:
                waiting = start_report.report_progress(say, lambda: "Ray has not started yet")
                with keep_sigterm(), waiting:
                    start_ray_processes(run, stay)
                yield run
            except ray.exceptions.RayError as error:  # as a proxy that died at the start
                raise explain_failure(error, run, stay) from error
            finally:
                ray.shutdown()


def start_ray_processes(run: Path, stay: str) -> None:
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
    with (run / ray_directory.DRIVER).open("a") as file:
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

    with ray_directory.redirect_output(Path(os.devnull)):
        try:
            with (
                keep_sigterm(),
                start_report.report_progress(say, lambda: "the cluster has not answered yet"),
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
        raise StartFailed(
            f"no Ray cluster at {settings.address}: {last_line(word_error(error))}"
        ) from error


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
    if name := dead_process():
        raise Failed(f"{name} died, so the service has stopped")


def dead_process() -> str:
    """Return the name of a child of ours that died, as Ray's raylet; on a cluster Ray has none."""
    with suppress(ChildProcessError):
        if died := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return Path(f"/proc/{died.si_pid}/comm").read_text().strip()
    return ""
