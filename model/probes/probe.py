"""A probe: what the pass must keep for it, what is run on one sequence, and what that takes."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from model.config import EncoderConfig
from model.encoder import Encoded, Encoder
from model.packing import Sequence

FLOAT_BYTES = 4  # of a float32
Made = Tensor | Mapping[Any, "Made"]  # tensors by name, nested where there are many
Sizes = Mapping[Literal["pooled", "attention", "steps"], int]  # bytes by the part of an answer


class Probe(ABC):
    """What is computed of one sequence besides its vectors; its fields are what a request chose.

    Each is a dataclass, frozen, with slots, and equal to itself alone.

    Attributes:
        name: of what it makes, in a work's result; a sequence has one probe of a name.
        one_core: whether it runs on one core, as its products' bits follow from how many there are.
        finite: whether NaN or infinity in what it makes is an error of the pass.
    """

    __slots__ = ()
    name: ClassVar[str]
    one_core: ClassVar[bool] = True
    finite: ClassVar[bool] = False

    @property
    def states(self) -> Collection[int]:
        """Return the hidden states that the pass must keep, 0 = embeddings, i = after i layers."""
        return ()

    @property
    def traces(self) -> Collection[int]:
        """Return the layers whose attention the pass must keep."""
        return ()

    @property
    def price_key(self) -> Hashable:
        """Return what is equal of probes that cost the same for sequences of one length."""
        return id(self)

    @abstractmethod
    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Made:
        """Return what is made of one sequence, numbers as float32 where not asked otherwise.

        Args:
            encoder: with the sequence's own adapter.
            encoded: the batch.
            rows: the sequence's in the batch.
        """

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        """Count the floating-point operations of its products, for a sequence of so many tokens."""
        return 0

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        """Return the operations of a pass that take a core as long as this does."""
        return self.flops(config, tokens)

    def call_seconds(self, config: EncoderConfig) -> float:
        """Return the seconds of its calls, which a small model and a short text take, too."""
        return 0.0

    def bytes(self, config: EncoderConfig, tokens: int, number: int = FLOAT_BYTES) -> Sizes:
        """Return the bytes of what is answered as it was made.

        Args:
            number: bytes of a number outside attention.
        """
        return {}

    def scratch_bytes(self, config: EncoderConfig, tokens: int) -> int:
        """Count the bytes that are held besides while it runs."""
        return 0
