"""A column of vectors next to a column of texts: Encode, for `map_batches` of Ray Data.

A batch is a table of pyarrow's, whose other columns stay as they are, or a dict of numpy arrays,
which is Ray Data's default. Ray itself is not imported.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(
        "pyarrow is missing (the extra data of headlight-serve-client): pip install pyarrow"
    ) from error

from headlight_client.errors import ModelChanged, RequestRefused
from headlight_client.formats import Array
from headlight_client.inputs import Options
from headlight_client.waiting import Client

Columns: TypeAlias = "pa.Table | Mapping[str, NDArray[Any]]"  # a batch, by the columns' names

VECTORS = "pooled"  # name of the column of vectors, as of an answer's
PATIENCE_SECONDS = 300.0  # for a request, to outlast a restart of the service
TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
ANY_TEXT = "a"  # encoded for an empty batch, whose column has the type of its vector
LONGEST_VALUE = 80  # characters of a row's value in a message


class Encode:
    """Adds the vectors of a column of texts to each batch.

    Args:
        url, key: of the service, as of `Client`.
        column: name of the texts.
        into: name of the new column.
        space: name of the space of all vectors, `client.encode(["a"], **options).space`; None: that
            of the first answer that this object gets. Several objects agree only if it is given.
        options: as of `Client.encode`, such as truncate="right".
    """

    def __init__(
        self,
        url: str,
        column: str,
        *,
        into: str = VECTORS,
        key: str | None = None,
        space: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._url, self._key, self._options = url, key, options
        self._column, self._into, self._space = column, into, space

    def __call__(self, batch: Columns) -> Columns:
        """Return the batch, of the same kind, with a column of vectors at its end.

        Args:
            batch: a table of pyarrow's, or arrays by their columns, Ray Data's own default.

        Returns:
            The column is (texts, size), in a table of lists of a fixed size.

        Raises:
            RequestRefused: the service refused a text, whose row the message shows; or it makes
                vectors of another space than before (409 space_changed); or it was busy for
                PATIENCE_SECONDS.
            ModelChanged: the space changed within the first batch.
            NoAnswer: a request was not answered within PATIENCE_SECONDS.
            ValueError: the column is missing, holds no text in some row, or `into` is taken.
            TypeError: the batch is of another kind.
        """
        if not isinstance(batch, pa.Table | Mapping):
            raise TypeError(f'a batch is of {type(batch)}: pass batch_format="pyarrow"')
        texts = self._read_texts(batch)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"no text in the row {_word_row(batch, index)}")
        try:
            vectors = np.concatenate([*self._vectors(texts or [ANY_TEXT])])[: len(texts)]
        except RequestRefused as refused:
            raise _name_row(refused, batch) from None
        if isinstance(batch, pa.Table):
            return append_vectors(batch, self._into, vectors)
        return {**batch, self._into: vectors}

    def _read_texts(self, batch: Columns) -> list[Any]:
        """Return the values of the column of texts, once the batch's columns are checked."""
        names = batch.column_names if isinstance(batch, pa.Table) else [*batch]
        if self._into in names:
            raise ValueError(f"there is a column {self._into!r} already")
        if isinstance(batch, pa.Table):
            check_columns(batch.schema, self._column)
            return [*batch[self._column].to_pylist()]
        if self._column not in names:
            raise ValueError(f"0 columns have the name {self._column!r}; there are {names}")
        return [*batch[self._column].tolist()]

    def _vectors(self, texts: list[str]) -> Iterator[Array]:
        """Yield the vectors of texts, (texts, size), an answer at a time."""
        how: dict[str, Any] = {"key": self._key, "expect": self._space}
        with Client(self._url, patience_seconds=PATIENCE_SECONDS, **how) as client:
            for part in client.stream(texts, **self._options):
                self._space = self._space or part.space
                if part.space != self._space:
                    raise ModelChanged(f"the space changed from {self._space} to {part.space}")
                if part.pooled is None:
                    raise ValueError("the options ask for no pooled vectors")
                yield part.pooled


def check_columns(schema: pa.Schema, column: str) -> None:
    """Check that a column of texts is there.

    Raises:
        ValueError: it is missing, or of another type.
    """
    if schema.names.count(column) != 1:
        found = schema.names.count(column)
        raise ValueError(f"{found} columns have the name {column!r}; there are {schema.names}")
    kind = schema.field(column).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(is_text(inner) for is_text in TEXT_TYPES):
        raise ValueError(f"the column {column!r} is of {kind}, not of text")


def append_vectors(table: pa.Table, name: str, vectors: Array) -> pa.Table:
    """Return a table with one more column: a vector, (size,), for each row."""
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return table.append_column(name, column)


def _name_row(refused: RequestRefused, batch: Columns) -> RequestRefused:
    """Return a refusal whose detail shows the row that it is about, if it is about one."""
    for fault in refused.errors:
        match fault.loc:
            case ("inputs", int(index), *_):
                return refused.reword(f"{_word_row(batch, index)}: {refused.detail}")
    return refused


def _word_row(batch: Columns, index: int) -> str:
    """Write a row's values by their columns, long ones shortened."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = LONGEST_VALUE
    if isinstance(batch, pa.Table):
        (row,) = batch.slice(index, 1).to_pylist()
    else:
        row = {name: values[index : index + 1].tolist()[0] for name, values in batch.items()}
    return ", ".join(f"{name}={short.repr(value)}" for name, value in row.items())
