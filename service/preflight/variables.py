"""The variables with which a node's processes were started.

HAProxy must not fill before the queues behind it:

    MAXCONN >= (max_waiting_requests + 256) x replicas, of each application, + 256
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from service.cluster import ingress
from service.cluster.start_report import StartFailed
from service.preflight.finding import Finding
from service.tables.settings import Settings


def require_variables(
    settings: Settings, actual: Mapping[str, str], node: str = "this cluster"
) -> None:
    """Check that Ray's processes on a node have the variables that the service depends on.

    Args:
        actual: the environment variables of such a process.
        node: what the message calls the node.

    Raises:
        StartFailed: they have not, or the cluster is open to anyone who reaches it.
    """
    required = ingress.common_variables(settings) | ingress.TOKEN_AUTH_ENV
    if found := "; ".join(map(str, find_differences(required, actual))):
        raise StartFailed(f"{node} cannot serve: {found}")


def find_differences(required: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each variable that does not have its required value."""
    for name, value in required.items():
        if not _is_satisfied(name, value, actual.get(name, "")):
            what = f"is {actual[name]!r}" if name in actual else "is not set"
            mend = f"must be {'at least ' * (name == ingress.HAPROXY_MAXCONN)}{value}"
            if name in ingress.TOKEN_AUTH_ENV:
                mend = f"anyone who reaches Ray could run code: {mend}"
            yield Finding(name, what, mend)


def _is_satisfied(name: str, required: str, actual: str) -> bool:
    """Tell whether a variable's value, empty where it is not set, is as required."""
    if name == ingress.PROGRAM:
        return Path(actual).name == required  # its folder depends on the image
    if name == ingress.HAPROXY_MAXCONN:
        return actual.isdecimal() and int(actual) >= int(required)  # other models have their share
    return actual == required
