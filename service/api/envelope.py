"""What a request says outside its body: media types, and the query after the question mark."""

from collections.abc import Collection, Sequence

from starlette.datastructures import QueryParams

from service.encode.answer import JSON, SAFETENSORS
from service.refusals import Refused
from service.wording.words import counted, listed, meant, quoted, received

# what programs send by default
COMMON = {
    "": "empty",
    "application/x-www-form-urlencoded": "that of a form, the default of curl -d",
    "multipart/form-data": "multipart/form-data",
    "text/plain": "text/plain",
    "application/octet-stream": "application/octet-stream",
}


def check_type(given: str | None, types: Sequence[str]) -> None:
    """Refuse a body whose media type the route does not read.

    Args:
        given: as in the request, in lower case and without parameters; None is JSON.
    """
    if given is not None and given not in types:
        came = COMMON.get(given, "another")  # repeated only if it reveals nothing about the sender
        detail = f"the Content-Type is {came}; expected {listed(types)}"
        raise Refused("unsupported_media_type", detail=detail)


def answer_type(accept: str) -> str:
    """Return the media type to answer in: JSON, or safetensors if it is preferred.

    Raises:
        Refused: the client accepts neither.
    """
    if accept in ("*/*", JSON):  # as nearly all clients send, or no header
        return JSON
    weights = {JSON: 0.0, SAFETENSORS: 0.0}
    exact: set[str] = set()
    for part in accept.lower().split(","):
        name, _, parameters = part.strip().partition(";")
        for media_type in weights:
            general = name.strip() in ("*/*", "application/*")
            if name.strip() == media_type or (general and media_type not in exact):
                weights[media_type] = _quality(parameters)
                exact |= set() if general else {media_type}
    best = max(weights, key=weights.__getitem__)  # on a tie the first, JSON
    if not weights[best]:
        detail = f"expected an Accept header that allows {listed(weights)}, or no such header"
        raise Refused("not_acceptable", detail=detail)
    return best


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0


QUERY = "query"  # the place of an unknown parameter, whose name is not repeated


def check_query(query: bytes, names: Collection[str]) -> None:
    """Refuse a parameter that the route does not know, or that is given twice.

    Raises:
        Refused: a misspelt one, or one of two, would have no effect.
    """
    if not query:
        return
    parameters = [name for name, _ in QueryParams(query).multi_items()]
    for name in parameters:
        if name not in names:
            raise Refused.at("unknown_field", QUERY, detail=_unknown(name, names))
    for name in names:
        if (count := parameters.count(name)) > 1:
            raise Refused.at(
                "out_of_range", name, detail=f"expected it once, received it {count} times"
            )


def flag(query: bytes, name: str) -> bool:
    """Return a switch in the query; absent is off.

    Raises:
        Refused: it is neither true nor false.
    """
    value = QueryParams(query).get(name, "false") if query else "false"
    if value not in ("true", "false"):
        detail = f"expected true or false, received {received(value)}"
        raise Refused.at("out_of_range", name, detail=detail)
    return value == "true"


def choice(query: bytes, name: str, values: Sequence[str]) -> str:
    """Return one of several words in the query; by default the first.

    Raises:
        Refused: it is another word.
    """
    value = QueryParams(query).get(name, values[0])
    if value not in values:
        detail = f"expected {quoted(values)}, received {received(value)}"
        raise Refused.at("out_of_range", name, detail=detail)
    return value


def _unknown(name: str, names: Collection[str]) -> str:
    size, near = counted(len(name), "character"), meant(name, names) or "."
    takes = f"takes only {quoted(names)}" if names else "takes none"
    return f"unknown parameter ({size}){near} This route {takes}"
