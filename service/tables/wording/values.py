"""Errors of libraries in our words: pydantic's of a value, the system's of a file, YAML's.

A request's errors never show what came, and are worded in schema.py.
"""

import yaml
from pydantic_core import ErrorDetails

# What a value must be by pydantic's type of error, without a subject; fields are of its context
EXPECTED = {
    "value_error": "{error}",  # of our own validators
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "missing": "is missing",
    "extra_forbidden": "is an unknown field",
    "path_type": "must be a path",
    "json_invalid": "is not JSON",
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "must be a whole number"
    ),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be an object"),
}


def word_value_error(error: ErrorDetails) -> str:
    """Say what a value must be; an error that we do not expect is in pydantic's words."""
    said = EXPECTED.get(error["type"])
    return said.format(**error.get("ctx", {})) if said else error["msg"]


def show_value(value: object) -> str:
    """Write a value as it was typed; a text that is no number in quotes."""
    if value is None:
        return "null"
    try:
        return (
            str(value) if isinstance(value, str) and float(value) <= float("inf") else repr(value)
        )
    except ValueError:
        return repr(value)


def word_error(error: Exception) -> str:
    """Return an error's message; of the file system, the file and the reason, without a number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def word_yaml_error(error: yaml.YAMLError) -> str:
    """Say where a text stops being YAML, and why."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "not YAML"
    mark = error.problem_mark
    return f"not YAML at line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
