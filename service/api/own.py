"""What our own routes share: refusals, negotiated answers, dry runs and examples."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml

from service.api.dialect import JSONCall
from service.observe.families import INPUTS
from service.shapes.answer import JSON, SAFETENSORS, Answer
from service.shapes.ask import Ask, Custom, WritesFile
from service.shapes.call import Api, Example, ModelFacts, Parser, Reply, RequestHead, Route
from service.shapes.price import Layout
from service.tables.refusals import MEDIA_TYPE, REFUSALS, Refused, problem_details
from service.tables.wording.words import list_names


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of RFC 9457."""
    return Reply(problem_details(refused, request_id), refused.status, media_type=MEDIA_TYPE)


NATIVE = Api("Headlight", problem, body_codes=tuple(REFUSALS))


class FileCall(JSONCall):
    """A request that is answered in JSON or as a safetensors file."""

    def write_small(self, encoded: Answer) -> Reply | None:
        """Return the response to a small request for JSON; None for a file."""
        return None if self.media_type == SAFETENSORS else super().write_small(encoded)

    def pieces(self, encoded: Answer) -> Iterator[bytes]:
        """Return the answer's body in pieces, as JSON or as a safetensors file."""
        if self.media_type == SAFETENSORS:
            return self.write_file(encoded)
        return super().pieces(encoded)

    @abstractmethod
    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        """Return the answer as a safetensors file, in pieces."""


class QuestionCall(FileCall):
    """A request to one of our own questions."""

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer as the question nests it."""
        return self.request.to_json(encoded)

    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        """Return the answer as the question's file has it, of one that has files."""
        request = self.request
        return request.write_file(encoded) if isinstance(request, WritesFile) else iter(())


def array_layout(encoding: str, media_type: str) -> Layout:
    """Return the layout of arrays in an answer of a media type: JSON numbers, or bytes by name."""
    if media_type == JSON and encoding == "json":
        return Layout()
    return Layout(numbers=(), named=media_type == SAFETENSORS)


def negotiate_type(accept: str) -> str:
    """Return the media type to answer in, by an Accept header: JSON, or safetensors if preferred.

    Raises:
        Refused: the client accepts neither.
    """
    if accept in ("*/*", JSON):  # as nearly all clients send; "*/*" stands for no header too
        return JSON
    weights = {JSON: 0.0, SAFETENSORS: 0.0}
    exact: set[str] = set()
    for part in accept.lower().split(","):
        name, _, parameters = part.strip().partition(";")
        for media_type in weights:
            general = name.strip() in ("*/*", "application/*")
            if name.strip() == media_type or (general and media_type not in exact):
                weights[media_type] = _read_quality(parameters)
                exact |= set() if general else {media_type}
    best = max(weights, key=weights.__getitem__)  # on a tie the first, JSON
    if not weights[best]:
        detail = f"expected an Accept header that allows {list_names(weights)}, or no such header"
        raise Refused("not_acceptable", detail=detail)
    return best


def _read_quality(parameters: str) -> float:
    """Return the q of a media type's parameters, 0 to 1; 1 if absent, 0 if it is no number."""
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0


FILE_MEDIA = {SAFETENSORS: {"type": "string", "format": "binary"}}  # a file's schema, for OpenAPI
DRY_RUN = "dry_run"  # the query parameter that asks what an answer would cost
DRY_RUN_PARAMETER = {
    "name": DRY_RUN,
    "in": "query",
    "description": "true computes nothing and answers what the request would cost.",
    "schema": {"type": "boolean", "default": False},
}


EXAMPLES_BY_PATH = yaml.safe_load(files("service.api").joinpath("examples.yaml").read_bytes())
EXAMPLES = {  # of requests, by path
    path: [
        Example(name, fields["summary"], json.dumps(fields["value"]), fields.get("query", ""))
        for name, fields in examples.items()
    ]
    for path, examples in EXAMPLES_BY_PATH.items()
}


def make_parser(kind: type[Ask]) -> Parser:
    """Return the parser of a question's requests, given their class."""
    writes_files = issubclass(kind, WritesFile)

    def parse(body: bytes, head: RequestHead, served: ModelFacts) -> QuestionCall:
        """Parse a request, and choose the answer's media type by its Accept header."""
        accept = head.headers.get("accept", "*/*")
        media_type = negotiate_type(accept) if writes_files else JSON
        request = kind.model_validate_json(body)
        custom = Custom(array_layout(request.chosen("encoding", "json"), media_type))
        return QuestionCall(request=request, media_type=media_type, custom=custom)

    return parse


def question_route(path: str, summary: str, request: type[Ask], **more: Any) -> Route:
    """Return the route of a question, which also takes dry runs; `more` are fields of Route."""
    shared: dict[str, Any] = {
        "inputs": INPUTS,
        "parameters": (DRY_RUN_PARAMETER,),
        "examples": EXAMPLES.get(path, ()),
        "answer_media": FILE_MEDIA if issubclass(request, WritesFile) else {},
    }
    if request.answer:
        shared["kind"] = f"{request.answer.__name__} | Priced"
    return Route(NATIVE, "post", path, summary, request, make_parser(request), **shared | more)
