"""Finds what Ray silently accepts in a Serve file: unknown keys, names that HAProxy cannot hold.

Ray's own schema, read strictly. What Ray itself refuses once it has the file (a deployment's
options that exclude each other, a runtime environment that it cannot make) it says in the
application's status, and what serves goes on.
"""

import math
import re
from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ray.runtime_env import RuntimeEnv
from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, ServeDeploySchema

from service.preflight.document import leaves
from service.preflight.finding import Finding
from service.wording.words import Loc, listed, meant

# A prefix stands unquoted in HAProxy's configuration, and HAProxy starts on none it cannot read
PREFIX = re.compile(r"/|(/[A-Za-z0-9._~-]+)+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# The keys of a deployment that Ray takes as any mapping, and their models
LOOSE = {
    name: model
    for name, field in DeploymentSchema.model_fields.items()
    if any(get_origin(kind) is dict for kind in get_args(field.annotation))
    for model in get_args(field.annotation)
    if isinstance(model, type) and issubclass(model, BaseModel)
}


def check(value: Any) -> Iterator[Finding]:
    """Find what Ray would refuse or drop in a Serve file."""
    yield from _strict(ServeDeploySchema, value)
    for place, deployment in _deployments(value):
        for name, model in LOOSE.items():
            if isinstance(deployment.get(name), dict):
                yield from _strict(model, deployment[name], (*place, name))


def plain(value: Any) -> dict[str, Any]:
    """Return a checked Serve file as Ray reads it, which is how its REST interface takes it."""
    schema = ServeDeploySchema.model_validate(deepcopy(value))
    return schema.model_dump(mode="json", exclude_unset=True)


def listener(serve: dict[str, Any]) -> dict[str, Any]:
    """Return a plain file's http_options, with what Ray sets where it says nothing."""
    return HTTPOptionsSchema.model_validate(serve.get("http_options", {})).model_dump()


def names(value: dict[str, Any]) -> Iterator[Finding]:
    """Find what Ray accepts but neither it nor HAProxy can use.

    Args:
        value: the file as `plain` has it.
    """
    for place, leaf in leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            yield Finding(place, f"{leaf} cannot be sent", "write a finite number")
    for i, application in enumerate(value["applications"]):
        loc: Loc = ("applications", i)
        yield from _name(application.get("name", "default"), (*loc, "name"))
        yield from _prefix(application.get("route_prefix", "/"), (*loc, "route_prefix"))
        yield from _environment(application.get("runtime_env"), (*loc, "runtime_env"))
    for place, deployment in _deployments(value):
        actor = deployment.get("ray_actor_options") or {}
        at = (*place, "ray_actor_options", "runtime_env")
        yield from _environment(actor.get("runtime_env"), at)


def _name(name: str, at: Loc) -> Iterator[Finding]:
    """Refuse names unfit for Ray's APPLICATION#DEPLOYMENT#ID and HAProxy's http-APPLICATION."""
    if not NAME.fullmatch(name):
        mend = "write a letter or digit, then letters, digits, `.`, `_` or `-`"
        yield Finding(at, f"{name!r} cannot be in the names of Ray's replicas", mend)


def _prefix(prefix: str | None, at: Loc) -> Iterator[Finding]:
    """Find a path below which no request could be led to the application."""
    if prefix is None:
        yield Finding(at, "no request would reach the application", "write a path such as /")
    elif not PREFIX.fullmatch(prefix):
        near = "/".join(re.findall(r"[A-Za-z0-9._~-]+", prefix))
        text = "must be / or parts that each begin with /, of letters, digits, `.`, `_`, `~` or `-`"
        yield Finding(at, f"{prefix!r} {text}", f"write /{near}")
    elif {".", ".."} & set(prefix.split("/")):
        text = f"{prefix!r} holds a part that clients leave out"
        yield Finding(at, text, "write a path without it")
    elif f"{prefix}/".startswith("/-/"):
        yield Finding(at, f"{prefix!r} is among Ray's own paths, which begin with /-/")


def _environment(environment: dict[str, Any] | None, at: Loc) -> Iterator[Finding]:
    """Find keys of a runtime environment that Ray ignores."""
    for name in sorted((environment or {}).keys() - RuntimeEnv.known_fields):
        near = meant(name, RuntimeEnv.known_fields)
        yield Finding((*at, name), f"Ray knows no such key{near}")


def _strict(model: type[BaseModel], value: Any, base: Loc = ()) -> Iterator[Finding]:
    """Check by one of Ray's models, at a place of the file."""
    try:
        model.model_validate(deepcopy(value), extra="forbid")  # Ray's validators change it
    except ValidationError as error:
        wrong = dict[Loc, Finding]()
        for each in error.errors(include_url=False):
            loc = (*base, *_place(value, each["loc"], missing=each["type"] == "missing"))
            wrong.setdefault(loc, Finding(loc, _key(each, list(_keys(model, each["loc"])))))
        yield from wrong.values()
    except TypeError as error:  # of a runtime environment's value
        yield Finding(base, str(error))
    except (ImportError, AttributeError) as error:  # a function that the file names
        yield Finding(base, f"Ray cannot import what it names: {error}")


def _key(error: ErrorDetails, names: Collection[str]) -> str:
    """Say in a line what is wrong at one key of Ray's; the names are those that go there."""
    if error["type"] == "extra_forbidden":
        near = meant(str(error["loc"][-1]), names)
        return f"Ray knows no such key{near or '; it knows ' + listed(sorted(names), 'and')}"
    text = " ".join(error["msg"].removeprefix("Value error, ").split())
    ours = error["type"] in ("value_error", "missing")  # Ray's sentence names the value
    return text if ours else f"{text}, not {error['input']!r}"


def _place(value: Any, loc: Loc, missing: bool) -> Loc:
    """Keep the parts of a place that stand in the file: others name one of several types."""
    parts: Loc = ()
    for part in loc[:-1] if missing else loc:
        if isinstance(value, dict) and part in value:
            value, parts = value[part], (*parts, part)
        elif isinstance(value, list) and isinstance(part, int):
            value, parts = value[part], (*parts, part)
    return (*parts, loc[-1]) if missing else parts


def _deployments(value: Any) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """List the deployments of a file that may be wrong anywhere, with their places."""
    applications = value.get("applications") if isinstance(value, dict) else None
    for i, application in enumerate(applications if isinstance(applications, list) else ()):
        found = application.get("deployments") if isinstance(application, dict) else None
        for j, deployment in enumerate(found if isinstance(found, list) else ()):
            if isinstance(deployment, dict):
                yield ("applications", i, "deployments", j), deployment


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """List the models that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def _keys(model: type[BaseModel], loc: Loc) -> Iterator[str]:
    """List the keys that go next to the one at a place."""
    models = [model]
    for part in loc[:-1]:
        fields = (each.model_fields.get(str(part)) for each in models)
        models = [m for field in fields if field for m in _models(field.annotation)] or models
    for each in models:
        yield from each.model_fields
