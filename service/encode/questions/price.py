"""What the answer to a comparison will weigh, known before it is computed, and what would fit."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from model.shares.similarity import BLOCK_CELLS
from service.api.questions.comparison import ComparisonRequest
from service.encode.layout import Layout
from service.encode.plan import Plan
from service.encode.price import DOUBLE, HALF, SINGLE, TEXT_BYTES
from service.refusals import Refused
from service.settings import Settings

MOST_PAIRS = 16  # where a request does not say
INDEX = 4  # bytes of the number of a row or a column

# forms that say less in less
CHEAPER: tuple[Mapping[str, Any], ...] = ({"form": "score"}, {"form": "top", "k": MOST_PAIRS})


class ComparisonPrice:
    """What the answer to a comparison will weigh; see price.Price.

    Args:
        width: of a token's vector.
        number: bytes of a share.
    """

    def __init__(
        self, request: ComparisonRequest, plan: Plan, width: int, number: int, layout: Layout
    ) -> None:
        self._request, self._number, self.layout = request, number, layout
        self._sizes = [len(units.axis) for units in plan.units]
        self._swept = DOUBLE * sum(work.outputs.swept for work in plan.works[1:])
        self._held = 0 if request.form == "score" else self._hold(width, *plan.lengths)
        self.parts = {"attention": 0}
        self.total = self._weigh(request.form, request.k, number)

    @property
    def made(self) -> int:
        """Bytes of the arrays that it holds until the answer is written, and while it is made."""
        return self.total + self._held

    @property
    def written(self) -> int:
        """About how many bytes the arrays are as they are written."""
        return TEXT_BYTES * self.total if self.layout.numbers else self.total * 4 // 3

    def check(self, settings: Settings) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Raises:
            Refused: with the bytes, the limit, and changes to the request each of which would fit.
        """
        most_json, most = settings.max_answer_json_bytes, settings.max_answer_bytes
        limit = most_json if self.layout.numbers else most
        if self.total > limit:
            fits = sorted(self._fits(limit), key=lambda offer: int(offer["bytes"]))
            if self.layout.numbers and self.total <= most:
                fits += map(dict, self.layout.compact)
            raise Refused("answer_too_large", bytes=self.total, limit=limit, fits=fits)

    def _fits(self, limit: int) -> Iterator[dict[str, Any]]:
        """Changes to the request, each of which alone makes it fit."""
        form, k = self._request.form, self._request.k
        offers = [
            {**change, "bytes": self._weigh(change["form"], change.get("k"), self._number)}
            for change in CHEAPER
        ]
        half = self._weigh(form, k, HALF)
        offers += [{"dtype": "float16", "bytes": half}] if self._number != HALF else []
        weigh = partial(self._weigh, form, k, self._number)
        most = bisect_right(range(1, len(self._sizes)), limit, key=weigh)
        offers += [{"right_at_most": most, "bytes": weigh(most)}] if most else []
        return (offer for offer in offers if offer["bytes"] <= limit)

    def _hold(self, width: int, left: int, *rights: int) -> int:
        """Bytes beside the answer: token vectors, and what a step makes of them in float64.

        That is those of the left text; of one on the right twice, as they are weighted; and a
        block of shares twice.
        """
        longest, (units, *others) = max(rights), self._sizes
        tokens = SINGLE * (left + sum(rights)) + DOUBLE * (left + 2 * longest)
        return width * tokens + 2 * DOUBLE * min(units * max(others), BLOCK_CELLS)

    def _weigh(self, form: str, k: int | None, number: int, most: int | None = None) -> int:
        """Bytes of the raw arrays, of the first so many texts on the right."""
        if form == "score":
            return self._swept
        left, *rights = self._sizes
        return self._swept + sum(_bytes(left, right, form, k, number) for right in rights[:most])


def _bytes(left: int, right: int, form: str, k: int | None, number: int) -> int:
    """Bytes of the arrays of two texts of so many units."""
    cells = left * right * number
    if form == "top":
        cells = min(k or MOST_PAIRS, left * right) * (number + 2 * INDEX)
    return cells + (left + right) * number
