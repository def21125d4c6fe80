"""What the parser says of a body that is no JSON -> a fault, in words: what, and where."""

import re
from typing import NamedTuple

from service.wording.fault import Fault, Loc

POSITION = re.compile(r" at line ([0-9]+) column ([0-9]+)$")


class Reason(NamedTuple):
    """One thing that the parser says.

    Args:
        words: how it begins; see jiter's JsonErrorType.
        detail: the same for people.
        code: of the refusal.
    """

    words: str
    detail: str
    code: str = "invalid_json"


HALF = "a \\u escape is half a surrogate pair, which is not valid Unicode"
REASONS = (
    Reason("trailing comma", "nothing follows the comma; JSON does not allow a trailing comma"),
    Reason("trailing characters", "the JSON has ended, but more characters follow"),
    Reason("EOF while parsing a string", "the body ends inside a string"),
    Reason("EOF while parsing a list", "the body ends inside a list; a ] is missing"),
    Reason("EOF while parsing an object", "the body ends inside an object; a } is missing"),
    Reason("EOF", "the body ends where a value is expected"),
    Reason("key must be a string", "expected a key in double quotes"),
    Reason("expected `:`", "expected a colon after a key"),
    Reason("expected `,` or `]`", "expected a comma or the end of the list, ]"),
    Reason("expected `,` or `}`", "expected a comma or the end of the object, }"),
    Reason("expected ident", "expected true, false or null in full"),
    Reason(
        "expected value", "expected a value: a string in double quotes, a number, a list, an object"
    ),
    Reason("invalid escape", "the backslash begins an escape that JSON does not have"),
    Reason(
        "invalid number",
        "JSON does not allow this number: it needs a digit at each end and no leading zeros",
    ),
    Reason(
        "control character",
        "a string contains a control character; write it as \\n, \\t or \\u00xx",
    ),
    Reason("lone leading surrogate", HALF, "invalid_text"),
    Reason("unexpected end of hex escape", HALF, "invalid_text"),  # half a pair, no escape behind
    Reason("number out of range", "the number has too many digits", "out_of_range"),
)
OTHER = Reason("", "the parser cannot read this")


def fault(said: str, loc: Loc = ()) -> Fault:
    """What the parser says as a fault; it says where it stopped, and nothing of what is there."""
    reason = next((reason for reason in REASONS if said.startswith(reason.words)), OTHER)
    where = POSITION.search(said)
    detail = f"line {where[1]}, column {where[2]}: {reason.detail}" if where else reason.detail
    return Fault(loc, reason.code, detail)
