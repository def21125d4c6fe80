"""Build an encoder from a config and tensors by our names; or draw the tensors at random."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention.alibi import Slopes, head_slopes
from model.attention.attention import HeadNorms, MultiHeadAttention
from model.attention.disentangled import DistanceBias, distance_rows, project_table
from model.attention.positions import Rope, Rotation, sinusoids
from model.config import EncoderConfig, Relative
from model.encoder import Embeddings, Encoder, Layer, Norms
from model.kernels import Affine, Kernels, Linear, NormedLinear, normalise

SEED = 0  # of weights drawn at random

FindTensor = Callable[[str], Tensor]  # our name with .weight or .bias -> the tensor


def expected_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor an encoder needs, by our names."""
    width, inner, narrow = config.width, config.feed_forward, config.embedding_width
    shapes: dict[str, tuple[int, ...]] = {"word.weight": (config.vocabulary, narrow)}
    if config.positions == "learned":
        shapes["position.weight"] = (config.max_tokens + config.position_offset, narrow)
    if config.types:
        shapes["types.weight"] = (config.types, narrow)
    if config.kinds:
        shapes["kinds.weight"] = (config.kinds, narrow)
    if config.buckets:
        shapes["distances.weight"] = (config.buckets, config.heads)
    if config.relative.terms:
        shapes["relative.weight"] = (2 * config.relative.reach, width)
    linears: dict[str, tuple[int, int]] = {}
    linears |= {"project": (width, narrow)} if narrow != width else {}
    norms = {"norm": narrow} if config.embedding_norm else {}
    norms |= {"relative_norm": width} if config.relative.norm else {}
    norms |= {"final_norm": width} if config.pre_norm and config.final_norm else {}
    keys = config.shared_heads * config.head_dim
    for i in range(config.own_layers):
        linears |= {f"layers.{i}.query": (config.mixed_width, width)}
        linears |= {f"layers.{i}.{name}": (keys, width) for name in ("key", "value")}
        linears |= {f"layers.{i}.output": (width, config.mixed_width)}
        linears |= {f"layers.{i}.up": (inner, width)}
        linears |= {f"layers.{i}.gate": (inner, width)} if config.gated else {}
        linears |= {f"layers.{i}.down": (width, inner)}
        linears |= {
            f"layers.{i}.{name}": (width, width) for name in _distance_projections(config.relative)
        }
        norms |= {f"layers.{i}.feed_forward_norm": width}
        if i or config.first_norm or not config.pre_norm:
            norms |= {f"layers.{i}.attention_norm": width}
        if config.block_norm:
            norms |= {f"layers.{i}.{name}_norm": width for name in ("output", "down")}
        if config.head_norm:
            norms |= {f"layers.{i}.{name}_norm": config.head_dim for name in ("query", "key")}
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": (s[0],) for name, s in linears.items() if _has_bias(config, name)}
    shapes |= {f"{name}.weight": (size,) for name, size in norms.items()}
    return shapes | {f"{name}.bias": (size,) for name, size in norms.items() if config.norm_bias}


def _distance_projections(relative: Relative) -> list[str]:
    """Return the names of a layer's projections for distances only."""
    needed = {"relative_key": relative.by_query, "relative_query": relative.by_key}
    return [name for name, is_needed in needed.items() if is_needed and not relative.shared]


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of an encoder by our names, on its device and in its dtype."""

    config: EncoderConfig
    weights: FindTensor  # as stored
    device: torch.device
    dtype: torch.dtype

    def tensor(self, name: str) -> Tensor:
        """Return a tensor on the device, in the dtype."""
        # a copy: the file's mapping may then be dropped
        return self.weights(name).to(self.device, self.dtype, copy=True)

    def linear(self, *names: str) -> Affine:
        """Return the weight and bias of several linears, stacked as one."""
        bias = self._stack_rows(names, "bias") if _has_bias(self.config, names[0]) else None
        return self._stack_rows(names, "weight"), bias

    def norm(self, name: str) -> Affine:
        """Return the weight and bias of a norm."""
        bias = self.tensor(f"{name}.bias") if self.config.norm_bias else None
        if self.config.norm_from_one:  # float32: fewer bits would round 1 + a small number
            return self.weights(f"{name}.weight").to(self.device, torch.float32) + 1, bias
        return self.tensor(f"{name}.weight"), bias

    def _stack_rows(self, names: Iterable[str], kind: str) -> Tensor:
        """Return several linears' weights or biases end to end; kind is "weight" or "bias"."""
        rows = torch.cat([self.weights(f"{name}.{kind}") for name in names])
        return rows.to(self.device, self.dtype)


def _has_bias(config: EncoderConfig, name: str) -> bool:
    """Tell whether a linear, by our name for it, has a bias."""
    return name.rpartition(".")[2] in config.biases


