"""The query parameters of a request: checked, and read as flags and choices."""

from collections.abc import Collection, Sequence

from starlette.datastructures import QueryParams

from service.tables.refusals import Refused
from service.tables.wording.words import describe_value, quote_names, show_name, suggest_name

QUERY_PLACE = "query"  # in a refusal: the place of an unknown parameter


def check_query(query: bytes, names: Collection[str]) -> None:
    """Refuse a parameter that the route does not know, or that is given twice.

    Args:
        names: those that the route knows.
    """
    parameters = [name for name, _ in QueryParams(query).multi_items()]
    for name in parameters:
        if name not in names:
            detail = _word_unknown_parameter(name, names)
            raise Refused.at("unknown_field", QUERY_PLACE, detail=detail)
    for name in names:
        if (count := parameters.count(name)) > 1:
            raise Refused.at(
                "out_of_range", name, detail=f"expected it once, received it {count} times"
            )


def read_flag(query: bytes, name: str) -> bool:
    """Return a true-or-false parameter of the query; False if it is absent.

    Raises:
        Refused: its value is neither true nor false.
    """
    value = QueryParams(query).get(name, "false") if query else "false"
    if value not in ("true", "false"):
        detail = f"expected true or false, received {describe_value(value)}"
        raise Refused.at("out_of_range", name, detail=detail)
    return value == "true"


def read_choice(query: bytes, name: str, values: Sequence[str]) -> str:
    """Return a parameter of the query that is one of `values`; the first if it is absent.

    Raises:
        Refused: it has another value.
    """
    value = QueryParams(query).get(name, values[0])
    if value not in values:
        detail = f"expected {quote_names(values)}, received {describe_value(value)}"
        raise Refused.at("out_of_range", name, detail=detail)
    return value


def _word_unknown_parameter(name: str, names: Collection[str]) -> str:
    """Name an unknown parameter, and the known ones."""
    suggestion = suggest_name(name, names) or "."
    takes = f"takes only {quote_names(names)}" if names else "takes none"
    return f"unknown parameter {show_name(name)}{suggestion} This route {takes}"
