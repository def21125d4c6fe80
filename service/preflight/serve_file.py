"""What Ray accepts in silence in a Serve file: `headlight doctor --file`.

Ray drops a key that it does not know, so that `num_gpu` asks for no GPU; and a variable that is no
string fails only where a replica starts. Nor does it mind a prefix that hides paths of the model at
the root. All else Ray or service.app:build says after `serve deploy`, in what `serve status` shows.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from service.cluster.choose_model import TAKEN
from service.preflight.finding import Finding
from service.tables.wording.values import word_value_error, word_yaml_error
from service.tables.wording.words import Loc, write_place

# The keys of a deployment that Ray takes as any mapping, and their models
MAPPING_MODELS = {
    name: model
    for name, field in DeploymentSchema.model_fields.items()
    if any(get_origin(kind) is dict for kind in get_args(field.annotation))
    for model in get_args(field.annotation)
    if isinstance(model, type) and issubclass(model, BaseModel)
}
FREE_KEYS = ("args", "user_config")  # whose values are a program's own
# Raised by a RayService that lacks its Serve file
NO_FILE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
UNKNOWN = "Ray knows no such key, and would drop it"  # the finding on such a key


def find_dropped(path: Path) -> Iterator[Finding]:
    """Yield what Ray would refuse or drop in a Serve file, or in the one within a RayService.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        value = yaml.safe_load(path.read_bytes())
        if isinstance(value, dict) and value.get("kind") == "RayService":
            value = yaml.safe_load(value["spec"]["serveConfigV2"])
    except yaml.YAMLError as error:
        yield Finding(str(path), f"is {word_yaml_error(error)}")
        return
    except NO_FILE:
        yield Finding(str(path), "is a RayService without a Serve file in spec.serveConfigV2")
        return
    yield from _validate(ServeDeploySchema, value, ())
    yield from _find_hidden(value)
    for loc, mapping in _mappings(value, ()):
        name, depth = loc[-1], len(loc)
        if name in MAPPING_MODELS and depth == len(("applications", 0, "deployments", 0, name)):
            yield from _validate(MAPPING_MODELS[name], mapping, loc)
        if name == "runtime_env":
            for key in sorted(mapping.keys() - RuntimeEnv.known_fields, key=str):
                yield Finding(write_place((*loc, key)), UNKNOWN)
        if name == "env_vars":
            for key in (key for key, text in mapping.items() if not isinstance(text, str)):
                yield Finding(write_place((*loc, key)), "is no string", f'write "{mapping[key]}"')


def _validate(model: type[BaseModel], value: Any, base: Loc) -> Iterator[Finding]:
    """Yield what one of Ray's models refuses in the part of the file at `base`."""
    try:
        model.model_validate(deepcopy(value), extra="forbid")  # Ray's validators change it
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            text = " ".join(word_value_error(fault).split())
            is_unknown = fault["type"] == "extra_forbidden"
            yield Finding(write_place((*base, *fault["loc"])), UNKNOWN if is_unknown else text)
    except TypeError as error:  # of a runtime environment's value
        yield Finding(write_place(base), str(error))


def _find_hidden(value: Any) -> Iterator[Finding]:
    """Yield each prefix below which an application would take paths of the one at the root."""
    listed = value.get("applications") if isinstance(value, dict) else None
    applications = [each for each in listed or () if isinstance(each, dict)]
    prefixes = [str(each.get("route_prefix", "/")) for each in applications]
    for number, prefix in enumerate(prefixes if "/" in prefixes else ()):
        if prefix.strip("/").partition("/")[0] in TAKEN:
            text = f"{prefix} hides paths of the application at /"
            yield Finding(f"applications[{number}].route_prefix", text, "choose another")


def _mappings(value: Any, loc: Loc) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yield every mapping below a value, with its place in the file."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else inner:
        if isinstance(child, dict) and key not in FREE_KEYS:
            yield (*loc, key), child
        if key not in FREE_KEYS:
            yield from _mappings(child, (*loc, key))