def build_encoder(
    config: EncoderConfig,
    weights: FindTensor,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> Encoder:
    """Build an encoder from its weights, by our names.

    Each tensor is read once, a projection that distances share twice.
    """
    # where the kernels round what they multiply, all else is float32
    source = _Weights(config, weights, device, torch.float32 if kernels.half else dtype)
    embeddings = _build_embeddings(source, kernels)
    distances = _distance_builder(source)
    rotations = {
        rope: Rotation(rope, config.head_dim, config.max_tokens, device)
        for rope in set(config.ropes)
    }
    layers = [
        _build_layer(source, i, kernels, rotations, distances) for i in range(config.own_layers)
    ]
    return Encoder(
        config,
        embeddings,
        layers * (config.layers // config.own_layers),
        distances=source.tensor("distances.weight") if config.buckets else None,
    )


def _build_embeddings(source: _Weights, kernels: Kernels) -> Embeddings:
    """Build the embeddings with the tables that the config names."""
    config, word = source.config, source.tensor("word.weight")
    if config.embedding_scale != 1:
        word *= torch.tensor(config.embedding_scale).to(word)
    position = source.tensor("position.weight") if config.positions == "learned" else None
    if config.kinds and position is not None:  # the first row, added to every token
        position += source.tensor("kinds.weight")[0]
    if config.positions == "sinusoidal":
        position = sinusoids(config.max_tokens, config.width).to(word)
    narrow = config.embedding_width != config.width
    return Embeddings(
        word,
        position=position,
        offset=config.position_offset,
        types=source.tensor("types.weight") if config.types else None,
        norm=source.norm("norm") if config.embedding_norm else None,
        eps=config.norm_eps,
        project=kernels.linear(*source.linear("project")) if narrow else None,
    )


def _distance_builder(source: _Weights) -> Callable[[str], DistanceBias | Slopes] | None:
    """Return a function that builds the score bias by distance of a named layer; None: no bias."""
    config = source.config
    if config.positions == "alibi":
        slopes = Slopes(torch.tensor(head_slopes(config.heads), device=source.device))
        return lambda layer: slopes
    return _content_builder(source) if config.relative.terms else None


def _content_builder(source: _Weights) -> Callable[[str], DistanceBias]:
    """Return a function that builds the DistanceBias of a layer, named "layers.{i}"."""
    config, relative = source.config, source.config.relative
    table = source.tensor("relative.weight").float()
    rows = distance_rows(relative, config.max_tokens)
    if relative.norm:
        weight, bias = source.norm("relative_norm")
        norm = weight.float(), None if bias is None else bias.float()
        table = normalise(table, norm, config.norm_eps)
    scale = 1 / math.sqrt(config.head_dim * (1 + relative.terms))
    key, query = ("key", "query") if relative.shared else ("relative_key", "relative_query")

    def build(layer: str) -> DistanceBias:
        """Build the bias of the layer of this name from its own projections of the table."""
        keys, queries = (
            project_table(table, source.linear(f"{layer}.{name}"), config.heads, scale)
            if is_needed
            else None
            for name, is_needed in ((key, relative.by_query), (query, relative.by_key))
        )
        return DistanceBias(keys, queries, rows)

    return build


def _build_layer(
    source: _Weights,
    i: int,
    kernels: Kernels,
    rotations: Mapping[Rope, Rotation],
    distances: Callable[[str], DistanceBias | Slopes] | None,
) -> Layer:
    """Build layer i; `distances` builds its score bias by distance."""
    config, own = source.config, f"layers.{i}"
    attention = MultiHeadAttention(
        source.linear(f"{own}.query", f"{own}.key", f"{own}.value"),
        source.linear(f"{own}.output"),
        config.heads,
        kernels,
        score_width=config.score_width,
        norms=_build_head_norms(source, own) if config.head_norm else None,
        rotation=rotations[config.ropes[i]] if config.ropes else None,
        reach=config.reach_of_layer(i),
        distances=distances(own) if distances else None,
    )
    up = (f"{own}.gate", f"{own}.up") if config.gated else (f"{own}.up",)
    down: Linear = kernels.linear(*source.linear(f"{own}.down"))
    if config.block_norm:
        attention.output = _build_normed(source, attention.output, f"{own}.output_norm")
        down = _build_normed(source, down, f"{own}.down_norm")
    return Layer(
        config,
        attention,
        up=kernels.linear(*source.linear(*up)),
        down=down,
        norms=_build_norms(source, i),
    )


def _build_norms(source: _Weights, i: int) -> Norms:
    """Build the norms of layer i."""
    config, own = source.config, f"layers.{i}"
    attended, fed = f"{own}.attention_norm", source.norm(f"{own}.feed_forward_norm")
    if not config.pre_norm:
        return Norms(None, source.norm(attended), fed)
    before = source.norm(attended) if i or config.first_norm else None
    is_last = config.final_norm and i + 1 == config.layers
    return Norms(before, fed, source.norm("final_norm") if is_last else None)


def _build_head_norms(source: _Weights, layer: str) -> HeadNorms:
    """Build the norms of queries and keys of a layer, named "layers.{i}"."""
    query, key = (source.norm(f"{layer}.{name}_norm") for name in ("query", "key"))
    return HeadNorms(query, key, source.config.norm_eps, source.config.norm)


def _build_normed(source: _Weights, linear: Linear, name: str) -> NormedLinear:
    """Return a linear followed by the norm of this name."""
    return NormedLinear(linear, source.norm(name), source.config.norm_eps, source.config.norm)


def draw_tensors(config: EncoderConfig) -> dict[str, Tensor]:
    """Draw every tensor of an encoder at the start of training, from SEED.

    Linears as by Glorot and Bengio 2010, embeddings of variance 1, norms without effect.
    """
    random = torch.Generator().manual_seed(SEED)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            fill = torch.ones if name.endswith("norm.weight") else torch.zeros
            tensors[name] = fill(shape)
        else:
            linear = name.startswith(("layers.", "project."))
            bound = math.sqrt(6 / sum(shape) if linear else 3)
            tensors[name] = torch.empty(shape).uniform_(-bound, bound, generator=random)
    return tensors
