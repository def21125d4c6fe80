"""The errors of a call, and when to try again.

HeadlightError
    RequestRefused      the service, or a proxy before it, answered with an error
    NoAnswer            no answer came in time, or it is not in Headlight's format
    ModelChanged        two answers of one job come from two models

Pauses between tries: exponential backoff with full jitter, on top of Retry-After.
Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; RFC 9110, 10.2.3.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx
from httpx import codes

from headlight_client.formats import read_json

INPUT_PLACE = re.compile(r"\b(inputs|right)\[([0-9]+)\]")  # how a detail names an input
# fields of all error answers; others are facts
PROBLEM_FIELDS = {"type", "title", "status", "code", "detail", "error", "request_id", "errors"}
ID_HEADER = "x-request-id"  # has the request's id where the body has none
RETRIED_STATUSES = {codes.TOO_MANY_REQUESTS, codes.BAD_GATEWAY, codes.SERVICE_UNAVAILABLE}
RETRIED_STATUSES |= {codes.GATEWAY_TIMEOUT}
# Retried if from a proxy whose service is away, as Ray's while it starts; final from the service
AWAY_STATUSES = {codes.NOT_FOUND, codes.REQUEST_TIMEOUT}
# Retried: a connection that failed or broke; not one that is impossible, such as of a wrong scheme
CONNECTION_ERRORS = (
    httpx.NetworkError,
    httpx.TimeoutException,
    httpx.RemoteProtocolError,
    httpx.ProxyError,
)
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 10.0  # of backoff


class HeadlightError(Exception):
    """Any failure of a call."""


class NoAnswer(HeadlightError):
    """No answer came in time, or it is not in Headlight's format."""


class ModelChanged(HeadlightError):
    """Two answers of one job come from different models, weights or numerics."""


@contextmanager
def expect_format() -> Iterator[None]:
    """Raise NoAnswer where what this decorates reads what is not in Headlight's format."""
    try:
        yield
    except (LookupError, OverflowError, TypeError, ValueError, AttributeError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Args:
        loc: its path in the request, keys and indices; an input's index is the caller's.
        code: the kind of fault.
    """

    loc: tuple[str | int, ...]
    code: str

    def shift_input_index(self, first: int) -> "Fault":
        """Add `first`, the caller's index of the request's first input, to an input's index."""
        match self.loc:
            case ("inputs" | "right" as side, int(index), *rest):
                return Fault((side, first + index, *rest), self.code)
        return self


class RequestRefused(HeadlightError):
    """The service, or a proxy before it, answered with an error.

    Args:
        status: of HTTP.
        code: a code of the service's table; None where a proxy answered.
        detail: where the fault is, what was expected there and what was received.
        errors: all faults.
        request_id: what the service's log calls the request; None where a proxy answered.
        facts: other fields of the answer, such as `length` and `limit`.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        detail: str,
        errors: Sequence[Fault] = (),
        request_id: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, code, detail, errors, request_id, facts)
        self.status, self.code, self.detail = status, code, detail
        self.errors, self.request_id, self.facts = tuple(errors), request_id, dict(facts or {})

    def __str__(self) -> str:
        return f"{self.status} {self.code or 'from a proxy'}: {self.detail}"

    @classmethod
    def of(cls, answer: httpx.Response) -> Self:
        """Read a response other than 200 as an error."""
        try:
            problem = read_json(answer.content)
            if isinstance(problem.get("error"), dict) and "code" not in problem:  # OpenAI's
                error = problem["error"]
                return cls(answer.status_code, error["code"], error["message"])
            if isinstance(problem["detail"], list):  # TypeSafe's
                return cls._of_entries(answer, problem["detail"])
            code, detail = problem["code"], problem["detail"]
            errors = [Fault(tuple(at["loc"]), at["code"]) for at in problem.get("errors", ())]
        except (ValueError, LookupError, TypeError, AttributeError):  # no refusal of Headlight's
            return cls(answer.status_code, None, answer.reason_phrase or "no reason given")
        facts = {name: value for name, value in problem.items() if name not in PROBLEM_FIELDS}
        request_id = problem.get("request_id", answer.headers.get(ID_HEADER))
        return cls(answer.status_code, code, detail, errors, request_id, facts)

    @classmethod
    def _of_entries(cls, answer: httpx.Response, entries: Sequence[Mapping[str, Any]]) -> Self:
        """Read an error that lists its faults, each with its path below the body."""
        errors = [Fault(tuple(entry["loc"][1:]), entry["type"]) for entry in entries]
        detail = " ".join(
            ": ".join(filter(None, (_word_place(fault.loc), entry["msg"])))
            for fault, entry in zip(errors, entries, strict=True)
        )
        facts = entries[0].get("ctx", {})
        code, request_id = errors[0].code, answer.headers.get(ID_HEADER)
        return cls(answer.status_code, code, detail, errors, request_id, facts)

    def reword(self, detail: str) -> Self:
        """Return the same refusal with another detail."""
        return type(self)(self.status, self.code, detail, self.errors, self.request_id, self.facts)

    def shift_input_index(self, first: int) -> Self:
        """Add `first`, the caller's index of the request's first input, to indices of inputs."""
        errors = [fault.shift_input_index(first) for fault in self.errors]
        detail = INPUT_PLACE.sub(lambda match: f"{match[1]}[{int(match[2]) + first}]", self.detail)
        return type(self)(self.status, self.code, detail, errors, self.request_id, self.facts)


def _word_place(loc: Sequence[str | int]) -> str:
    """Write a path in the request as details have it, such as questions.tone.criteria[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[1:]


def seconds_before_retry(
    reply: httpx.Response | httpx.RequestError,
    tries: int,
    draw: Callable[[float, float], float] = random.uniform,
) -> float | None:
    """Return the seconds to wait before the next try, None where there should be none.

    Args:
        reply: the result of the last try.
        tries: how many there were.
        draw: returns a random number between two others.
    """
    jitter = draw(0.0, min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(tries - 1, 32)))
    if isinstance(reply, httpx.RequestError):
        return jitter if isinstance(reply, CONNECTION_ERRORS) else None
    if not _is_temporary(reply):
        return None
    return read_retry_after(reply.headers.get("retry-after", "")) + jitter


def _is_temporary(reply: httpx.Response) -> bool:
    """Tell whether a response is of a busy or absent service, and not a refusal of the request."""
    if reply.status_code in RETRIED_STATUSES:
        return True
    away = reply.status_code in AWAY_STATUSES or reply.is_server_error
    return away and RequestRefused.of(reply).code is None


def read_retry_after(header: str) -> float:
    """Read the seconds of a Retry-After header, a number or a date; 0 when it is neither."""
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    aware = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
