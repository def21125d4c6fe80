"""A column of vectors next to a column of texts, in tables of pyarrow's."""

import numpy as np

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(
        "pyarrow is missing (the extra data of headlight-serve-client): pip install pyarrow"
    ) from error

from headlight_client.formats import Array

VECTORS = "pooled"  # name of the column of vectors, as of an answer's


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


TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
