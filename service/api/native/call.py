"""POST /v1/encode: our own wire, JSON or safetensors."""

from collections.abc import Iterator
from dataclasses import dataclass

from service import refusals
from service.api import dialect
from service.api.dialect import Problem
from service.api.native import tensor_file
from service.encode import answer
from service.encode.answer import JSON, SAFETENSORS, Encoded
from service.encode.request import EncodeRequest
from service.refusals import Refused


@dataclass(frozen=True, slots=True)
class Call(dialect.InPieces):
    """One request, and how its answer is written.

    Args:
        media_type: of the answer, JSON or safetensors.
    """

    request: EncodeRequest
    media_type: str

    @property
    def numbers(self) -> bool:
        """Whether arrays are written as JSON numbers, which take several times their bytes."""
        return self.media_type == JSON and self.request.encoding == "json"

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        """The answer, in pieces."""
        if self.media_type == SAFETENSORS:
            return answer.as_safetensors(encoded)
        return answer.as_json(encoded, self.request.encoding)


def parse(body: bytes, media_type: str, accept: str, most_json: int) -> Call:
    """Read a request.

    Args:
        media_type: of the body, JSON or safetensors.
        accept: the media type to answer in.
        most_json: bytes of JSON that are read.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    if media_type == SAFETENSORS:
        return Call(tensor_file.parse(body, most_json), accept)
    return Call(EncodeRequest.model_validate_json(body), accept)


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as RFC 9457 words it."""
    body = refusals.problem(refused, request_id)
    return Problem(refused.status, body, refusals.MEDIA_TYPE)
