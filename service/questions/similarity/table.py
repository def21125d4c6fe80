"""The matrix of what makes texts alike, or its strongest pairs, and what they weigh."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.maps.units import Units
from model.similarity import StrongestShares
from service.encode.answer import Array
from service.questions.similarity import ComparisonRequest
from service.refusals import Refused

MOST_PAIRS = 16  # where a request does not say
INDEX_SIZE = 4  # bytes of the number of a row or a column
TORCH_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class ShareTable:
    """The matrix or its strongest pairs, and the sums of its rows and columns.

    Args:
        left: rows of the matrix, and right: its columns.
    """

    def __init__(self, how: ComparisonRequest, left: Units, right: Units) -> None:
        self._left, self._right = left, right
        self._full, self._dtype, self._kind = how.form == "full", how.dtype, TORCH_DTYPES[how.dtype]
        full = (len(left.axis), len(right.axis)) if self._full else (0,)
        self._matrix = torch.empty(full, dtype=self._kind)
        self._strongest = StrongestShares(how.k or MOST_PAIRS)
        self._rows, self._columns = list[Tensor](), torch.zeros((), dtype=torch.float64)
        self._filled, self._total = 0, 0.0

    def add(self, block: Tensor) -> None:
        """Take further rows, (rows, right) float64."""
        if self._full:
            self._matrix[self._filled : self._filled + len(block)] = block
        else:
            self._strongest.add_rows(block)
        self._rows.append(block.sum(1))
        self._columns = self._columns + block.sum(0)
        self._filled, self._total = self._filled + len(block), self._total + float(block.sum())

    def arrays(self) -> tuple[dict[str, Array], float]:
        """Return arrays by their names in a safetensors answer, and the share of pairs left out.

        Raises:
            Refused: float16 cannot hold a share.
        """
        sums = {"left_share": torch.cat(self._rows), "right_share": self._columns}
        if self._full:
            return self._cast({"matrix": self._matrix, **sums}), 0.0
        rows, columns, shares = self._strongest.strongest_pairs()
        pairs = {
            "pairs.left": torch.tensor(self._left.axis, dtype=torch.int32)[rows],
            "pairs.right": torch.tensor(self._right.axis, dtype=torch.int32)[columns],
            "pairs.shares": shares,
        }
        return self._cast({**pairs, **sums}), self._total - float(shares.sum())

    def _cast(self, arrays: dict[str, Tensor]) -> dict[str, Array]:
        """Return the arrays in the format of the answer; float32 holds every share.

        Here and not in numpy, which takes many times as long where numbers are near float16's
        least.
        """
        cast = {
            name: one.to(self._kind) if one.is_floating_point() else one
            for name, one in arrays.items()
        }
        half = self._kind is torch.float16
        if half and not all(bool(one.isfinite().all()) for one in cast.values()):
            raise Refused("nonfinite_output", layer=-1, dtype=self._dtype)
        return {name: one.numpy() for name, one in cast.items()}


def weigh_tables(form: str, k: int | None, number: int, sizes: Sequence[int]) -> int:
    """Return the bytes of the raw arrays."""
    if form == "score":
        return 0
    left, *rights = sizes
    return sum(_count_bytes(left, right, form, k, number) for right in rights)


def _count_bytes(left: int, right: int, form: str, k: int | None, number: int) -> int:
    """Count the bytes of the arrays of two texts of this many units."""
    cells = left * right * number
    if form == "occlusion":
        cells = 0
    elif form == "top":
        cells = min(k or MOST_PAIRS, left * right) * (number + 2 * INDEX_SIZE)
    return cells + (left + right) * number
