"""Where settings come from: flags, HEADLIGHT_* variables, a YAML file; and what is wrong with them.

A setting named `max_tokens` is the flag `--max-tokens`, the variable HEADLIGHT_MAX_TOKENS and the
key `max_tokens` of the YAML file; a flag wins over a variable, a variable over the file. An error
names it as it was typed.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.tables import keys
from service.tables.settings import BINARY_FACTOR, BODY_FACTOR, Settings
from service.tables.wording.values import show_value, word_value_error, word_yaml_error
from service.tables.wording.words import find_nearest, suggest_name

logger = logging.getLogger(__name__)

PREFIX = "HEADLIGHT_"  # of the environment variables that hold settings
# Settings that refuse an empty variable, which counts as none for others: the service would be open
NEVER_EMPTY = ("api_keys", "api_keys_file", "tls_cert", "tls_key")
# What Kubernetes tells a pod of each Service in its namespace, and of one named headlight* in
# variables that begin as ours do: HEADLIGHT_PORT=tcp://10.0.0.1:8000, HEADLIGHT_SERVICE_HOST
KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
KUBERNETES_VARIABLE = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)

# A setting, the setting that bounds it, and how many times it must fit there: all of a request is
# held until it is answered
UPPER_BOUNDS = {
    "max_body_bytes": ("max_held_bytes", BODY_FACTOR * BINARY_FACTOR),
    "max_answer_bytes": ("max_held_bytes", 1),
    "max_tokens": ("max_request_tokens", 1),
}

# Returns a setting's name as it was typed, or as it would be next to another
Spell = Callable[..., str]
# What a setting must be whose pattern says it too badly for people
EXPECTED = {
    "served_model_name": "must be 1 to 128 letters, digits and ._/-, the first a letter or digit",
    "tracing": "must be console, file:PATH or a URL of http or https",
}


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None
) -> Settings:
    """Return the settings, each by flag, else HEADLIGHT_* variable, else YAML file, else default.

    Raises:
        ValueError: an unknown name or a value out of its bounds, two that exclude each other, or a
            file that holds no mapping; settings are named as they were typed.
        OSError: a file cannot be read.
    """
    return settle(flags, environ, read_file(file))


def read_file(file: Path | None) -> dict[str, Any]:
    """Return the settings in a YAML file; raises as load_settings."""
    try:
        document = yaml.safe_load(file.read_bytes()) if file else {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is {word_yaml_error(error)}") from None
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise ValueError(f"{file} must hold settings in YAML, one `name: value` per line")
    return document


def settle(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    document: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    place: str = "",
) -> Settings:
    """Return the settings by flags, variables and a YAML file; raises as `load_settings`.

    Args:
        own: settings that win over all others.
        place: what goes before the names of these in an error, such as "args.".
    """
    own = own or {}
    variables = _read_variables(environ)
    flags = {name: value for name, value in flags.items() if value is not None}

    def spell(name: str, like: str = "") -> str:
        """Return a setting's name as it is written where it, or else `like`, was given."""
        given = name if name in {*own, *flags, *variables, *document} else like
        if given in own:
            return f"{place}{name}"
        if given in flags:
            return "--" + name.replace("_", "-")
        return PREFIX + name.upper() if given in variables else name

    api_keys = _parse_keys(document, variables)
    values = {**document, **variables, **flags, **own, "api_keys": api_keys}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        faults = (_word_error(fault, spell) for fault in error.errors())
        raise ValueError("; ".join(faults)) from None
    settings = _make_absolute(settings)
    _refuse_contradictions(settings, spell)
    return settings


def _make_absolute(settings: Settings) -> Settings:
    """Return settings whose files have absolute paths: replicas have other working directories."""
    names = "api_keys_file", "tls_cert", "tls_key"
    files = {name: getattr(settings, name) for name in names}
    paths: dict[str, Any] = {name: file.absolute() for name, file in files.items() if file}
    adapters = (adapter.partition("=") for adapter in settings.adapter)
    paths["adapter"] = tuple(f"{name}={Path(f).expanduser().absolute()}" for name, _, f in adapters)
    return settings.model_copy(update=paths)


