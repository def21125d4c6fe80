"""Task heads that are linear where their gates are kept as the pass had them (carried.py).

    pooling      a weighted sum over tokens: every mode but max, which chooses; no scaling to 1
    LayerNorm    gamma (x - mean) / sigma + beta, sigma kept
    Dense        W x + b times the activation's factor, act(z) / z, kept; then what it adds of x
    Decider      the type embedding is a bias; its own layers are carried as the encoder's are

Parts are (1 + sources, .., width): the first is the pass itself, the second, if any, all biases.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many

import torch
from torch import Tensor
from torch.nn import functional as F

from model.decider import Decider
from model.kernels import PackedLinear, PlainLinear
from model.pooling import Dense, Norm, PoolingLayer, Unit, identity
from model.probes.carried import add_bias, divide_parts, reduce_parts
from model.similarity import NotLinear, token_weights
from model.task_heads import Classifier, Tagger, TaskHead

NEAR_ZERO = -1e-30  # stands in for 0, where act(z) / z is the slope; on the left, relu's is 0

LinearHead = Classifier | Tagger | Decider


def check_linear(head: TaskHead) -> LinearHead:
    """Return a head whose logits are linear in the last states, its gates kept.

    Raises:
        NotLinear: a step is not; the message names it.
    """
    if not isinstance(head, Classifier | Tagger | Decider):
        raise NotLinear(f"a head without logits that are sums over tokens, {type(head).__name__}")
    layers = head.project.layers
    if isinstance(head, Classifier):
        for mode in head.pooling.modes:
            token_weights(mode, 1)  # raises NotLinear
        if head.pooling.normalize:
            raise NotLinear("a scaling to length 1 before its classes")
        layers = (*head.pooling.layers, *layers)
    for layer in layers:
        _check_layer(layer)
    return head


def _check_layer(layer: PoolingLayer) -> None:
    """Refuse a layer that is not linear with its gates kept."""
    if isinstance(layer, Unit):
        raise NotLinear("a scaling to length 1 before its classes")
    if isinstance(layer, Dense):
        zero = layer.activation(torch.zeros(1, 1))
        if layer.activation is not identity and bool(zero != 0):
            raise NotLinear("an activation that is not 0 at 0, as a sigmoid is not")
        residual = layer.residual
        if not (residual in (None, identity) or isinstance(residual, PlainLinear | PackedLinear)):
            raise NotLinear("a residual that is not linear")


def read_logits(head: LinearHead, parts: Tensor, places: Many[int] = ()) -> Tensor:
    """Return what parts add to a head's logits.

    Args:
        parts: that leave the last layer, a Decider's own last one, (parts, tokens, width).
        places: of a Tagger, the tokens whose logits are asked for.

    Returns:
        (parts, places, labels) of a Tagger; (parts, 1, outputs) of others.
    """
    match head:
        case Classifier(pooling=pooling):
            reduced = reduce_parts(parts, pooling.modes)[:, None]
            pooled = _project(pooling.layers, reduced)[..., : pooling.dimensions]
            return _project(head.project.layers, pooled)
        case Tagger():
            return _project(head.project.layers, parts[:, list(places)])
        case Decider():
            return _project(head.project.layers, parts[:, list(head.markers)]).mT


def _project(layers: Many[PoolingLayer], parts: Tensor) -> Tensor:
    """Send parts, (parts, rows, inputs), through layers -> (parts, rows, outputs)."""
    for layer in layers:
        match layer:
            case Norm():
                parts = divide_parts(parts, layer.affine, "layer", layer.eps)
            case Dense():
                parts = _apply_dense(layer, parts)
    return parts


def _apply_dense(dense: Dense, parts: Tensor) -> Tensor:
    """Send parts through a Dense layer with its activation's factor of the first part."""
    made = add_bias(F.linear(parts, dense.linear.weight()), dense.linear.bias)
    if dense.activation is not identity:
        made = made * _factor(dense.activation, made[0].detach())
    match dense.residual:
        case None:
            return made
        case PlainLinear() | PackedLinear() as linear:
            return made + add_bias(F.linear(parts, linear.weight()), linear.bias)
    return made + parts


def _factor(activation: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return activation(z) / z; at 0 the slope there."""
    z = torch.where(z == 0, NEAR_ZERO, z)
    return activation(z) / z
