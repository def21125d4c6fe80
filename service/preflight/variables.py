"""The variables with which a node's processes were started.

HAProxy must not fill before the queues behind it:

    MAXCONN >= (max_waiting_requests + 256) x replicas, of each application, + 256
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from service.cluster import ingress
from service.cluster.progress import StartFailed
from service.preflight.finding import Finding
from service.settings import Settings


def require_promised(
    settings: Settings, actual: Mapping[str, str], node: str = "this cluster"
) -> None:
    """Ensure that Ray's processes on a node were started with what the promise needs.

    Raises:
        StartFailed: they were not, or the cluster is open to anyone who reaches it.
    """
    if found := "; ".join(map(str, find_differences(promised(settings), actual))):
        raise StartFailed(f"{node} cannot serve: {found}")


def promised(settings: Settings) -> dict[str, str]:
    """Return what a cluster's variables must be for some settings."""
    return ingress.common_variables(settings) | ingress.TOKEN_AUTH_ENV


def find_differences(promised: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[Finding]:
    """Find each variable that breaks the promise."""
    for name, must in promised.items():
        if not _keeps(name, must, actual.get(name, "")):
            what = f"is {actual[name]!r}" if name in actual else "is not set"
            mend = f"must be {'at least ' * (name == ingress.HAPROXY_MAXCONN)}{must}"
            if name in ingress.TOKEN_AUTH_ENV:
                mend = f"anyone who reaches Ray could run code: {mend}"
            yield Finding(name, what, mend)


def _keeps(name: str, must: str, actual: str) -> bool:
    """Tell whether a variable, empty where it is not set, keeps the promise."""
    if name == ingress.PROGRAM:
        return Path(actual).name == must  # where it lies is the image's business
    if name == ingress.HAPROXY_MAXCONN:
        return actual.isdecimal() and int(actual) >= int(must)  # other models have their share
    return actual == must
