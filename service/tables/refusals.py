"""The service's errors and the one table that gives them a status and a code.

A refusal is a deliberate error. The code that finds the fault raises `Refused` with a code from the
table, the place and what was expected there; the HTTP edge catches it once and words it, never
with the input or an exception's own text. Its shape is that of RFC 9457.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from model.errors import SequenceTooLong
from service.tables.wording import schema
from service.tables.wording.words import Fault, Loc, capitalise, end_sentence, write_place

MEDIA_TYPE = "application/problem+json"  # of a refusal
OVERLOADED = "overloaded"  # code of a refusal for lack of room
MOST_SHOWN_FAULTS = 10  # faults of a request that `errors` lists


class RefusalKind(NamedTuple):
    """A kind of refusal: a row of REFUSALS.

    Args:
        status: the HTTP status.
        title: what is wrong, without facts of the request.
        detail: a template of the same with a request's numbers, which are the refusal's facts.
    """

    status: int
    title: str
    detail: str = ""


REFUSALS: dict[str, RefusalKind] = {
    "invalid_json": RefusalKind(400, "The body is not valid JSON."),
    "duplicate_key": RefusalKind(400, "An object of the body has a key twice."),
    "bad_request": RefusalKind(
        400,
        "The request is no HTTP/1.1, its path has an encoded slash, or its headers contradict each "
        "other or announce a body that the method cannot have.",
    ),
    "unauthorized": RefusalKind(
        401, "This service asks for an API key: Authorization: Bearer <key>."
    ),
    "forbidden_origin": RefusalKind(
        403, "A web page of another origin sent this; the setting cors_origins lists allowed ones."
    ),
    "model_forbidden": RefusalKind(403, "This API key may not use this model."),
    "not_found": RefusalKind(404, "There is nothing at this path."),
    "task_not_found": RefusalKind(404, "The model's checkpoint has no head for this task."),
    "model_not_found": RefusalKind(404, "This service serves another model."),
    "space_changed": RefusalKind(
        409, "The request expects vectors of another space than this model gives."
    ),
    "request_timeout": RefusalKind(408, "The body did not arrive in time."),
    "method_not_allowed": RefusalKind(405, "This path does not support this method."),
    "not_acceptable": RefusalKind(
        406, "The answer can be JSON or safetensors, but the Accept header allows neither."
    ),
    "body_too_large": RefusalKind(413, "The body is larger than this service accepts."),
    "too_many_values": RefusalKind(413, "The body holds more values than any request needs."),
    "too_many_tokens": RefusalKind(
        413, "The request has more tokens than this service takes at once."
    ),
    "attention_too_large": RefusalKind(
        413,
        "The attention is larger than an answer may be.",
        "it takes {bytes:,} bytes, and the limit is {limit:,}",
    ),
    "answer_too_large": RefusalKind(
        413,
        "The answer is too large: ask for fewer inputs, fewer outputs or a smaller dtype.",
        "it takes {bytes:,} bytes, and the limit is {limit:,}",
    ),
    "unsupported_media_type": RefusalKind(
        415, "This route does not accept the body's Content-Type."
    ),
    "unsupported_encoding": RefusalKind(
        415, "The body is compressed in a way that this service does not read."
    ),
    "bad_host": RefusalKind(
        421,
        "The host name is none of this service's; --allowed-hosts (allowed_hosts) adds names, such "
        "as host.docker.internal for containers.",
    ),
    "invalid_type": RefusalKind(422, "A value has the wrong type."),
    "out_of_range": RefusalKind(422, "A value is outside its range."),
    "unknown_field": RefusalKind(422, "The request has an unknown field or query parameter."),
    "missing_field": RefusalKind(422, "A required field is missing."),
    "exactly_one_input": RefusalKind(
        422, "An input must have exactly one of text, token_ids and embeddings."
    ),
    "batch_empty": RefusalKind(422, "The request has no inputs."),
    "batch_too_large": RefusalKind(
        422, "The request has more inputs than this service takes at once."
    ),
    "sequence_empty": RefusalKind(422, "An input is empty."),
    "sequence_too_long": RefusalKind(
        422,
        "A sequence has more tokens than the model takes.",
        "it has {length:,} tokens, and the model takes at most {limit:,}",
    ),
    "text_too_long": RefusalKind(
        422,
        "A text has more characters than this service accepts.",
        "it has {length:,} characters, and the limit is {limit:,}",
    ),
    "invalid_text": RefusalKind(422, "A text contains characters that are not valid Unicode."),
    "token_out_of_range": RefusalKind(422, "A token id or type is outside the model's tables."),
    "shape_mismatch": RefusalKind(422, "An array's shape does not fit the model or its sequence."),
    "bad_base64": RefusalKind(422, "A base64 string cannot be decoded."),
    "payload_length_mismatch": RefusalKind(422, "An array's bytes do not match its shape."),
    "non_finite": RefusalKind(422, "Some numbers are NaN or infinity."),
    "index_out_of_range": RefusalKind(
        422, "A layer, head or row does not exist, or is named twice."
    ),
    "words_unknown": RefusalKind(422, "Token ids and embeddings have no words."),
    "specials_unknown": RefusalKind(422, "Embeddings do not say which tokens are special."),
    "nothing_left": RefusalKind(422, "A sequence has no token left: all of them are left out."),
    "prompt_not_found": RefusalKind(422, "The model has no prompt of that name."),
    "prompt_without_text": RefusalKind(422, "A prompt needs texts, and an input is not a text."),
    "patch_mismatch": RefusalKind(422, "A patch takes values from an input of another length."),
    "span_empty": RefusalKind(422, "A span of a text holds no token."),
    "similarity_not_explainable": RefusalKind(
        422, "The model's vectors or scores are no sums over tokens, and have no shares of them."
    ),
    "deadline_unreachable": RefusalKind(
        422,
        "The request takes longer than its deadline, even on an idle service.",
        "it takes at least {estimate_ms:,} ms, its deadline is {deadline_ms:,} ms, and about"
        " {sequences:,} of its sequences would fit",
    ),
    "overloaded": RefusalKind(429, "The service is busy; the request was not started."),
    "headers_too_large": RefusalKind(
        431, "The URL or the headers are larger than this service accepts."
    ),
    "internal": RefusalKind(500, "The service failed; the request is not to blame."),
    "nonfinite_output": RefusalKind(
        500,
        "The model produced NaN or infinity.",
        "the first hidden state to hold them is that of layer {layer} (-1 is the last), in {dtype}",
    ),
    "replica_lost": RefusalKind(
        502, "The replica broke off before it answered; send the request again."
    ),
    "not_ready": RefusalKind(503, "The replica is not ready."),
    "deadline_exceeded": RefusalKind(504, "The request was not finished by its deadline."),
}

# Codes of the caller's faults and of ours; 429 is no one's
CALLER_CODES = frozenset(
    code for code, kind in REFUSALS.items() if kind.status < 500 and kind.status != 429
)
SERVICE_CODES = frozenset(code for code, kind in REFUSALS.items() if kind.status >= 500)
UNAUTHORIZED_STATUS = 401  # of a missing or wrong key

# Statuses that clients of other APIs expect instead: OpenAI's openapi.yaml; TEI 1.9's
# router/src/http/server.rs, From<&ErrorType> for StatusCode
OPENAI_STATUSES = dict.fromkeys(
    (code for code, kind in REFUSALS.items() if kind.status == 422), 400
) | {"too_many_tokens": 400}
TEI_STATUSES = {"batch_empty": 400, "internal": 424, "nonfinite_output": 424}

# Codes of refusals at the HTTP edge: by the headers alone, and by the body
HEADER_CODES = (
    *("bad_request", "unauthorized", "unsupported_encoding", "bad_host", "forbidden_origin"),
    "headers_too_large",
)
BODY_CODES = ("duplicate_key", "request_timeout", "body_too_large", "too_many_values")

MOST_DETAILS = 3  # faults that `detail` puts into words
MOST_BYTES = 4096  # of a refusal in the form of RFC 9457
# In such paths, the Open Inference Protocol's, clients fail on an `error` that is no text
TEXT_ERROR_PATHS = ("/v2/models/", "/v2/health/")


class Refused(Exception):
    """A refused request.

    Args:
        code: a code from REFUSALS.
        faults: what is wrong, and where.
        detail: what is expected and what came, for a fault without a place in the request.
        retry_after: seconds after which a retry may succeed.
        bound: what there is no room or time within, as headlight_shed_total names it.
        facts: numbers that help the caller, such as `length` and `limit`.
    """

    def __init__(
        self,
        code: str,
        faults: Sequence[Fault] = (),
        *,
        detail: str = "",
        retry_after: int | None = None,
        bound: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(code)
        self.code, self.faults, self.detail = code, faults, detail
        self.retry_after, self.bound, self.facts = retry_after, bound, facts

    @classmethod
    def at(cls, code: str, *loc: str | int, detail: str = "", **facts: Any) -> "Refused":
        """Return a refusal for a single fault, at its place in the request.

        Args:
            detail: what is expected there and what came, without a full stop.
        """
        return cls(code, [Fault(loc, code, detail)], retry_after=None, **facts)

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return REFUSALS[self.code].status

    @property
    def is_ours(self) -> bool:
        """Tell whether the fault is the service's, not the request's."""
        return self.status >= 500


def overloaded(bound: str, seconds: float = 0.0) -> Refused:
    """Return the refusal of a request for which there is no room or time now.

    Args:
        bound: within which there is none, as headlight_shed_total names it.
        seconds: until those that wait now are done.
    """
    return Refused(OVERLOADED, retry_after=1 + int(seconds), bound=bound)


def refusal_of(error: BaseException) -> Refused:
    """Return the refusal for any error; one that is not foreseen is our own fault."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False)[:MOST_SHOWN_FAULTS]
        faults = [schema.locate_fault(fault, error.title) for fault in errors]
        return Refused(faults[0].code, faults)
    if isinstance(error, SequenceTooLong):  # a sentence of the corpus that GET /v1/heads measures
        return Refused("sequence_too_long", length=error.length, limit=error.limit)
    return Refused("internal")


