"""Write a caller's inputs as JSON, in requests of a size that the service takes."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from headlight_client.formats import write_json

# A text, a pair of texts, token ids, (tokens, embedding width) embeddings, or a JSON item
Input = str | tuple[str, str] | Sequence[int] | NDArray[Any] | Mapping[str, Any]

BYTES_PER_TOKEN = 4  # of UTF-8, about; a wrong estimate costs a refusal and a smaller request
SPECIAL_TOKENS_PER_TEXT = 2  # estimate
# Batches in one request: enough to keep a replica busy, about a second at 0.1 s each
BATCHES_PER_REQUEST = 8
SPARE_BYTES = 64 * 1024  # of a body, for options


class Common(TypedDict, total=False):
    """Options of several questions."""

    model: str  # the expected model; another one is refused
    truncate: Literal["refuse", "right", "left"]  # refuse inputs that are too long, or cut here
    gates: Sequence[Mapping[str, Any]]  # heads to scale or drop


class Options(Common, total=False):
    """Options of an encoding; the names and defaults of POST /v1/encode."""

    # True, or an object that says how: pooled, classify, label_tokens, sparse, multi_vector
    pooled: bool | Mapping[str, Any]  # a vector for each input
    tokens: bool  # the vector of each token
    layers: Sequence[int]  # hidden states, by number
    attention: Mapping[str, Any]  # attention maps
    sweep: Literal["heads"] | Mapping[str, Any]  # drop each head in turn; an object: which, how
    classify: bool | Mapping[str, Any]  # classes
    label_tokens: bool | Mapping[str, Any]  # a label for each token or word
    sparse: bool | Mapping[str, Any]  # weights over the vocabulary
    multi_vector: bool | Mapping[str, Any]  # a vector for each token kept
    dtype: Literal["float32", "float16"]  # of the vectors
    prompt_name: str  # the checkpoint's prompt to use
    task: str  # the adapter to use


class ScoreOptions(Common, total=False):
    """Options of scores; the names and defaults of POST /v1/maxsim."""

    prompt_name: str | Mapping[str, str]  # the checkpoint's; or one each for query and document


class HighlightOptions(Common, total=False):
    """Options of evidence; the names and defaults of POST /v1/highlight."""

    unit: Literal["sentence", "word", "token"]  # what documents are divided into
    method: Literal["alone", "occlusion", "sum", "maxsim"]  # how units are scored
    top: int  # how many units to highlight
    prune: float  # largest share of a document's characters in `pruned`
    control: bool  # whether to score documents without their highlights too
    prompt_name: str | Mapping[str, str]  # the checkpoint's; or one each for query and document
    task: str | Mapping[str, str]  # the adapter, or one each for query and document


class RankOptions(TypedDict, total=False):
    """Options of ranks; the names and defaults of POST /v1/rerank."""

    model: str  # the expected model; another one is refused
    top_n: int  # how many documents to answer
    max_tokens_per_doc: int  # first tokens of a document that are read
    truncate: bool  # whether pairs that are too long are cut


class LabelOptions(Common, total=False):
    """Options of labels; the names and defaults of POST /v1/classify."""

    hypothesis_template: str  # with "{}" for the label
    multi_label: bool  # whether several labels may fit a text


class DecideOptions(TypedDict, total=False):
    """Options of decisions; the names and defaults of POST /v1/systemone."""

    model: str  # the expected model; another one is refused
    truncate: Literal["refuse", "right", "left"]  # refuse what does not fit, or cut as its library
    reason: Mapping[str, Any]  # what each decision rests on: method, level, control
    orders: int  # in how many other orders of its options to ask each question again


class ExplainOptions(TypedDict, total=False):
    """Options of an explanation; the names and defaults of POST /v1/explain."""

    model: str  # the expected model; another one is refused
    pair: str  # a second text, read after the first
    weights: bool  # also the layer's weights
    task: str  # the adapter to use
    truncate: Literal["refuse", "right", "left"]  # refuse a text that is too long, or cut here


class AttendOptions(TypedDict, total=False):
    """Arrays and options of attention without a model; the names of POST /v1/attend."""

    value: Any  # (key, d of the values)
    query: Any  # (query, d); with key
    key: Any  # (key, d)
    scores: Any  # ([heads,] query, key); in place of query and key
    probabilities: bool  # whether scores are shares already
    heads: int  # that share d
    mask: Any  # where a query may look, ([heads,] query, key)
    bias: Any  # added to the scores, ([heads,] query, key)


class ComparisonOptions(Common, total=False):
    """Options of a comparison; the names and defaults of POST /v1/similarity."""

    form: Literal["full", "top", "score", "occlusion"]  # what to answer besides the score
    by: Literal["layer", "input", "head"]  # shares of the last layer's vectors, of tokens, of heads
    k: int  # pairs of the form top
    level: Literal["token", "word"]  # what a row and a column stand for
    specials: Literal["keep", "drop"]  # special tokens
    prompt_name: str | Mapping[str, Any]  # the checkpoint's; or one each for left and right
    task: str | Mapping[str, Any]  # the adapter, or one each for left and right
    sweep: Literal["heads"] | Mapping[str, Any]  # drop each head in turn; an object: which, how
    sweep_pair: Sequence[int]  # row and column of a pair to follow in a sweep
    dtype: Literal["float32", "float16"]  # of the arrays


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request may be; see `read_limits`."""

    sequences: int  # of a request
    tokens: int  # of all sequences together
    body_bytes: int  # of a request
    sequence_tokens: int  # of one sequence
    deadline_seconds: float  # of the service
    heads: int  # of all layers of the model

    def limits_of_sweep(self) -> "Limits":
        """Return the limits of a sweep, which computes each input once more for every head.

        Such a pass begins in its head's layer, so that on average it takes half of the work.
        """
        return replace(self, tokens=max(1, 2 * self.tokens // self.heads))


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs that are sent together.

    Args:
        before: the JSON of the body up to the list of items.
        first: the caller's index of the first item.
        items: the JSON of each item.
        whole: whether it cannot be split: patches name other inputs of their request.
    """

    before: bytes
    first: int
    items: list[bytes]
    whole: bool = False

    def __len__(self) -> int:
        return len(self.items)

    @property
    def body(self) -> bytes:
        """Return the JSON body."""
        return self.before + b",".join(self.items) + b"]}"

    def split_in_half(self) -> tuple["Request", "Request"]:
        """Split the inputs into two requests."""
        half = len(self) // 2
        left, right = replace(self, items=self.items[:half]), self.items[half:]
        return left, replace(self, first=self.first + half, items=right)


def read_limits(info: Mapping[str, Any]) -> Limits:
    """Return the limits of requests from the answer of GET /info.

    Tokens are limited to a few batches, far below the service's limit: a request that a slow
    service cannot finish by its deadline would be refused each time.
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


def check_inputs(
    inputs: Iterable[Input], options: Mapping[str, Any], known: type, name: str = "inputs"
) -> None:
    """Refuse a lone input and unknown options, which would be misread or ignored.

    Raises:
        TypeError: what is wrong.
    """
    if isinstance(inputs, str | Mapping):
        raise TypeError(f"{name} must be a list, even if there is only one")
    check_options(options, known)


def check_options(options: Mapping[str, Any], known: type) -> None:
    """Refuse unknown options, which would be ignored.

    Raises:
        TypeError: names them.
    """
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")


def make_requests(
    inputs: Iterable[Input], limits: Limits, options: Mapping[str, Any]
) -> Iterator[Request]:
    """Yield requests with all inputs, in order; for no inputs an empty one, which is refused.

    Raises:
        TypeError: an input is of no kind that can be encoded.
        ValueError: an input has a patch, and one request cannot hold all inputs.
    """
    limits = limits.limits_of_sweep() if options.get("sweep") else limits
    before, items = _begin_body(options, "inputs"), list[bytes]()
    first = tokens = size = 0
    patched = False
    for index, entry in enumerate(inputs):
        patched = patched or _is_patched(entry)
        item, item_tokens = _write_input(entry, index)
        item_tokens = min(item_tokens, limits.sequence_tokens)
        full = len(items) == limits.sequences or tokens + item_tokens > limits.tokens
        full = bool(items) and (full or size + len(item) + 1 > limits.body_bytes)
        if patched and (first or full):
            raise ValueError("inputs with patches must fit into one request")
        if full:
            yield Request(before, first, items)
            items, first, tokens, size = [], index, 0, 0
        items.append(item)
        tokens, size = tokens + item_tokens, size + len(item) + 1
    yield Request(before, first, items, patched)


def make_comparison(left: Input, right: Sequence[Input], options: Mapping[str, Any]) -> Request:
    """Return the request that compares a text with others.

    Raises:
        TypeError: a text or other input is of no kind that can be encoded.
    """
    items = [_write_input(entry, index)[0] for index, entry in enumerate([left, *right])]
    before = b'{"left":' + items[0] + b"," + _begin_body(options, "right")[1:]
    return Request(before, 0, items[1:], any(map(_is_patched, [left, *right])))


def _begin_body(options: Mapping[str, Any], list_name: str) -> bytes:
    """Return the JSON of a body with options, up to and with the bracket that opens a list."""
    return write_json({**options, list_name: []})[:-2]


def _is_patched(entry: Input) -> bool:
    """Tell whether an input takes heads' values from another one."""
    return isinstance(entry, Mapping) and bool(entry.get("patch"))


def _write_input(entry: Input, index: int) -> tuple[bytes, int]:
    """Return an input as JSON, and an estimate of its tokens; `index` names it in messages."""
    try:
        item = to_item(entry)
        text = write_json(item)
    except TypeError as error:
        raise TypeError(f"input {index}: {error}") from None
    if isinstance(item, dict) and "text" not in item:
        return text, max(map(_count_tokens, item.values()), default=0)
    return text, SPECIAL_TOKENS_PER_TEXT + len(text) // BYTES_PER_TOKEN


def _count_tokens(value: Any) -> int:
    """Return the tokens of an item's field: the rows of an array, or the entries of a list."""
    if isinstance(value, dict) and value.get("shape"):
        return int(value["shape"][0])
    return len(value) if isinstance(value, list) else 0


def to_item(entry: Input) -> Any:
    """Return an input as the JSON API takes it: a text, or an object."""
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
    """Return a field of an item; float arrays as base64, float16 as such, others as float32."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused
        little = value.astype("<f2" if value.dtype == np.float16 else "<f4", order="C")
    data = base64.b64encode(little.tobytes()).decode()
    return {"shape": value.shape, "dtype": little.dtype.name, "data": data}
