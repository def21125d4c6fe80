"""One thing that is wrong in a file, and how it is said: FILE:LINE: path: what; what to write."""

from collections.abc import Collection
from dataclasses import dataclass

from pydantic_core import ErrorDetails

from service import settings
from service.settings import Settings
from service.wording.fault import Loc
from service.wording.words import listed, meant


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file.

    Args:
        loc: where in the file, as keys and indices; empty for the file itself.
        text: what is wrong, and what to write instead.
        note: whether it is right in some places, and only said.
    """

    loc: Loc
    text: str
    note: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with its place: str() is the line that is printed."""

    file: str
    line: int
    path: str
    text: str
    note: bool = False

    def __str__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        return f"{self.file}:{self.line}: {path}{'note: ' * self.note}{self.text}"


def setting(error: ErrorDetails) -> tuple[str, str]:
    """Return the name of a setting, and in words what is wrong with it."""
    name, _, text = settings.fault(error).partition(": ")
    unknown = error["type"] == "extra_forbidden"
    return name, text + (meant(name, Settings.model_fields) if unknown else "")


def key(error: ErrorDetails, names: Collection[str]) -> str:
    """Say in a line what is wrong at one key of Ray's; the names are those that go there."""
    if error["type"] == "extra_forbidden":
        near = meant(str(error["loc"][-1]), names)
        return f"Ray knows no such key{near or '; it knows ' + listed(sorted(names), 'and')}"
    text = " ".join(error["msg"].removeprefix("Value error, ").split())
    ours = error["type"] in ("value_error", "missing")  # Ray's sentence names the value
    return text if ours else f"{text}, not {error['input']!r}"
