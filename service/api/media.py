"""Media types: what a request says its body is, and what it wants back."""

from collections.abc import Sequence

from service.encode.answer import JSON, SAFETENSORS
from service.refusals import Refused
from service.wording.words import listed

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
