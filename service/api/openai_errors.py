"""A refusal in the form of OpenAI's errors, as all of its routes have it."""

from collections.abc import Mapping

from service.api.dialect import explain_refusal, json_reply
from service.shapes.call import Reply
from service.tables.refusals import OPENAI_STATUSES, Refused

# Our codes -> OpenAI's, where they differ
OPENAI_CODES = {"sequence_too_long": "context_length_exceeded", "overloaded": "rate_limit_exceeded"}


def openai_problem(refused: Refused, fields: Mapping[str, str]) -> Reply:
    """Return the response of a refusal.

    Args:
        fields: a route's names of fields, by those of the native request.
    """
    status = OPENAI_STATUSES.get(refused.code, refused.status)
    error = {
        "message": explain_refusal(refused, fields),
        "type": _error_type(refused),
        "param": _faulty_field(refused, fields),
        "code": OPENAI_CODES.get(refused.code, refused.code),
    }
    return json_reply({"error": error, "detail": error["message"]}, status)  # detail: Jina's


def _error_type(refused: Refused) -> str:
    """Return OpenAI's error type of a refusal."""
    if refused.code == "overloaded":
        return "rate_limit_error"
    return "server_error" if refused.is_ours else "invalid_request_error"


def _faulty_field(refused: Refused, fields: Mapping[str, str]) -> str | None:
    """Return the route's name of the field that a refusal names first; None if it names none."""
    loc = refused.faults[0].loc if refused.faults else ()
    return fields.get(str(loc[0]), str(loc[0])) if loc else None
