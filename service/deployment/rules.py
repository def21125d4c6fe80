"""Rules of Ray's that its schema leaves out.

Ray applies them once it has taken a file, when what the file does not name is deleted already. So
they are asked here of Ray's own public classes, and what HAProxy's configuration can hold is ours.
"""

import inspect
import math
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.runtime_env import RuntimeEnv

from service.cluster.progress import last_line
from service.deployment import faults
from service.deployment.faults import Fault
from service.wording.fault import Loc
from service.wording.words import meant

# A prefix stands unquoted in HAProxy's configuration, and HAProxy starts on none it cannot read
PREFIX = re.compile(r"/|(/[A-Za-z0-9._~-]+)+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# A deployment of no options, on which those of a file are tried
TRIED = serve.deployment()(type("Any", (), {}))
OPTIONS = set(inspect.signature(TRIED.options).parameters) - {"name"}


def check(value: dict[str, Any]) -> Iterator[Fault]:
    """Find what Ray would take and then fail on.

    Args:
        value: the file as schema.plain has it.
    """
    yield from _finite(value, ())
    for i, application in enumerate(value["applications"]):
        loc: Loc = ("applications", i)
        yield from _name(application.get("name", "default"), (*loc, "name"))
        yield from _prefix(application.get("route_prefix", "/"), (*loc, "route_prefix"))
        yield from _environment(application.get("runtime_env"), (*loc, "runtime_env"))
        for j, deployment in enumerate(application.get("deployments") or []):
            at: Loc = (*loc, "deployments", j)
            actor = deployment.get("ray_actor_options") or {}
            yield from _options(deployment, at)
            yield from _environment(
                actor.get("runtime_env"), (*at, "ray_actor_options", "runtime_env")
            )


def _finite(value: Any, at: Loc) -> Iterator[Fault]:
    """JSON, and so Ray's REST interface, has no other numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        yield Fault(at, f"{value} cannot be sent; write a finite number")
    inner: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        inner = iter(value.items())
    elif isinstance(value, list):
        inner = iter(enumerate(value))
    for part, each in inner:
        yield from _finite(each, (*at, part))


def _name(name: str, at: Loc) -> Iterator[Fault]:
    """Ray names a replica APPLICATION#DEPLOYMENT#ID and HAProxy's section http-APPLICATION."""
    if not NAME.fullmatch(name):
        text = "a letter or digit, then letters, digits, `.`, `_` or `-`"
        yield Fault(at, f"{name!r} cannot be in the names of Ray's replicas; write {text}")


def _prefix(prefix: str | None, at: Loc) -> Iterator[Fault]:
    """Find a path below which no request could be led to the application."""
    if prefix is None:
        yield Fault(at, "no request would reach the application; write a path such as /")
    elif not PREFIX.fullmatch(prefix):
        near = "/".join(re.findall(r"[A-Za-z0-9._~-]+", prefix))
        text = "must be / or parts that each begin with /, of letters, digits, `.`, `_`, `~` or `-`"
        yield Fault(at, f"{prefix!r} {text}; write /{near}")
    elif {".", ".."} & set(prefix.split("/")):
        yield Fault(at, f"{prefix!r} holds a part that clients leave out; write a path without it")
    elif f"{prefix}/".startswith("/-/"):
        yield Fault(at, f"{prefix!r} is among Ray's own paths, which begin with /-/")


def _environment(environment: dict[str, Any] | None, at: Loc) -> Iterator[Fault]:
    """Find what is wrong with a runtime environment; no value of a variable is repeated."""
    given = dict(environment or {})
    for name in sorted(given.keys() - RuntimeEnv.known_fields):
        near = meant(name, RuntimeEnv.known_fields)
        yield Fault((*at, name), f"Ray knows no such key{near}")
        del given[name]
    variables = given.pop("env_vars", None) or {}
    if not isinstance(variables, dict):
        yield Fault((*at, "env_vars"), "must be a mapping, one `NAME: value` per line")
    else:
        for name in [name for name, value in variables.items() if not isinstance(value, str)]:
            yield Fault((*at, "env_vars", str(name)), "must be a text; write it in quotes")
    try:
        RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        yield Fault(at, str(error).splitlines()[0])


def _options(deployment: dict[str, Any], at: Loc) -> Iterator[Fault]:
    """Find what Ray's own `Deployment.options` does not take, at the key without which it would."""
    given = {name: value for name, value in deployment.items() if name in OPTIONS}
    if error := _refused(given):
        alone = next((name for name in given if not _refused(_without(given, name))), None)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            yield Fault((*at, *first["loc"]), faults.key(first, ()))
        else:
            yield Fault((*at, alone) if alone else at, last_line(str(error)))


def _without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in options.items() if other != name}


def _refused(options: dict[str, Any]) -> Exception | None:
    """What Ray raises for options; None if it takes them."""
    try:
        # a copy, in which Ray may fill in what they leave out
        TRIED.options(**deepcopy(options))
    except (ValueError, TypeError, AssertionError, ArithmeticError) as error:
        return error
    return None
