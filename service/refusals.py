"""The service's errors and the one table that gives them status and code.

A refusal is an error answered on purpose. Whoever knows raises `Refused` with a code of the
table; the HTTP edge catches once and answers `problem`: RFC 9457, at most 4 KiB, never the input,
never an exception's own text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from model.errors import SequenceTooLong
from service.wire import FIELDS

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 10
MOST_BYTES = 4096


class Kind(NamedTuple):
    """One row of the table: the HTTP status, and what the caller is told."""

    status: int
    title: str


REFUSALS: dict[str, Kind] = {
    "invalid_json": Kind(400, "The body is not valid JSON."),
    "invalid_safetensors": Kind(400, "The body is not a valid safetensors file."),
    "invalid_encoding": Kind(400, "The body is not UTF-8 without a byte order mark."),
    "json_too_deep": Kind(400, "The body's objects and lists are too deep inside each other."),
    "duplicate_key": Kind(400, "An object of the body has a key twice."),
    "bad_request": Kind(
        400, "Headers contradict each other, or announce a body that the method has not."
    ),
    "unauthorized": Kind(401, "This service asks for an API key: Authorization: Bearer <key>."),
    "forbidden_origin": Kind(
        403, "A web page of another origin sent this; cors_origins names those that may ask."
    ),
    "not_found": Kind(404, "There is nothing at this path."),
    "task_not_found": Kind(404, "A dense encoder serves no such task; /embed makes vectors."),
    "model_not_found": Kind(404, "This service serves another model."),
    "request_timeout": Kind(408, "The body did not come in time."),
    "method_not_allowed": Kind(405, "The path does not take this method."),
    "not_acceptable": Kind(
        406, "The answer can be JSON or safetensors, neither of which is accepted."
    ),
    "body_too_large": Kind(413, "The body is larger than this service reads."),
    "too_many_values": Kind(413, "The body holds more values than a request can need."),
    "too_many_tokens": Kind(413, "The request holds more tokens than this service takes at once."),
    "attention_too_large": Kind(413, "The attention asked for is larger than an answer may be."),
    "answer_too_large": Kind(
        413, "The answer would be too large: ask for fewer inputs or outputs, or for fewer bytes."
    ),
    "unsupported_media_type": Kind(415, "The body's media type is not one this route reads."),
    "unsupported_encoding": Kind(415, "The body is encoded; this service reads it plain."),
    "bad_host": Kind(
        421, "The host asked for is not this service's; allowed_hosts names those that are."
    ),
    "invalid_type": Kind(422, "A value has the wrong type."),
    "out_of_range": Kind(422, "A value is outside its range."),
    "unknown_field": Kind(422, "The request has a field that is not known here."),
    "missing_field": Kind(422, "A required field is missing."),
    "exactly_one_input": Kind(422, "An input is exactly one of text, token_ids and embeddings."),
    "batch_empty": Kind(422, "The request holds no input."),
    "batch_too_large": Kind(422, "The request holds more inputs than this service takes at once."),
    "sequence_empty": Kind(422, "An input is empty."),
    "sequence_too_long": Kind(422, "A sequence has more tokens than the model takes."),
    "text_too_long": Kind(422, "A text has more characters than this service reads."),
    "invalid_text": Kind(422, "A text holds characters that are not valid Unicode."),
    "token_out_of_range": Kind(422, "A token id or type is outside the model's tables."),
    "shape_mismatch": Kind(422, "An array's shape does not fit the model or its sequence."),
    "bad_base64": Kind(422, "A base64 string cannot be decoded."),
    "payload_length_mismatch": Kind(422, "An array's bytes do not match its shape."),
    "non_finite": Kind(422, "Numbers hold NaN or infinity."),
    "tensor_unknown": Kind(
        422, "An input names a tensor that the file does not hold, or that another input named."
    ),
    "tensor_unused": Kind(422, "The file holds a tensor that no input names."),
    "index_out_of_range": Kind(422, "A layer, head or row does not exist, or is named twice."),
    "words_unknown": Kind(422, "The words of token ids and embeddings are not known."),
    "specials_unknown": Kind(422, "Which embeddings are special tokens is not known."),
    "nothing_left": Kind(422, "Without its special tokens a sequence is empty."),
    "prompt_not_found": Kind(422, "The model has no prompt of that name."),
    "prompt_without_text": Kind(422, "A prompt goes before a text, and an input is none."),
    "deadline_unreachable": Kind(422, "The request takes longer than its deadline, by itself."),
    "overloaded": Kind(429, "The service is busy; the request was not started."),
    "headers_too_large": Kind(
        431, "The address or the headers are larger than this service reads."
    ),
    "internal": Kind(500, "The service failed; this is not the request's fault."),
    "nonfinite_output": Kind(500, "The model produced NaN or infinity."),
    "not_ready": Kind(503, "The replica is not ready."),
    "deadline_exceeded": Kind(504, "The request was not done by its deadline."),
}

# whose fault each is: the caller's, nobody's (429), or ours
CALLERS = tuple(code for code, kind in REFUSALS.items() if kind.status < 500 and kind.status != 429)
OURS = frozenset(code for code, kind in REFUSALS.items() if kind.status >= 500)
UNAUTHORIZED = 401

# Statuses that clients of other APIs know instead: OpenAI's openapi.yaml; TEI 1.9's
# router/src/http/server.rs, From<&ErrorType> for StatusCode
OPENAI = dict.fromkeys((code for code, kind in REFUSALS.items() if kind.status == 422), 400) | {
    "too_many_tokens": 400
}
TEI = {"batch_empty": 400, "internal": 424, "nonfinite_output": 424}

# what the outermost layer refuses: by the headers alone, and by the body
BY_HEADERS = (
    "bad_request",
    "unauthorized",
    "unsupported_encoding",
    "bad_host",
    "forbidden_origin",
    "headers_too_large",
)
BY_BODY = (
    "invalid_encoding",
    "json_too_deep",
    "duplicate_key",
    "request_timeout",
    "body_too_large",
    "too_many_values",
)

# what a router answers by itself
UNROUTED = {REFUSALS[code].status: code for code in ("not_found", "method_not_allowed")}

# pydantic's error types; any other is invalid_type
VALIDATION: dict[str, str] = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "exactly_one_input": "exactly_one_input",
    "string_unicode": "invalid_text",
    "finite_number": "non_finite",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
    "number_and_form": "out_of_range",
    "rows_and_form": "out_of_range",
    "weight_and_form": "out_of_range",
    "index_out_of_range": "index_out_of_range",
    "literal_error": "out_of_range",
}

# what the parser says of JSON that is well formed
PARSER = {
    "lone leading surrogate": "invalid_text",
    "unexpected end of hex escape": "invalid_text",  # half a pair, and then no escape
    "number out of range": "out_of_range",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request: where, as keys and indices, and its code."""

    loc: tuple[str | int, ...]
    code: str


