"""What our own routes share: how they refuse, answer and are priced, and their examples."""

from abc import abstractmethod
from collections.abc import Iterator
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Discriminator, Tag

from service.api.dialect import Api, Example, JSONCall, Parse, Reply, Route, Sent
from service.encode.answer import JSON, SAFETENSORS, Encoded
from service.encode.request import Layout
from service.observe.families import INPUTS
from service.refusals import MEDIA_TYPE, REFUSALS, Refused, problem_details
from service.wire import Wire
from service.wording.words import listed


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal in the form of RFC 9457."""
    return Reply(problem_details(refused, request_id), refused.status, media_type=MEDIA_TYPE)


NATIVE = Api(
    "Headlight",
    problem,
    body_codes=tuple(REFUSALS),
    error="Problem",
    media_type=MEDIA_TYPE,
)


class NativeCall(JSONCall):
    """A request of one of our own routes, answered in JSON or as a safetensors file."""

    @abstractmethod
    def file(self, encoded: Encoded) -> Iterator[bytes]:
        """Return the answer as a file, in pieces."""

    def at_once(self, encoded: Encoded) -> Reply | None:
        return None if self.media_type == SAFETENSORS else super().at_once(encoded)

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        return (self.file if self.media_type == SAFETENSORS else super().pieces)(encoded)


def accepted(sent: Sent) -> str:
    """Return the media type to answer in.

    Raises:
        Refused: the client accepts neither.
    """
    return answer_type(sent.headers.get("accept", "*/*"))


def layout(encoding: str, accept: str) -> Layout:
    """Return how the arrays of an answer are written."""
    return Layout() if accept == JSON and encoding == "json" else Layout(numbers=())


def answer_type(accept: str) -> str:
    """Return the media type to answer in: JSON, or safetensors if it is preferred.

    Raises:
        Refused: the client accepts neither.
    """
    if accept in ("*/*", JSON):  # as nearly all clients send, or no header
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
    best = max(weights, key=weights.__getitem__)  # on a tie the first, JSON
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


Sides = TypeVar("Sides", bound=Wire)
BothOr = Annotated[  # one name for both sides, or an object with a name for each
    Annotated[str, Tag("<both>")] | Annotated[Sides, Tag("<each>")],
    Discriminator(lambda value: "<each>" if isinstance(value, dict | Wire) else "<both>"),
]


class SidePrompts(Wire):
    """A prompt for each side."""

    query: str | None = None
    """The prompt that goes before `query`; left out: `default_prompt_name` of GET /info."""
    document: str | None = None
    """The prompt that goes before each of `documents`; left out: the same default."""


FILE = {SAFETENSORS: {"type": "string", "format": "binary"}}
DRY_RUN = "dry_run"  # a switch in the query that asks what an answer would cost
PRICED = {
    "name": DRY_RUN,
    "in": "query",
    "description": "true computes nothing and answers what the request would cost.",
    "schema": {"type": "boolean", "default": False},
}


TOLD = yaml.safe_load(files("service.api").joinpath("examples.yaml").read_bytes())
EXAMPLES = {
    path: [Example(name, **each) for name, each in examples.items()]
    for path, examples in TOLD.items()
}


def question(path: str, summary: str, request: Any, parse: Parse, **more: Any) -> Route:
    """Return the route of a question, which is priced where its query asks for that."""
    more = {"inputs": INPUTS, "parameters": (PRICED,), "examples": EXAMPLES[path]} | more
    return Route(NATIVE, "post", path, summary, request, parse, **more)
