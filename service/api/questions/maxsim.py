"""POST /v1/maxsim: our own wire, JSON or safetensors."""

from collections.abc import Iterator
from typing import Any

from service.api.dialect import Sent, Served
from service.api.native import call as native
from service.api.native.call import layout, read
from service.api.questions.request import MaxsimRequest
from service.encode import answer
from service.encode.answer import Each, Encoded, Item, Records

MATCHES = "matches."  # how the names of the arrays of one document begin


class Call(native.Call):
    """A request of POST /v1/maxsim."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        query, *documents = encoded.items
        results = Each(_tree(item, self.request.encoding) for item in documents)
        return {
            **encoded.preamble,
            "query": query.facts,
            "results": results,
            "usage": encoded.usage,
        }

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        query, *documents = encoded.items
        facts = {"query": query.facts, "results": [item.facts for item in documents]}
        told = {**encoded.preamble, **facts, "usage": encoded.usage}
        return answer.as_file(told, dict(_tensors(documents)))


def parse(body: bytes, sent: Sent, served: Served) -> Call:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, request = read(body, sent, served, MaxsimRequest)
    written = layout(request.encoding, accept)
    return Call(request=request.plain(written), media_type=accept)


def _tensors(documents: list[Item]) -> Iterator[tuple[str, answer.Array]]:
    """The arrays of each document, by its number in the request."""
    for item in documents:
        for name, array in item.arrays.items():
            yield f"{item.facts['index']}.{name}", array


def _tree(item: Item, encoding: str) -> dict[str, Any]:
    """One document as nested dicts with arrays as leaves."""
    columns = {name.removeprefix(MATCHES): array for name, array in item.arrays.items()}
    matches = columns if encoding == "base64" else Records(columns, named=False)
    return {**item.facts, "matches": matches}
