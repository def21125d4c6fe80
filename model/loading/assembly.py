"""A config and its tensors, by our names -> an encoder; or tensors drawn at random."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.embeddings import Embeddings
from model.encoder import Encoder, Layer, LayerWeights
from model.kernels import Affine, Kernels
from model.positions import Rotation, sinusoids

SEED = 0  # of weights drawn at random

Weights = Callable[[str], Tensor]  # our name with .weight or .bias -> the tensor


def expected(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor an encoder needs, by our names."""
    width, inner, narrow = config.width, config.feed_forward, config.embedding_width
    shapes: dict[str, tuple[int, ...]] = {"word.weight": (config.vocabulary, narrow)}
    if config.positions == "learned":
        shapes["position.weight"] = (config.max_tokens + config.position_offset, narrow)
    if config.types:
        shapes["types.weight"] = (config.types, narrow)
    if config.buckets:
        shapes["distances.weight"] = (config.buckets, config.heads)
    linears: dict[str, tuple[int, int]] = {}
    norms = {"norm": narrow} if config.embedding_norm else {}
    norms |= {"final_norm": width} if config.pre_norm else {}
    for i in range(config.layers):
        linears |= {f"layers.{i}.{name}": (width, width) for name in ("query", "key", "value")}
        linears |= {f"layers.{i}.output": (width, width), f"layers.{i}.up": (inner, width)}
        linears |= {f"layers.{i}.gate": (inner, width)} if config.gated else {}
        linears |= {f"layers.{i}.down": (width, inner)}
        norms |= {f"layers.{i}.feed_forward_norm": width}
        if i or not config.pre_norm:
            norms |= {f"layers.{i}.attention_norm": width}
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items() if config.biases}
    if narrow != width:  # ELECTRA's projection has a bias whatever the layers have
        shapes |= {"project.weight": (width, narrow), "project.bias": (width,)}
    shapes |= {f"{name}.weight": (size,) for name, size in norms.items()}
    return shapes | {f"{name}.bias": (size,) for name, size in norms.items() if config.norm_bias}


def build(
    config: EncoderConfig,
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> Encoder:
    """An encoder from its weights, by our names; every tensor is asked for once."""

    def tensor(name: str) -> Tensor:
        # a copy: the file's mapping may then be dropped
        return weights(name).to(device, dtype, copy=True)

    def linear(*names: str) -> Affine:
        """One linear of the rows of several."""
        rows = torch.cat([weights(f"{name}.weight") for name in names])
        biases = [weights(f"{name}.bias") for name in names] if config.biases else None
        bias = None if biases is None else torch.cat(biases).to(device, dtype)
        return rows.to(device, dtype), bias

    def norm(name: str) -> Affine:
        bias = tensor(f"{name}.bias") if config.norm_bias else None
        return tensor(f"{name}.weight"), bias

    embeddings = _embeddings(config, tensor, norm, linear, kernels)
    rotations = {
        theta: Rotation(theta, config.head, config.max_tokens, device)
        for theta in set(config.thetas)
    }
    layers = []
    for i in range(config.layers):
        rotation = rotations[config.thetas[i]] if config.thetas else None
        window = config.windows[i] if config.windows else None
        layers.append(Layer(config, _layer(config, i, linear, norm), kernels, rotation, window))
    return Encoder(
        config,
        embeddings,
        layers,
        norm=norm("final_norm") if config.pre_norm else None,
        distances=tensor("distances.weight") if config.buckets else None,
    )


def _embeddings(
    config: EncoderConfig,
    tensor: Weights,
    norm: Callable[[str], Affine],
    linear: Callable[..., Affine],
    kernels: Kernels,
) -> Embeddings:
    word = tensor("word.weight")
    position = tensor("position.weight") if config.positions == "learned" else None
    if config.positions == "sinusoidal":
        position = sinusoids(config.max_tokens, config.width).to(word)
    narrow = config.embedding_width != config.width
    return Embeddings(
        word,
        position=position,
        offset=config.position_offset,
        types=tensor("types.weight") if config.types else None,
        norm=norm("norm") if config.embedding_norm else None,
        eps=config.norm_eps,
        project=kernels.linear(*linear("project")) if narrow else None,
    )


def _layer(
    config: EncoderConfig,
    i: int,
    linear: Callable[..., Affine],
    norm: Callable[[str], Affine],
) -> LayerWeights:
    own = f"layers.{i}"
    up = (f"{own}.gate", f"{own}.up") if config.gated else (f"{own}.up",)
    first = config.pre_norm and i == 0
    return LayerWeights(
        qkv=linear(f"{own}.query", f"{own}.key", f"{own}.value"),
        output=linear(f"{own}.output"),
        attention_norm=None if first else norm(f"{own}.attention_norm"),
        up=linear(*up),
        down=linear(f"{own}.down"),
        feed_forward_norm=norm(f"{own}.feed_forward_norm"),
    )


def draw(config: EncoderConfig) -> dict[str, Tensor]:
    """Every tensor of an encoder at the start of training, from SEED.

    Linears as Glorot and Bengio 2010, embeddings of variance 1, norms of no effect.
    """
    random = torch.Generator().manual_seed(SEED)
    tensors = {}
    for name, shape in expected(config).items():
        if len(shape) == 1:
            fill = torch.ones if name.endswith("norm.weight") else torch.zeros
            tensors[name] = fill(shape)
        else:
            linear = name.startswith(("layers.", "project."))
            most = math.sqrt(6 / sum(shape) if linear else 3)
            tensors[name] = torch.empty(shape).uniform_(-most, most, generator=random)
    return tensors
