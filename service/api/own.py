"""What our own routes share: how they refuse, answer and are priced, and their examples."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml

from service.api.dialect import Api, Example, JSONCall, Parse, Reply, Route, Sent, Served
from service.core import Ask, Custom, Layout, WritesFile
from service.encode.answer import JSON, SAFETENSORS, Encoded
from service.observe.families import INPUTS
from service.refusals import MEDIA_TYPE, REFUSALS, Refused, problem_details
from service.wording.words import listed


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal in the form of RFC 9457."""
    return Reply(problem_details(refused, request_id), refused.status, media_type=MEDIA_TYPE)


NATIVE = Api("Headlight", problem, body_codes=tuple(REFUSALS))


class QuestionCall(JSONCall):
    """A request that is answered as its question writes it, in JSON or as a safetensors file."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        return self.request.tree(encoded)

    def at_once(self, encoded: Encoded) -> Reply | None:
        return None if self.media_type == SAFETENSORS else super().at_once(encoded)

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        if self.media_type == SAFETENSORS and isinstance(self.request, WritesFile):
            return self.request.file(encoded)
        return super().pieces(encoded)


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
    path: [
        Example(name, one["summary"], json.dumps(one["value"]), one.get("query", ""))
        for name, one in told.items()
    ]
    for path, told in TOLD.items()
}


def reads(kind: type[Ask]) -> Parse:
    """Return what reads the requests of a question."""
    files = issubclass(kind, WritesFile)

    def parse(body: bytes, sent: Sent, served: Served) -> QuestionCall:
        accept = accepted(sent) if files else JSON
        request = kind.model_validate_json(body)
        custom = Custom(layout(request.array_encoding, accept))
        return QuestionCall(request=request, media_type=accept, custom=custom)

    return parse


def question(path: str, summary: str, request: type[Ask], **more: Any) -> Route:
    """Return the route of a question, which is priced where its query asks for that."""
    shared: dict[str, Any] = {
        "inputs": INPUTS,
        "parameters": (PRICED,),
        "examples": EXAMPLES.get(path, ()),
        "answer_media": FILE if issubclass(request, WritesFile) else {},
    }
    if request.answer:
        shared["kind"] = f"{request.answer.__name__} | Priced"
    return Route(NATIVE, "post", path, summary, request, reads(request), **shared | more)
