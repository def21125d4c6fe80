"""EncoderConfig: the sizes and choices that fix the weights; presets.

One config describes every family: a family is a set of these choices, and code asks for a choice,
never for a family by name.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from model.reach import Reach

if TYPE_CHECKING:
    from model.positions import Rope  # needs torch; this file does not


Positions = Literal["learned", "sinusoidal", "rotary", "relative", "alibi"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
NormKind = Literal["layer", "rms"]  # LayerNorm; or RMSNorm, which takes no mean away
PoolingMode = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weightedmean"]  # of pooling
Task = Literal[
    "encode",
    "classify",
    "zero_shot",
    "rerank",
    "label_tokens",
    "sparse",
    "multi_vector",
]
Side = Literal["query", "document"]  # of a search, or of a late interaction
LINEAR_NAMES = (
    *("project", "query", "key", "value", "output", "gate", "up", "down"),
    *("relative_key", "relative_query"),
)
_POSITIVE_SIZES = (
    "vocabulary",
    "width",
    "layers",
    "heads",
    "feed_forward",
    "max_tokens",
    "embedding_width",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Relative:
    """How distance meets content in scores, as disentangled.py says; by default not at all.

    Args:
        reach: rows of the table to either side of distance 0; a farther one shares the last.
        furthest: the distance that shares the last row; None: each within reach has its own.
        by_query: whether queries are multiplied by what a distance is as a key.
        by_key: whether keys are multiplied by what a distance is as a query.
        shared: whether the projections of tokens make both from the table; else two of their own.
        norm: LayerNorm over the table.
    """

    reach: int = 0
    furthest: int | None = None
    by_query: bool = False
    by_key: bool = False
    shared: bool = True
    norm: bool = False

    @property
    def terms(self) -> int:
        """Return how many terms are added to a score."""
        return self.by_query + self.by_key

    def count_stored(self, width: int) -> int:
        """Return the numbers that a layer holds of the table's rows, one vector for each term."""
        return self.terms * 2 * self.reach * width

    def count_products(self, queries: int, tokens: int) -> float:
        """Return the products that a score takes besides its own, on average, each as long.

        Args:
            queries: at a time, of a sequence of so many tokens.
        """
        rows = min(2 * tokens - 1, 2 * self.reach)
        return rows * (self.by_query / tokens + self.by_key / min(queries, tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """The shape of one encoder, independent of its weights.

    Args:
        family: the checkpoint's architecture, as config.json names it.
        vocabulary: rows of the word-embedding table.
        width: d_model.
        feed_forward: width inside the feed-forward block.
        max_tokens: longest sequence that has positions.
        norm_eps: added to the variance, or the mean square, in every norm.
        key_heads: of keys and values, each of which as many heads share; None: as many as heads.
        head_size: channels of a head; None: the heads divide the width.
        embedding_width: of the embedding tables; projected to width where it differs.
        positions: learned table, sinusoids, rotation of queries and keys, slopes of scores by
            distance as alibi.py says, or none but distances.
        position_offset: row of the learned table that the first token reads.
        pad: token id that gets the row before the first and does not advance the others.
        types: rows of the token-type (segment) table; 0 is none.
        kinds: rows of ERNIE's table of pretraining tasks, whose first every token gets; 0 is none.
        shared: all layers have the weights of the first.
        embedding_norm: LayerNorm over the embeddings.
        pre_norm: normalise before each block and once at the end, rather than after each.
        first_norm: before the first block too; else it reads the embeddings as they are.
        head_norm: of each head's queries and keys, before any rotation.
        block_norm: of what each block makes, before it is added.
        norm: which kind all norms are.
        norm_from_one: their weights are stored as what they have more than 1.
        embedding_scale: what the word embeddings are multiplied by when they are looked up.
        score_width: what divides scores is its root; None: that of a head's channels.
        biases: the linears that have one, of LINEAR_NAMES; query, key and value are alike in
            this, as gate and up are.
        norm_bias: of the norms.
        activation: in the feed-forward block.
        gated: feed-forward is down(activation(gate x) * up x).
        ropes: the rotary angles, by layer.
        windows: how far a token looks to either side, by layer; None is everywhere.
        causal: a token looks at none after itself.
        buckets: of relative distance, each with a learned bias per head; 0 is none.
        relative: what distance adds to scores by content.

    Raises:
        ValueError: a size is not a positive whole number, heads do not divide width, key_heads do
            not divide heads, or a choice by layer does not have one entry per layer.
    """

    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    max_tokens: int
    norm_eps: float
    embedding_width: int
    key_heads: int | None = None
    head_size: int | None = None
    positions: Positions = "learned"
    position_offset: int = 0
    pad: int | None = None
    types: int = 0
    kinds: int = 0
    shared: bool = False
    embedding_norm: bool = True
    pre_norm: bool = False
    first_norm: bool = False
    head_norm: bool = False
    block_norm: bool = False
    norm: NormKind = "layer"
    norm_from_one: bool = False
    embedding_scale: float = 1.0
    score_width: float | None = None
    biases: tuple[str, ...] = LINEAR_NAMES
    norm_bias: bool = True
    activation: Activation = "gelu"
    gated: bool = False
    ropes: "tuple[Rope, ...]" = ()
    windows: tuple[int | None, ...] = ()
    causal: bool = False
    buckets: int = 0
    relative: Relative = Relative()

    def __post_init__(self) -> None:
        for name in _POSITIVE_SIZES:
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a positive whole number, not {size!r}")
        for name in ("types", "kinds", "buckets"):
            size = getattr(self, name)
            if type(size) is not int or size < 0:
                raise ValueError(f"{name} must be a whole number, not {size!r}")
        if type(self.norm_eps) not in (int, float) or not 0 <= self.norm_eps < math.inf:
            raise ValueError(f"norm_eps must be a finite number, not {self.norm_eps!r}")
        for name in ("key_heads", "head_size"):
            size = getattr(self, name)
            if size is not None and (type(size) is not int or size < 1):
                raise ValueError(f"{name} must be a positive whole number, not {size!r}")
        if self.head_size is None and self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide width ({self.width})")
        if self.heads % self.shared_heads:
            raise ValueError(f"key_heads ({self.key_heads}) must divide heads ({self.heads})")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions turn channels in pairs: head_dim {self.head_dim}")
        for name in ("ropes", "windows"):
            count = len(getattr(self, name))
            if count not in (0, self.layers):
                raise ValueError(f"{name} ({count}) must be one a layer ({self.layers})")
        if unknown := set(self.biases) - set(LINEAR_NAMES):
            raise ValueError(f"biases of unknown linears: {sorted(unknown)}")
        if (self.positions == "rotary") != bool(self.ropes):
            raise ValueError("rotary positions and ropes go together")

    @property
    def own_layers(self) -> int:
        """Return the layers that have weights of their own, the first ones."""
        return 1 if self.shared else self.layers

    @property
    def head_dim(self) -> int:
        """Return the channels of one head."""
        return self.head_size or self.width // self.heads

    @property
    def mixed_width(self) -> int:
        """Return the numbers of all heads' mixed values of a token, mostly `width`."""
        return self.heads * self.head_dim

    @property
    def shared_heads(self) -> int:
        """Return the heads of keys and of values."""
        return self.key_heads or self.heads

    def reach_of_layer(self, layer: int) -> Reach:
        """Return how far a token looks in a layer."""
        return self.reach_of_window(self.windows[layer] if self.windows else None)

    def reach_of_window(self, window: int | None) -> Reach:
        """Return how far a token looks in a layer with this window."""
        return Reach(window, 0 if self.causal else window)


# Vaswani et al. 2017, section 3 and table 3 (base); the tokenizer is the bundled model's
TRANSFORMER_BASE = EncoderConfig(
    family="transformer-base",
    vocabulary=30522,
    width=512,
    layers=6,
    heads=8,
    feed_forward=2048,
    max_tokens=512,
    norm_eps=1e-5,
    embedding_width=512,
    positions="sinusoidal",
    embedding_norm=False,
    activation="relu",
)
