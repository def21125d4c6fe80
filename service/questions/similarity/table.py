"""The matrix of shares of a similarity, or its strongest pairs, and the bytes that they take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.maps.units import Units
from model.similarity import StrongestShares
from service.questions.similarity import ComparisonRequest
from service.shapes.answer import Array
from service.shapes.inputs import Floats
from service.tables.refusals import Refused

DEFAULT_PAIRS = 16  # strongest pairs to show where a request has no `k`
INDEX_SIZE = 4  # bytes of the index of a row or a column
TORCH_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class ShareTable:
    """The matrix or its strongest pairs, filled row by row, and the sums of its rows and columns.

    Args:
        left, right: the units that are rows and columns.
    """

    def __init__(self, ask: ComparisonRequest, left: Units, right: Units) -> None:
        self._left, self._right = left, right
        self._is_full, self._dtype = ask.form == "full", ask.dtype
        shape = (len(left.axis), len(right.axis)) if self._is_full else (0,)
        self._matrix = torch.empty(shape, dtype=TORCH_DTYPES[ask.dtype])
        self._strongest = StrongestShares(ask.k or DEFAULT_PAIRS)
        self._row_sums, self._column_sums = list[Tensor](), torch.zeros((), dtype=torch.float64)
        self._filled, self._total = 0, 0.0  # rows so far, and the sum of their shares

    def add(self, block: Tensor) -> None:
        """Add the next rows, (rows, right) float64."""
        if self._is_full:
            self._matrix[self._filled : self._filled + len(block)] = block
        else:
            self._strongest.add_rows(block)
        self._row_sums.append(block.sum(1))
        self._column_sums = self._column_sums + block.sum(0)
        self._filled, self._total = self._filled + len(block), self._total + float(block.sum())

    def arrays(self) -> tuple[dict[str, Array], float]:
        """Return arrays by their names in a safetensors answer, and the sum of pairs left out.

        Raises:
            Refused: float16 cannot hold a share.
        """
        sums = {"left_share": torch.cat(self._row_sums), "right_share": self._column_sums}
        if self._is_full:
            return cast_arrays({"matrix": self._matrix, **sums}, self._dtype), 0.0
        rows, columns, shares = self._strongest.strongest_pairs()
        pairs = {
            "pairs.left": torch.tensor(self._left.axis, dtype=torch.int32)[rows],
            "pairs.right": torch.tensor(self._right.axis, dtype=torch.int32)[columns],
            "pairs.shares": shares,
        }
        return cast_arrays({**pairs, **sums}, self._dtype), self._total - float(shares.sum())


def cast_arrays(arrays: dict[str, Tensor], dtype: Floats) -> dict[str, Array]:
    """Cast shares to the request's dtype; refuse those that float16 cannot hold.

    By torch, as numpy takes many times as long for numbers near float16's least.
    """
    cast = {
        name: array.to(TORCH_DTYPES[dtype]) if array.is_floating_point() else array
        for name, array in arrays.items()
    }
    if dtype == "float16" and not all(bool(array.isfinite().all()) for array in cast.values()):
        raise Refused("nonfinite_output", layer=-1, dtype=dtype)
    return {name: array.numpy() for name, array in cast.items()}


def weigh_tables(form: str, k: int | None, number: int, sizes: Sequence[int], biased: bool) -> int:
    """Return the bytes of the arrays of all texts on the right.

    Args:
        form, k: as the request has them.
        biased: whether what units have with biases is shown apart.
        number: bytes of a number.
        sizes: units shown of the left text, then of each on the right.
    """
    if form == "score":
        return 0
    left, *rights = sizes
    tables = sum(_count_bytes(left, right, form, k, number) for right in rights)
    return tables + biased * number * sum(left + right for right in rights)


def _count_bytes(left: int, right: int, form: str, k: int | None, number: int) -> int:
    """Return the bytes of the arrays of one pair of texts, of `left` and `right` units shown."""
    cells = left * right * number
    if form == "occlusion":
        cells = 0
    elif form == "top":
        cells = min(k or DEFAULT_PAIRS, left * right) * (number + 2 * INDEX_SIZE)
    return cells + (left + right) * number