class Refused(Exception):
    """A request that is refused.

    Args:
        code: a code of REFUSALS.
        faults: what is wrong where.
        retry_after: when trying again may succeed, seconds.
        facts: numbers that help the caller, such as `length` and `limit`.
    """

    def __init__(
        self,
        code: str,
        faults: Sequence[Fault] = (),
        *,
        retry_after: int | None = None,
        **facts: object,
    ) -> None:
        super().__init__(code)
        self.code, self.faults, self.retry_after, self.facts = code, faults, retry_after, facts

    @classmethod
    def at(cls, code: str, *loc: str | int, **facts: object) -> "Refused":
        """A refusal for the one thing that is wrong, at its place in the request."""
        return cls(code, [Fault(loc, code)], retry_after=None, **facts)

    @property
    def status(self) -> int:
        return REFUSALS[self.code].status

    @property
    def ours(self) -> bool:
        """Whether the fault is the service's, and not the request's."""
        return self.status >= 500


def refusal(error: BaseException) -> Refused:
    """What to answer for any error; one that is in no table is our own fault."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValidationError):
        errors = error.errors(include_input=False, include_url=False)
        faults = list(map(_fault, errors[:MOST_ERRORS]))
        return Refused(faults[0].code, faults)
    if isinstance(error, SequenceTooLong):  # a sentence of the corpus that GET /v1/heads measures
        return Refused("sequence_too_long", length=error.length, limit=error.limit)
    return Refused("internal")


def unreadable(error: ValueError) -> Refused:
    """What to answer where JSON was parsed before there was a schema for it."""
    return Refused(_parser_code(str(error)))


def _fault(error: ErrorDetails) -> Fault:
    """A validation error, located by indices and our own field names, never by the input's."""
    loc = tuple(part for part in error["loc"] if isinstance(part, int) or part in FIELDS)
    if error["type"] == "json_invalid":
        return Fault(loc, _parser_code(str(error.get("ctx", {}).get("error", ""))))
    return Fault(loc, VALIDATION.get(error["type"], "invalid_type"))


def _parser_code(reason: str) -> str:
    """The code of what the parser says, which has one error type for all that it does not read."""
    return next((code for words, code in PARSER.items() if words in reason), "invalid_json")


def problem(refused: Refused, request_id: str) -> bytes:
    """The body of a refusal, at most MOST_BYTES."""
    kind = REFUSALS[refused.code]
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": kind.title,
        "status": kind.status,
        "code": refused.code,
        "detail": kind.title,
        "request_id": request_id,
        **refused.facts,
    }
    faults = [{"loc": fault.loc, "code": fault.code} for fault in refused.faults[:MOST_ERRORS]]
    while faults and len(orjson.dumps({**body, "errors": faults})) > MOST_BYTES:
        faults.pop()
    return orjson.dumps({**body, "errors": faults} if faults else body)
