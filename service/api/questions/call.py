"""POST /v1/similarity: our own wire, JSON or safetensors."""

from collections.abc import Iterator
from typing import Any

from service.api.dialect import Sent, Served
from service.api.native import call as native
from service.api.native.call import layout, read
from service.api.questions.request import ComparisonRequest
from service.encode import answer
from service.encode.answer import Each, Encoded, Item, Records

PAIRS = "pairs."  # how the names of the arrays of one table begin


class Call(native.Call):
    """A request of POST /v1/similarity."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        left, *right = encoded.items
        trees = Each(_tree(item, self.request.encoding) for item in right)
        return {**encoded.preamble, "left": left.facts, "right": trees, "usage": encoded.usage}

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        left, *right = encoded.items
        facts = {"left": left.facts, "right": [item.facts for item in right]}
        told = {**encoded.preamble, **facts, "usage": encoded.usage}
        return answer.as_file(told, dict(_tensors(right)))


def similarity(body: bytes, sent: Sent, served: Served) -> Call:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, request = read(body, sent, served, ComparisonRequest)
    written = layout(request.encoding, accept)
    return Call(request=request.plain(written), media_type=accept)


def _tensors(right: list[Item]) -> Iterator[tuple[str, answer.Array]]:
    """The arrays of each text on the right, by its number."""
    for index, item in enumerate(right):
        for name, array in item.arrays.items():
            yield f"{index}.{name}", array


def _tree(item: Item, encoding: str) -> dict[str, Any]:
    """One text on the right as nested dicts with arrays as leaves."""
    tree: dict[str, Any] = {**item.facts}
    tree |= {name: array for name, array in item.arrays.items() if not name.startswith(PAIRS)}
    columns = {
        name.removeprefix(PAIRS): array
        for name, array in item.arrays.items()
        if name.startswith(PAIRS)
    }
    if columns:
        tree["pairs"] = columns if encoding == "base64" else Records(columns, named=False)
    return tree
