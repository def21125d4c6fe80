"""POST /v1/encode: our own wire, JSON or safetensors."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from service.api import media
from service.api import problem as wording
from service.api.dialect import Answer, JSONCall, Problem, Sent, Served
from service.api.native import tensor_file
from service.api.native.request import EncodeRequest
from service.api.native.tensor_file import Request
from service.encode import answer
from service.encode.answer import JSON, SAFETENSORS, Encoded
from service.encode.request import Layout
from service.refusals import MEDIA_TYPE, Refused

NUMBERS = Layout(compact=({"encoding": "base64"}, {"accept": SAFETENSORS}), half=True)
BYTES = Layout(numbers=(), half=True)


class Call(JSONCall):
    """A request of one of our own routes, answered in JSON or as a safetensors file."""

    @abstractmethod
    def file(self, encoded: Encoded) -> Iterator[bytes]:
        """Return the answer as a file, in pieces."""

    def at_once(self, encoded: Encoded) -> Answer | None:
        return None if self.media_type == SAFETENSORS else super().at_once(encoded)

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        return (self.file if self.media_type == SAFETENSORS else super().pieces)(encoded)


class Encode(Call):
    """A request of POST /v1/encode."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        return answer.tree(encoded)

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        return answer.as_safetensors(encoded)


def parse(body: bytes, sent: Sent, served: Served) -> Encode:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, request = read(body, sent, served, EncodeRequest)
    written = layout(request.encoding, accept)
    return Encode(request=request.plain(written), media_type=accept)


def read(body: bytes, sent: Sent, served: Served, kind: type[Request]) -> tuple[str, Request]:
    """Return the media type to answer in, and a request of one kind, from JSON or safetensors.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept = media.answer_type(sent.headers.get("accept", "*/*"))
    if sent.media_type == SAFETENSORS:
        return accept, tensor_file.parse(body, served.most_json, kind)
    return accept, kind.model_validate_json(body)


def layout(encoding: str, accept: str) -> Layout:
    """How the arrays of an answer are written."""
    return NUMBERS if accept == JSON and encoding == "json" else BYTES


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as RFC 9457 words it."""
    body = wording.problem(refused, request_id)
    return Problem(refused.status, body, MEDIA_TYPE)