def _read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of HEADLIGHT_* variables by setting; raises ValueError for an unknown one.

    Those of Kubernetes are logged, and left out.
    """
    named = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    if theirs := sorted(name for name, value in named.items() if _set_by_kubernetes(name, value)):
        logger.warning("Kubernetes variables ignored", extra={"reason": ", ".join(theirs)})
    variables = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in named.items()
        if name not in theirs
    }
    for name in sorted(variables.keys() - Settings.model_fields.keys()):
        near = find_nearest(name, Settings.model_fields).upper()
        hint = f"; did you mean {PREFIX}{near}?" if near else ""
        raise ValueError(f"{PREFIX}{name.upper()}: no such setting{hint}")
    return {name: value for name, value in variables.items() if value or name in NEVER_EMPTY}


def _word_error(error: ErrorDetails, spell: Spell) -> str:
    """Return in a line what is wrong with one setting, and what it was; of a key, not that."""
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{spell(name)}: no such setting{suggest_name(name, Settings.model_fields)}"
    expected = EXPECTED.get(name) if error["type"] == "string_pattern_mismatch" else None
    expected = expected or word_value_error(error)
    return f"{spell(name)} {expected}, got {show_value(error['input'])}"


def _refuse_contradictions(settings: Settings, spell: Spell) -> None:
    """Raise ValueError where two of the settings contradict each other."""
    for name, (bound, times) in UPPER_BOUNDS.items():
        value, most = getattr(settings, name), getattr(settings, bound) // times
        if value is not None and value > most:
            part = "" if times == 1 else f"1/{times} of "
            which = f"{most}, {part}{spell(bound, name)}"
            raise ValueError(f"{spell(name, bound)} must be at most {which}, got {value}")
    _refuse_bad_replicas(settings, spell)
    if settings.adapter and settings.model.startswith("preset:"):
        raise ValueError(f"{spell('adapter')} cannot be used with a preset")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        present, missing = "tls_cert", "tls_key"
        if settings.tls_key:
            present, missing = missing, present
        raise ValueError(f"{spell(present)} needs {spell(missing, present)}")


def _refuse_bad_replicas(settings: Settings, spell: Spell) -> None:
    """Raise ValueError where the settings of the number of replicas contradict each other."""
    low, high, set_names = settings.min_replicas, settings.max_replicas, settings.model_fields_set
    if high is None:
        for name in sorted({"min_replicas", "downscale_delay_seconds"} & set_names):
            fixed, most = spell("replicas", name), spell("max_replicas", name)
            raise ValueError(f"{spell(name)} needs {most}; for a fixed number use {fixed}")
    elif "replicas" in set_names:
        least = spell("min_replicas", "max_replicas")
        names = f"{spell('replicas')} and {spell('max_replicas')}"
        raise ValueError(f"{names} exclude each other; the least is {least}")
    elif low is not None and low > high:
        most = f"{spell('max_replicas')}, which is {high}"
        raise ValueError(f"{spell('min_replicas')} must be at most {most}, got {low}")


def _set_by_kubernetes(name: str, value: str) -> bool:
    """Tell whether a variable is set by Kubernetes, for a Service whose name begins with ours."""
    linked = name.endswith("_PORT") and KUBERNETES_ADDRESS.match(value)
    return bool(linked or KUBERNETES_VARIABLE.search(name))


def _parse_keys(document: Mapping[str, Any], variables: Mapping[str, Any]) -> tuple[keys.Key, ...]:
    """Return the API keys of HEADLIGHT_API_KEYS; raises ValueError for keys in the YAML file."""
    if "api_keys" in document:
        raise ValueError("api_keys: not allowed in this file; name a file of keys in api_keys_file")
    try:
        return keys.parse_keys(variables["api_keys"]) if "api_keys" in variables else ()
    except ValueError as error:
        raise ValueError(f"{PREFIX}API_KEYS: {error}") from None