def problem_details(refused: Refused, request_id: str, path: str = "") -> bytes:
    """Return a refusal as the JSON of RFC 9457, at most MOST_BYTES long.

    Its words also stand in `error.message`, which OpenAI's clients show.

    Args:
        path: of the request, where that may be the Open Inference Protocol's.
    """
    has_text = any(part in path for part in TEXT_ERROR_PATHS)
    kind = REFUSALS[refused.code]
    for most in range(min(len(refused.faults), MOST_SHOWN_FAULTS), -1, -1):
        faults = refused.faults[:most]
        detail = word_refusal(refused, faults)
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": kind.title,
            "status": kind.status,
            "code": refused.code,
            "detail": detail,
            "error": detail if has_text else {"message": detail, "code": refused.code},
            "request_id": request_id,
            **refused.facts,
        }
        if faults:
            body["errors"] = [{"loc": fault.loc, "code": fault.code} for fault in faults]
        encoded = orjson.dumps(body)
        if len(encoded) <= MOST_BYTES:
            break
    return encoded


def word_refusal(
    refused: Refused, faults: Sequence[Fault], where: Callable[[Loc], str] = write_place
) -> str:
    """Return a refusal in words: the place, what is expected there, and what came.

    Args:
        faults: those to report; the first few are put into words.
        where: how an API writes a place.
    """
    kind, facts = REFUSALS[refused.code], refused.facts
    numbers = refused.detail or (kind.detail.format(**facts) if facts else "")
    worded = [_word_fault(where(f.loc), f.detail or numbers, f.code) for f in faults[:MOST_DETAILS]]
    sentences = [*dict.fromkeys(worded)] or [kind.title, end_sentence(capitalise(numbers))]
    if len(faults) > MOST_DETAILS:
        sentences.append(f"The errors name {len(faults) - MOST_DETAILS} more.")
    if refused.retry_after:
        sentences.append(f"Try again in {refused.retry_after} s.")
    return " ".join(filter(None, sentences))


def _word_fault(place: str, detail: str, code: str) -> str:
    """Return one fault in words; if no detail is known, by the title of its kind."""
    title = REFUSALS[code].title
    if not detail:
        return f"{place}: {title}" if place else title
    return f"{place}: {end_sentence(detail)}" if place else end_sentence(capitalise(detail))
