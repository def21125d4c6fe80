"""A caller's inputs -> items of the wire, in requests of a size that the service takes."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from headlight_client.formats import write_json

# A text, a pair of texts, token ids, (tokens, embedding width) embeddings, or an item of the wire
Input = str | tuple[str, str] | Sequence[int] | NDArray[Any] | Mapping[str, Any]

BYTES_PER_TOKEN = 4  # of UTF-8, about; a wrong guess costs a refusal and a smaller request
SPECIAL_TOKENS_PER_TEXT = 2
# Work in one request: enough to keep a replica's lanes busy, about a second at a tenth each
BATCHES_PER_REQUEST = 8
SPARE_BYTES = 64 * 1024  # of a body, for what is not inputs


class Options(TypedDict, total=False):
    """Options of an encoding; the names and defaults of POST /v1/encode."""

    model: str
    truncate: Literal["refuse", "right", "left"]
    pooled: bool | Mapping[str, Any]
    tokens: bool
    layers: Sequence[int]
    attention: Mapping[str, Any]
    gates: Sequence[Mapping[str, Any]]
    sweep: str | Mapping[str, Any]
    classify: bool | Mapping[str, Any]
    label_tokens: bool | Mapping[str, Any]
    sparse: bool | Mapping[str, Any]
    multi_vector: bool | Mapping[str, Any]
    dtype: Literal["float32", "float16"]
    prompt_name: str
    task: str


class ScoreOptions(TypedDict, total=False):
    """Options of scores; the names and defaults of POST /v1/maxsim."""

    model: str
    truncate: Literal["refuse", "right", "left"]
    gates: Sequence[Mapping[str, Any]]
    prompt_name: str | Mapping[str, str]


class HighlightOptions(TypedDict, total=False):
    """Options of evidence; the names and defaults of POST /v1/highlight."""

    model: str
    unit: Literal["sentence", "word", "token"]
    method: Literal["shares", "alone"]
    top: int
    prune: float
    control: bool
    prompt_name: str | Mapping[str, str]
    task: str | Mapping[str, str]
    truncate: Literal["refuse", "right", "left"]
    gates: Sequence[Mapping[str, Any]]


class RankOptions(TypedDict, total=False):
    """Options of ranks; the names and defaults of POST /v1/rerank."""

    model: str
    top_n: int
    max_tokens_per_doc: int
    truncate: bool


class LabelOptions(TypedDict, total=False):
    """Options of labels; the names and defaults of POST /v1/classify."""

    model: str
    hypothesis_template: str
    multi_label: bool
    truncate: Literal["refuse", "right", "left"]
    gates: Sequence[Mapping[str, Any]]


class ComparisonOptions(TypedDict, total=False):
    """Options of a comparison; the names and defaults of POST /v1/similarity."""

    model: str
    form: Literal["full", "top", "score", "occlusion"]
    k: int
    level: Literal["token", "word"]
    specials: Literal["keep", "drop"]
    prompt_name: str | Mapping[str, Any]
    task: str | Mapping[str, Any]
    truncate: Literal["refuse", "right", "left"]
    gates: Sequence[Mapping[str, Any]]
    sweep: str | Mapping[str, Any]
    sweep_pair: Sequence[int]
    dtype: Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request may be; see `limits`."""

    sequences: int
    tokens: int
    body_bytes: int
    sequence_tokens: int
    deadline_seconds: float
    heads: int

    def limits_of_sweep(self) -> "Limits":
        """Return the limits where each input comes with a copy for every head.

        A copy begins in its head's layer, so that all of them take half of all layers' work.
        """
        return replace(self, tokens=max(1, 2 * self.tokens // self.heads))


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs that are sent together.

    Args:
        before: the beginning of the body, up to the list of items.
        first: the caller's index of the first item.
        items: each as JSON.
        whole: whether they cannot be sent apart: patches name other inputs of their request.
    """

    before: bytes
    first: int
    items: list[bytes]
    whole: bool = False

    def __len__(self) -> int:
        return len(self.items)

    @property
    def body(self) -> bytes:
        """Return the JSON that is sent."""
        return self.before + b",".join(self.items) + b"]}"

    def split_in_half(self) -> tuple["Request", "Request"]:
        """Return two requests for the same inputs."""
        half = len(self) // 2
        left, right = replace(self, items=self.items[:half]), self.items[half:]
        return left, replace(self, first=self.first + half, items=right)


def read_limits(info: Mapping[str, Any]) -> Limits:
    """Read the limits of requests from the answer of GET /info.

    Tokens are kept to a few batches, far below what the service takes: a request that a slow
    service cannot do by its deadline would be refused however often it is sent.
    """
    bounds = info["limits"]
    return Limits(
        sequences=bounds["max_sequences"],
        tokens=min(bounds["max_request_tokens"], BATCHES_PER_REQUEST * bounds["batch_tokens"]),
        body_bytes=max(bounds["max_body_bytes"] - SPARE_BYTES, 1),
        sequence_tokens=info["max_tokens"],
        deadline_seconds=bounds["deadline_seconds"],
        heads=info["layers"] * info["heads"],
    )


def make_requests(
    inputs: Iterable[Input], most: Limits, options: Mapping[str, Any]
) -> Iterator[Request]:
    """Make requests of inputs, in order; of no inputs an empty one, for the service to refuse.

    Raises:
        TypeError: an input is of no kind that can be encoded.
        ValueError: an input has a patch, and one request cannot hold all inputs.
    """
    most = most.limits_of_sweep() if options.get("sweep") else most
    before, items = _begin_body(options, "inputs"), list[bytes]()
    first = tokens = size = 0
    patched = False
    for index, entry in enumerate(inputs):
        patched = patched or _is_patched(entry)
        item, its = _write_input(entry, index)
        its = min(its, most.sequence_tokens)
        full = len(items) == most.sequences or tokens + its > most.tokens
        full = bool(items) and (full or size + len(item) + 1 > most.body_bytes)
        if patched and (first or full):
            raise ValueError("inputs with patches must fit into one request")
        if full:
            yield Request(before, first, items)
            items, first, tokens, size = [], index, 0, 0
        items.append(item)
        tokens, size = tokens + its, size + len(item) + 1
    yield Request(before, first, items, patched)


def make_comparison(left: Input, right: Sequence[Input], options: Mapping[str, Any]) -> Request:
    """Make the request that compares a text with others.

    Raises:
        TypeError: a text or other input is of no kind that can be encoded.
    """
    items = [_write_input(entry, index)[0] for index, entry in enumerate([left, *right])]
    before = b'{"left":' + items[0] + b"," + _begin_body(options, "right")[1:]
    return Request(before, 0, items[1:], any(map(_is_patched, [left, *right])))


def make_scoring(query: Input, documents: Iterable[Input], options: ScoreOptions) -> bytes:
    """Make the body that scores documents.

    Raises:
        TypeError: an input is of no kind that can be encoded.
    """
    return write_json(
        {**options, "query": to_item(query), "documents": [to_item(one) for one in documents]}
    )


def _begin_body(options: Mapping[str, Any], items: str) -> bytes:
    """Begin a body with its options, up to the list of its items."""
    return write_json({**options, items: []})[:-2]


def _is_patched(entry: Input) -> bool:
    return isinstance(entry, Mapping) and bool(entry.get("patch"))


def _write_input(entry: Input, index: int) -> tuple[bytes, int]:
    """Write an input as JSON, and estimate how many tokens it has."""
    try:
        item = to_item(entry)
        text = write_json(item)
    except TypeError as error:
        raise TypeError(f"input {index}: {error}") from None
    if isinstance(item, dict) and "text" not in item:
        return text, max(map(_count_tokens, item.values()), default=0)
    return text, SPECIAL_TOKENS_PER_TEXT + len(text) // BYTES_PER_TOKEN


def _count_tokens(value: Any) -> int:
    """Count the tokens in a field of numbers."""
    if isinstance(value, dict) and value.get("shape"):
        return int(value["shape"][0])
    return len(value) if isinstance(value, list) else 0


def to_item(entry: Input) -> Any:
    """Return an input as the wire has it."""
    match entry:
        case str():
            return entry
        case Mapping():
            return {name: _to_field(value) for name, value in entry.items()}
        case (str(text), str(pair)):
            return {"text": text, "pair": pair}
        case np.ndarray() if entry.ndim == 2:
            return {"embeddings": _to_field(entry)}
        case np.ndarray() if entry.ndim == 1 and entry.dtype.kind in "iu":
            return {"token_ids": entry.tolist()}
        case [*ids] if all(isinstance(part, int | np.integer) for part in ids):
            return {"token_ids": ids}
    raise TypeError(f"{type(entry)} is not a text, a pair of texts, token ids or embeddings")


def _to_field(value: Any) -> Any:
    """Return a field of an item, an array of numbers as base64, in float16 or else in float32."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused
        little = value.astype("<f2" if value.dtype == np.float16 else "<f4", order="C")
    data = base64.b64encode(little.tobytes()).decode()
    return {"shape": value.shape, "dtype": little.dtype.name, "data": data}
