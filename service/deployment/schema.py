"""What Ray's own schema finds in a Serve file, read strictly: Ray itself drops unknown keys."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, ServeDeploySchema

from service.deployment import faults
from service.deployment.faults import Fault
from service.wording.fault import Loc


def check(value: Any) -> Iterator[Fault]:
    """Find what Ray would refuse or drop in a Serve file."""
    yield from _strict(ServeDeploySchema, value)
    for place, deployment in _deployments(value):
        for name, model in _LOOSE.items():
            if isinstance(deployment.get(name), dict):
                yield from _strict(model, deployment[name], (*place, name))


def plain(value: Any) -> dict[str, Any]:
    """Return a checked Serve file as Ray reads it, which is how its REST interface takes it."""
    schema = ServeDeploySchema.model_validate(deepcopy(value))
    return schema.model_dump(mode="json", exclude_unset=True)


def listener(serve: dict[str, Any]) -> dict[str, Any]:
    """Return a plain file's http_options, with what Ray sets where it says nothing."""
    return HTTPOptionsSchema.model_validate(serve.get("http_options", {})).model_dump()


def _strict(model: type[BaseModel], value: Any, base: Loc = ()) -> Iterator[Fault]:
    """The same by one of Ray's models, at a place of the file."""
    try:
        model.model_validate(deepcopy(value), extra="forbid")  # Ray's validators change it
    except ValidationError as error:
        wrong = dict[Loc, Fault]()
        for each in error.errors(include_url=False):
            loc = (*base, *_place(value, each["loc"], missing=each["type"] == "missing"))
            wrong.setdefault(loc, Fault(loc, faults.key(each, list(_keys(model, each["loc"])))))
        yield from wrong.values()
    except TypeError as error:  # of a runtime environment's value
        yield Fault(base, str(error))
    except (ImportError, AttributeError) as error:  # a function that the file names
        yield Fault(base, f"Ray cannot import what it names: {error}")


def _place(value: Any, loc: Loc, missing: bool) -> Loc:
    """The parts of a place that stand in the file: others name which type of several it was."""
    parts: Loc = ()
    for part in loc[:-1] if missing else loc:
        if isinstance(value, dict) and part in value:
            value, parts = value[part], (*parts, part)
        elif isinstance(value, list) and isinstance(part, int):
            value, parts = value[part], (*parts, part)
    return (*parts, loc[-1]) if missing else parts


def _deployments(value: Any) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """The deployments of a file that may be wrong anywhere, with their places."""
    applications = value.get("applications") if isinstance(value, dict) else None
    for i, application in enumerate(applications if isinstance(applications, list) else ()):
        found = application.get("deployments") if isinstance(application, dict) else None
        for j, deployment in enumerate(found if isinstance(found, list) else ()):
            if isinstance(deployment, dict):
                yield ("applications", i, "deployments", j), deployment


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def _keys(model: type[BaseModel], loc: Loc) -> Iterator[str]:
    """The keys that go beside the one at a place."""
    models = [model]
    for part in loc[:-1]:
        fields = (each.model_fields.get(str(part)) for each in models)
        models = [m for field in fields if field for m in _models(field.annotation)] or models
    for each in models:
        yield from each.model_fields


# The keys of a deployment that Ray takes as any mapping, and their models
_LOOSE = {
    name: model
    for name, field in DeploymentSchema.model_fields.items()
    if any(get_origin(kind) is dict for kind in get_args(field.annotation))
    for model in _models(field.annotation)
}
