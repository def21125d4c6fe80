"""How long a request may take: the setting, which a header may shorten."""

from starlette.requests import Request

from service.refusals import Refused

DEADLINE = "x-headlight-deadline-ms"
LONGEST = 9  # digits of milliseconds


def seconds(request: Request, most: float) -> float:
    """How long this request may take, at most so many seconds.

    Raises:
        Refused: the header is no number of milliseconds.
    """
    header = request.headers.get(DEADLINE)
    if header is None:
        return most
    if not header.isdecimal() or not header.isascii() or len(header) > LONGEST:
        raise Refused.at("out_of_range", DEADLINE)
    return min(int(header) / 1000, most)
