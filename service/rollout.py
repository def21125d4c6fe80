"""The application on a Ray that runs: deployed, awaited, deleted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ray import serve

from service import app
from service.cluster import ingress, progress
from service.cluster.progress import StartFailed, last_line
from service.preflight import cluster
from service.preflight.finding import require, run
from service.settings import Settings

STOP_SECONDS = 10  # for Ray to delete what has left, beyond which we leave it alone
GIVEN_UP_SECONDS = 3  # the same for a start that was ended or failed


@contextmanager
def deployed(
    settings: Settings, say: Callable[[str], None], lines: Path | None = None
) -> Iterator[None]:
    """Deploy the application; at the end let it answer what it admitted, then delete it.

    Raises:
        StartFailed: Ray lacks what it needs, or a replica could not start; says why.
    """
    require(run("serve", cluster.CHECKS, settings, cluster.joined(settings.host)))
    with progress.told(say, lambda: "Ray Serve has not started yet"):
        start_serve(settings)
    patience: float = GIVEN_UP_SECONDS
    try:
        with progress.told(say, awaited):
            deploy(settings, lines)
        patience = ingress.shutdown_seconds(settings) + STOP_SECONDS
        yield
    finally:
        if not dead():
            # HAProxy is still there while replicas drain; serve.shutdown would end it first.
            # Ray waits for ever when its controller does not answer; we do not.
            leave = threading.Thread(target=serve.delete, args=[app.APPLICATION], daemon=True)
            leave.start()
            leave.join(patience)


def start_serve(settings: Settings) -> None:
    """Start what carries requests, where nothing goes by our name yet.

    Raises:
        StartFailed: something does.
    """
    serve.start(
        http_options={
            "host": settings.host,
            "port": settings.port,
            "request_timeout_s": ingress.request_seconds(settings),
        },
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    if app.APPLICATION in serve.status().applications:
        raise StartFailed(f"the cluster already serves an application named {app.APPLICATION}")


def deploy(settings: Settings, lines: Path | None) -> None:
    """Deploy the application, and wait until all its replicas have started.

    Raises:
        StartFailed: one could not; says why.
    """
    try:
        tries = app.TRIES_ALONE if settings.address is None else app.TRIES_ON_A_CLUSTER
        application = app.describe(settings, tries, lines)
        serve.run(application, name=app.APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise StartFailed(last_line(app.status()[1] or str(error))) from error


def awaited() -> str:
    """Say which replicas a start waits for, and what Ray says of them."""
    from service import app

    states, message = app.status()
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items() if count)
    return f"replicas: {counts or 'none yet'}" + (f"; {last_line(message)}" if message else "")


def dead() -> list[str]:
    """List the processes of our own Ray that died; on a cluster there are none of ours."""
    from ray._private.worker import _global_node

    return [name for name, _ in _global_node.dead_processes()] if _global_node else []
