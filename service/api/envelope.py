"""What a request says around its body: media types, and what stands behind the question mark."""

from collections.abc import Collection, Sequence

from starlette.datastructures import QueryParams

from service.encode.answer import JSON, SAFETENSORS
from service.refusals import Refused
from service.wording.words import counted, listed, meant, quoted, received

# what programs send unless they are told otherwise
COMMON = {
    "": "empty",
    "application/x-www-form-urlencoded": "that of a form, the default of curl -d",
    "multipart/form-data": "multipart/form-data",
    "text/plain": "text/plain",
    "application/octet-stream": "application/octet-stream",
}


def check_type(given: str | None, types: Sequence[str]) -> None:
    """Refuse a body of a media type that the route does not read.

    Args:
        given: as the request has it, in small letters and without parameters; None is JSON.
    """
    if given is not None and given not in types:
        came = COMMON.get(given, "another")  # repeated where it says nothing of its sender
        detail = f"the Content-Type is {came}; expected {listed(types)}"
        raise Refused("unsupported_media_type", detail=detail)


def answer_type(accept: str) -> str:
    """Return the media type to answer in: JSON, or safetensors where it is preferred.

    Raises:
        Refused: the client accepts neither.
    """
    if accept in ("*/*", JSON):  # as nearly all say, or nothing
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
    best = max(weights, key=weights.__getitem__)  # of equals the first, JSON
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


QUERY = "query"  # the place of a parameter that nobody knows, whose name is not repeated


def check_query(query: bytes, names: Collection[str]) -> None:
    """Refuse a parameter that the route does not know, or that stands twice.

    Raises:
        Refused: what is misspelt would have no effect, and of two one.
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
    """A switch in the query; absent is off.

    Raises:
        Refused: it is neither true nor false.
    """
    value = QueryParams(query).get(name, "false") if query else "false"
    if value not in ("true", "false"):
        detail = f"expected true or false, received {received(value)}"
        raise Refused.at("out_of_range", name, detail=detail)
    return value == "true"


def choice(query: bytes, name: str, values: Sequence[str]) -> str:
    """One of some words in the query; the first where there is none.

    Raises:
        Refused: another word.
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
