"""Ray's dashboard, by its REST interface: what runs on a cluster, its nodes, and a deployment.

It needs none of the cluster's variables, and from Ray only the token that Ray itself reads.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx

from service.cluster.progress import last_line

APPLICATIONS, NODES, ACTORS = "/api/serve/applications/", "/api/v0/nodes", "/api/v0/actors"
MOST_ACTORS = 10_000  # the most that Ray's dashboard lists at a time
GROUP = "ray.io/node-group"  # the label of a node that a launcher or an operator started
REPLICA = "SERVE_REPLICA::{}#"  # begins the name of an application's replica
SECONDS = 60.0  # for one answer: the first deployment waits for Ray Serve itself


class Ended(Exception):
    """An early end of a deployment.

    Args:
        status: refused, if nothing was sent; failed, if what was sent does not run; interrupted, if
            the user ended the wait; unreachable, if the dashboard does not answer as it should.
        text: one line; if refused, a line for each mistake.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Unreachable(Ended):
    """The dashboard does not answer as it should."""

    def __init__(self, text: str) -> None:
        super().__init__("unreachable", text)


class Silent(Unreachable):
    """The dashboard does not answer, or not yet: `ray start` returns before it does."""


class Dashboard:
    """The dashboard of one cluster."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if (key := token(os.environ)) else {}
        try:
            self._client = httpx.Client(base_url=self.address, headers=headers, timeout=SECONDS)
        except httpx.InvalidURL as error:
            raise Unreachable(f"{address} is not an address: {error}") from error

    def served(self) -> dict[str, Any]:
        """Return what Ray says of Serve and its applications."""
        found = self._get(APPLICATIONS)
        if not isinstance(found.get("applications"), dict):
            raise self._stranger()
        return found

    def nodes(self) -> tuple[list[dict[str, float]], bool]:
        """Return what each living node has in all, and whether more may start when needed."""
        found = [node for node in self._listed(NODES) if node["state"] == "ALIVE"]
        managed = any(GROUP in (node["labels"] or {}) for node in found)
        return [node["resources_total"] for node in found], managed

    def replicas(self, application: str) -> set[str]:
        """Return the ids of an application's living replicas, including those that are leaving.

        Ray's report on an application that it could not build omits them.
        """
        query = {"filter_keys": "state", "filter_predicates": "=", "filter_values": "ALIVE"}
        found = self._listed(ACTORS, **query)
        names = (str(actor["name"]) for actor in found)
        return {
            name.rpartition("#")[2]
            for name in names
            if name.startswith(REPLICA.format(application))
        }

    def deploy(self, body: Mapping[str, Any]) -> None:
        """Send a Serve file.

        Raises:
            Ended: Ray does not accept it.
        """
        self._ask("PUT", APPLICATIONS, json=body)

    def _listed(self, path: str, **query: str) -> list[dict[str, Any]]:
        found = self._get(path, limit=MOST_ACTORS, **query)
        try:
            return cast(list[dict[str, Any]], found["data"]["result"]["result"])
        except (LookupError, TypeError) as error:
            raise self._stranger() from error

    def _get(self, path: str, **query: str | int) -> dict[str, Any]:
        try:
            found = self._ask("GET", path, params=query).json()
        except ValueError as error:
            raise self._stranger() from error
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _stranger(self) -> Unreachable:
        return Unreachable(f"{self.address} answers, but it is no Ray dashboard")

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **request)
        except httpx.TimeoutException as error:
            raise Silent(f"Ray's dashboard at {self.address} does not answer") from error
        except httpx.HTTPError as error:
            how = "start Ray with its dashboard, `ray start --head`, or name it by --address"
            raise Silent(f"no Ray dashboard at {self.address} ({error}); {how}") from error
        match answer.status_code:
            case httpx.codes.OK:
                return answer
            case httpx.codes.UNAUTHORIZED | httpx.codes.FORBIDDEN:
                how = "copy ~/.ray/auth_token from its head node, or set RAY_AUTH_TOKEN"
                raise Unreachable(f"the cluster at {self.address} wants its token; {how}")
            case httpx.codes.NOT_FOUND:
                raise self._stranger()
            case httpx.codes.BAD_REQUEST if method == "PUT":
                raise Ended("failed", last_line(answer.text))
            case status:
                said = last_line(answer.text)
                raise Silent(f"Ray's dashboard at {self.address} answers {status}: {said}")


def token(environ: Mapping[str, str]) -> str | None:
    """Return a cluster's token, from where Ray itself looks for it.

    Raises:
        Unreachable: what is there is not a token.
    """
    found = environ.get("RAY_AUTH_TOKEN")
    with suppress(OSError, RuntimeError):  # no file, or a user without a home
        named = environ.get("RAY_AUTH_TOKEN_PATH")
        file = Path(named) if named else Path.home() / ".ray" / "auth_token"
        found = found or file.read_bytes().decode(errors="replace")
    if found and not re.fullmatch(r"[!-~]+", found.strip()):  # never shown, not even in part
        raise Unreachable("RAY_AUTH_TOKEN, or ~/.ray/auth_token, does not hold a token in one word")
    return found.strip() if found else None
