"""EncoderConfig: the sizes that fix the weights."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """The shape of one post-norm encoder (BERT's), independent of its weights.

    Raises:
        ValueError: heads do not divide width.
    """

    family: str  # the checkpoint's architecture, as config.json names it
    vocabulary: int  # rows of the word-embedding table
    width: int  # d_model
    layers: int
    heads: int
    feed_forward: int  # width inside the feed-forward block
    positions: int  # rows of the position-embedding table
    types: int  # rows of the token-type (segment) table
    norm_eps: float

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide width ({self.width})")

    @property
    def head(self) -> int:
        """Channels of one head; heads * head = width."""
        return self.width // self.heads
