"""Parts of a sequence, such as spans of a text, pooled to a vector each."""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from model.config import EncoderConfig
from model.encoder import Encoded, Encoder
from model.packing import Sequence
from model.pooling import Pooling
from model.probes.probe import FLOAT_BYTES, Probe, Sizes

PART_COST = 3_000_000  # of pooling a part: mostly calls, some 40 us


@dataclass(frozen=True, slots=True, eq=False)
class Parts(Probe):
    """Makes the vectors of parts, (parts, width or dimensions).

    Args:
        tokens: range of each part's tokens, [first, end).
        pooling: how each is pooled.
    """

    name: ClassVar = "parts"
    one_core: ClassVar = False
    finite: ClassVar = True
    tokens: Many[tuple[int, int]]
    pooling: Pooling

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Tensor:
        start = rows.start
        slices = [slice(start + first, start + end) for first, end in self.tokens]
        return encoder.pool(encoded.last, slices, self.pooling)

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        return PART_COST * len(self.tokens)

    def bytes(self, config: EncoderConfig, tokens: int, number: int = FLOAT_BYTES) -> Sizes:
        return {"pooled": number * self.pooling.vector_size(config.width) * len(self.tokens)}
