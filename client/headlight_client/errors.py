"""What a call of the client can end with.

HeadlightError
    RequestRefused      the service, or a proxy before it, answered with an error
    NoAnswer            nobody answered in time, or the answer is not in Headlight's format
    ModelChanged        two answers of one job come from two models
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from headlight_client.formats import loads

INPUT = re.compile(r"\b(inputs|right)\[([0-9]+)\]")  # as a detail names one
FIELDS = {"type", "title", "status", "code", "detail", "request_id", "errors"}


class HeadlightError(Exception):
    """Any failure of a call."""


class NoAnswer(HeadlightError):
    """Nobody answered in time, or the answer is not in Headlight's format."""


class ModelChanged(HeadlightError):
    """Two answers of one job come from different models, weights or numerics."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Args:
        loc: where, as keys and indices; an input's index is the caller's.
        code: what.
    """

    loc: tuple[str | int, ...]
    code: str

    def counted_from(self, first: int) -> "Fault":
        """The same of a request whose first input is the caller's input `first`."""
        match self.loc:
            case ("inputs" | "right" as side, int(index), *rest):
                return Fault((side, first + index, *rest), self.code)
        return self


class RequestRefused(HeadlightError):
    """The service, or a proxy before it, answered with an error.

    Args:
        status: of HTTP.
        code: a code of the service's table; None where a proxy answered.
        detail: where it is, what is expected there and what came, in words.
        errors: what is wrong where.
        request_id: what the service's log calls the request; None where a proxy answered.
        facts: numbers that help, such as `length` and `limit`.
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
        """What an answer other than 200 says."""
        try:
            problem = loads(answer.content)
            code, detail = problem["code"], problem["detail"]
            errors = [Fault(tuple(at["loc"]), at["code"]) for at in problem.get("errors", ())]
        except (ValueError, KeyError, TypeError):  # no refusal of Headlight's
            return cls(answer.status_code, None, answer.reason_phrase or "no reason given")
        facts = {name: value for name, value in problem.items() if name not in FIELDS}
        return cls(answer.status_code, code, detail, errors, problem.get("request_id"), facts)

    def counted_from(self, first: int) -> Self:
        """The same of a request whose first input is the caller's input `first`."""
        errors = [fault.counted_from(first) for fault in self.errors]
        detail = INPUT.sub(lambda match: f"{match[1]}[{int(match[2]) + first}]", self.detail)
        return type(self)(self.status, self.code, detail, errors, self.request_id, self.facts)
