"""The table of routes: which way a request goes by its path and method."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from service.api import ROUTES, own
from service.api.dialect import Route, Wording
from service.edge.handlers import Handler
from service.observe.families import NO_INPUT
from service.refusals import Refused

UNKNOWN = "other"  # the name in metrics of requests that no route takes
# A model's name may hold slashes, but not the verb at the end of the path
PARTS = {"model": "(?:(?!/infer$|/ready$).)*", "id": ".*", "version": "[^/]+"}
POSTED = dict.fromkeys(row.path for row in ROUTES if row.method == "post")
# What a client of another API, or of another version, may have meant
THERE = f"expected POST of {', '.join(POSTED)}; GET /docs lists all paths"

Params = Mapping[str, str]
NO_PARAMS: Params = {}


class Way(NamedTuple):
    """The way of requests with one path and method.

    Args:
        label: its name in metrics.
        say: words a refusal.
        query: the parameters it knows.
        trusts: whether only a replica that does not know itself to be wrong answers it.
    """

    label: str
    say: Wording
    query: Sequence[str]
    trusts: bool
    handle: Handler


class Routes:
    """The routes of one replica, by path and method.

    Args:
        handler: makes the handler of the routes with one path and method.
    """

    def __init__(self, handler: Callable[[Sequence[Route]], Handler]) -> None:
        self._exact = dict[str, dict[str, Way]]()
        self._patterns = list[tuple[re.Pattern[str], str, dict[str, Way]]]()
        shared: dict[tuple[str, str], list[Route]] = {}
        for route in ROUTES:
            shared.setdefault((route.path, route.method), []).append(route)
        for routes in shared.values():
            self._add(routes[0], handler(routes))

    def find(self, method: str, path: str) -> tuple[Way | None, Params]:
        """Return a request's way, if any, and the named parts of its path."""
        ways = self._exact.get(path)
        if ways is not None:
            return ways.get(method), NO_PARAMS
        for pattern, _, ways in self._patterns:
            if method in ways and (found := pattern.fullmatch(path)):
                return ways[method], found.groupdict()
        return None, NO_PARAMS

    def refuse(self, path: str) -> tuple[str, Wording, Refused]:
        """Return the name, the wording and the refusal of a request that no route takes.

        The refusal names the methods of its path, or all paths.
        """
        ways = self._exact.get(path)
        if ways is None:
            found = (w for pattern, _, w in self._patterns if pattern.fullmatch(path))
            ways = next(found, None)
        if ways:
            any_ = next(iter(ways.values()))
            detail = f"it takes {', '.join(sorted(ways))}"
            return any_.label, any_.say, Refused("method_not_allowed", detail=detail)
        return UNKNOWN, own.problem, Refused("not_found", detail=THERE)

    def methods(self, path: str) -> str:
        """Return the methods a path takes, as the Allow header lists them."""
        found = (ways for pattern, _, ways in self._patterns if pattern.fullmatch(path))
        return ", ".join(sorted(self._exact.get(path) or next(found, {})))

    def _add(self, route: Route, handler: Handler) -> None:
        way = Way(route.label, route.api.problem, route.query, route.trusted, handler)
        if "{" in route.path:
            same = (ways for _, path, ways in self._patterns if path == route.path)
            if (ways := next(same, None)) is None:
                ways = dict[str, Way]()
                self._patterns.append((_pattern(route.path), route.path, ways))
        else:
            ways = self._exact.setdefault(route.path, {})
        ways[route.method.upper()] = way
        if route.method == "get":
            ways["HEAD"] = way


def expected() -> dict[str, tuple[str, ...]]:
    """Return the inputs that each documented route may hold, by its name in metrics."""
    published = (row for row in ROUTES if row.method == "post" or row.api is own.NATIVE)
    inputs = {UNKNOWN: NO_INPUT}
    for row in published:
        inputs[row.label] = max(inputs.get(row.label, ()), row.inputs, key=len)
    return inputs


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern that matches a path of the table."""
    parts = re.split(r"{(\w+)}", path)
    named = [f"(?P<{name}>{PARTS[name]})" for name in parts[1::2]]
    plain = map(re.escape, parts[::2])
    whole = "".join(p + n for p, n in zip(plain, [*named, ""], strict=True))
    return re.compile(whole, re.DOTALL)  # a name may hold any character
