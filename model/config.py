"""EncoderConfig: the sizes and choices that fix the weights; presets.

One config describes every family: a family is a set of these choices, and code asks for a choice,
never for a family by name.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from model.attention.reach import Reach

if TYPE_CHECKING:
    from model.attention.positions import Rope  # needs torch; this file does not


Positions = Literal["learned", "sinusoidal", "rotary", "relative", "alibi"]  # how they enter
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]  # of a feed-forward block or a head
NormKind = Literal["layer", "rms"]  # LayerNorm; or RMSNorm, which takes no mean away
PoolingMode = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weightedmean"]  # see Pooling
Task = Literal[  # what requests may ask a model to do
    "encode", "classify", "zero_shot", "rerank", "label_tokens", "sparse", "multi_vector", "decide"
]
Side = Literal["query", "document"]  # of a search, or of a late interaction
LINEAR_NAMES = (  # of one layer
    *("project", "query", "key", "value", "output", "gate", "up", "down"),
    *("relative_key", "relative_query"),
)
_POSITIVE_SIZES = (  # fields of EncoderConfig that must be 1 or more
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
    """Settings of disentangled attention, see disentangled.py; the default is none.

    Args:
        reach: rows of the distance table on either side of distance 0.
        furthest: distances from here on share the outer rows; None: each has a row, up to reach.
        by_query: whether scores have the content-to-position term, query times distance as a key.
        by_key: whether they have the position-to-content term, distance as a query times key.
        shared: whether the tokens' projections also project the table; else it has two itself.
        norm: whether LayerNorm is applied to the table.
    """

    reach: int = 0
    furthest: int | None = None
    by_query: bool = False
    by_key: bool = False
    shared: bool = True
    norm: bool = False

    @property
    def terms(self) -> int:
        """Return how many terms distance adds to a score, 0 to 2."""
        return self.by_query + self.by_key

    def count_stored(self, width: int) -> int:
        """Count the numbers of projected tables that a layer stores, one table for each term."""
        return self.terms * 2 * self.reach * width

    def count_products(self, queries: int, tokens: int) -> float:
        """Return how many dot products distance adds to that of a score, on average.

        Args:
            queries: how many are computed at a time.
            tokens: of the sequence.
        """
        rows = min(2 * tokens - 1, 2 * self.reach)
        return rows * (self.by_query / tokens + self.by_key / min(queries, tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """The architecture and sizes of one encoder, without its weights.

    Args:
        family: the checkpoint's architecture, as config.json names it.
        vocabulary: rows of the word-embedding table.
        width: d_model.
        feed_forward: width inside the feed-forward block.
        max_tokens: longest sequence that has positions.
        norm_eps: added to the variance, or the mean square, in every norm.
        key_heads: heads of keys and values, if fewer (grouped-query attention); None: as many.
        head_size: channels of a head; None: the heads divide the width.
        embedding_width: of the embedding tables; projected to width where it differs.
        positions: learned table, sinusoids, rotation of queries and keys, slopes of scores by
            distance as alibi.py says, or none but distances.
        position_offset: row of the learned table that the first token reads.
        pad: token id that gets the row before the first and does not advance the others.
        types: rows of the token-type (segment) table; 0: no table.
        kinds: rows of ERNIE's task-type table, the first of which every token gets; 0: no table.
        shared: whether all layers have the weights of the first, as in ALBERT.
        embedding_norm: whether LayerNorm is applied to the embeddings.
        pre_norm: whether norms are before each block and once at the end, not after each block.
        first_norm: whether a pre-norm encoder normalises before the very first block too.
        final_norm: whether a pre-norm encoder normalises after the last block.
        head_norm: whether each head's queries and keys are normalised, before any rotation.
        block_norm: whether each block's output is normalised before it is added to the residual.
        norm: which kind all norms are.
        norm_from_one: whether norms' weights are stored minus 1, as in Gemma.
        embedding_scale: factor of the word embeddings.
        score_width: scores are divided by its square root; None: by that of head_dim.
        biases: the linears that have one, of LINEAR_NAMES; query, key and value are alike in
            this, as gate and up are.
        norm_bias: whether norms have a bias.
        activation: in the feed-forward block.
        gated: whether the feed-forward block is down(activation(gate x) * up x).
        ropes: the rotary embedding of each layer.
        windows: tokens that a token attends to on either side, by layer; None: all.
        causal: whether a token attends to none after itself.
        buckets: ranges of distance that have a learned bias per head, as in T5; 0: none.
        relative: settings of disentangled attention.

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
    final_norm: bool = True
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
        """Return how many layers, the first ones, have weights of their own."""
        return 1 if self.shared else self.layers

    @property
    def head_dim(self) -> int:
        """Return the number of channels of one head."""
        return self.head_size or self.width // self.heads

    @property
    def mixed_width(self) -> int:
        """Return the width of all heads' outputs end to end, in most families `width`."""
        return self.heads * self.head_dim

    @property
    def shared_heads(self) -> int:
        """Return the number of heads of keys, and of values."""
        return self.key_heads or self.heads

    def reach_of_layer(self, layer: int) -> Reach:
        """Return how far a token attends in a layer."""
        return self.reach_of_window(self.windows[layer] if self.windows else None)

    def reach_of_window(self, window: int | None) -> Reach:
        """Return how far a token attends in a layer with this window, an entry of `windows`."""
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
