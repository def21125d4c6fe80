"""The answer to a request before it is written, and what stands for its parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:  # the chart is rendered where there is no torch
    from service.shapes.work import Result

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"  # media types


OCTETS = "application/octet-stream"  # media type of JSON followed by arrays' bytes


INFERENCE_HEADER = "inference-header-content-length"  # has the bytes of JSON before the arrays'


PIECE_ROWS = 2048  # rows of Records in a piece; they take a millisecond


PIECE_BYTES = 64 * 1024  # of array in a piece; as JSON some 200 KiB, in half a millisecond


TOKEN_JSON_BYTES = 64  # estimate of the JSON of a token, without its arrays


Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Names a model and its arithmetic: where all are equal, equal inputs give equal bits."""

    model: str  # name of the model, and of the adapter if there is one
    weights: str  # digest of the weights
    numerics: str  # name of the arithmetic; see service/proof/numerics.py

    def adapted(self, name: str, digest: str, numerics: str) -> "Identity":
        """Return the identity of the model with an adapter; `digest` is of both's weights."""
        return replace(self, model=f"{self.model}:{name}", weights=digest, numerics=numerics)

    def preamble(self, dtype: str) -> dict[str, str]:
        """Return the fields about the model with which every answer begins."""
        fields = {"model": self.model, "weights": self.weights, "dtype": dtype}
        return {**fields, "numerics": self.numerics}


class TaskAnswer(Protocol):
    """The output of a task head for one sequence, as an answer shows it."""

    def to_json(self) -> dict[str, Any]:
        """Return all its fields as nested JSON with arrays as leaves."""

    def facts(self) -> dict[str, Any]:
        """Return its fields without arrays, as JSON: all, of one that has no arrays."""
        return self.to_json()

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield its arrays with their names in a safetensors answer, if it has some."""
        return iter(())


@dataclass(frozen=True, slots=True)
class AnswerItem:
    """The answer for one input, before it is written."""

    tokens_run: int  # tokens that the model ran
    facts: Mapping[str, Any]  # tokens, length and other fields without arrays, as JSON shows them
    pooled: Array | None = None  # the pooled vector, (width,)
    tokens: Array | None = None  # token vectors, (tokens, width)
    layers: Mapping[int, Array] = field(default_factory=dict)  # (tokens, width) by hidden state
    attention: Mapping[str, Any] | None = None  # its fields without arrays, if asked for
    maps: Mapping[str, Any] = field(default_factory=dict)  # arrays of attention as JSON nests them
    arrays: Mapping[str, Array] = field(default_factory=dict)  # the same as safetensors names them
    tasks: Sequence[TaskAnswer] = ()  # outputs of the checkpoint's task heads
    parts: Array | None = None  # vectors of the spans that `facts` names, (spans, width)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, to be written as its API does."""

    preamble: Mapping[str, Any]  # fields about the model
    items: Iterable[
        AnswerItem
    ]  # one for each input, made lazily and once while the answer is written
    usage: Mapping[str, Any]  # fields about its cost: tokens, bytes, times, truncated inputs if any
    results: "Sequence[Result]" = ()  # outputs of the model that the items are made of

    @property
    def is_small(self) -> bool:
        """Tell whether the whole answer has about PIECE_BYTES at most, to be written at once."""
        usage = self.usage
        return bool(usage["answer_bytes"] + TOKEN_JSON_BYTES * usage["tokens"] <= PIECE_BYTES)


class Records(NamedTuple):  # not a dataclass: orjson would serialize that by itself
    """A table that JSON shows as a list of rows."""

    columns: Mapping[str, Array]  # arrays of equal length, by name
    named: bool = True  # whether a row is an object with the columns' names; else it is a list

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the rows, PIECE_ROWS at a time."""
        for first in range(0, len(next(iter(self.columns.values()))), PIECE_ROWS):
            columns = (array[first : first + PIECE_ROWS] for array in self.columns.values())
            rows = zip(*(column.tolist() for column in columns), strict=True)
            named = self.named
            yield [dict(zip(self.columns, row, strict=True)) if named else row for row in rows]


class Each(NamedTuple):
    """A JSON list whose entries are made lazily and once, while the answer is written."""

    entries: Iterable[Any]
