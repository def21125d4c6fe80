"""One layer, step by step: every intermediate by name, from the plain weights, in float32.

    x                what enters the layer, (tokens, width); layer 0: X' = PE(X) + X
    q, k, v          Q_i = x W_i^Q + b, K_i, V_i, (heads, tokens, head_dim)
    scores           Q_i K_i^T / sqrt(head_dim), (heads, query, key)
    probabilities    softmax(scores), (heads, query, key)
    z                Z_i = probabilities V_i, (heads, tokens, head_dim)
    concat           Concat(Z_0, .., Z_(h-1)), (tokens, width)
    projected        concat W^O + b
    normed           LayerNorm(x + projected)
    feed_forward     activation(normed W_1 + b_1) W_2 + b_2
    output           LayerNorm(normed + feed_forward): hidden state i + 1

What a family does otherwise:

    pre-norm         `entered` = LayerNorm(x), in layer 0 x itself, is what the projections read;
                     output = x + projected + feed_forward, of the last layer LayerNorm of that
    rotary           q and k are shown turned by their position, as they are multiplied
    biased           to the scores the bias of each distance is added
    windowed         scores beyond the window are -inf
    gated            feed_forward = (activation(normed W_g + b_g) * (normed W_1 + b_1)) W_2 + b_2

No fast kernel has a part in it but those that made x.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.encoder import Encoder, Layer
from model.kernels import ACTIVATIONS, Affine, Linear
from model.lessons.mechanism import mix, score, weigh
from model.positions import buckets, hidden


def explain(encoder: Encoder, index: int, x: Tensor) -> dict[str, Tensor]:
    """Every step of one sequence through one layer, in order.

    Args:
        index: of the layer, counted from 0.
        x: the hidden state that enters it, (tokens, width).

    Returns:
        The steps by name, each as the table above says, float32.
    """
    layer, x = encoder.layers[index], x.float()
    steps = {"x": x}
    if layer.config.pre_norm:
        steps["entered"] = _norm(encoder, x, layer.attention_norm)
    steps |= _attend(encoder, layer.attention, steps.get("entered", x))
    added = x + steps["projected"]
    inner = layer.feed_forward_norm if layer.config.pre_norm else layer.attention_norm
    steps["normed"] = _norm(encoder, added, inner)
    steps["feed_forward"] = _feed_forward(layer, steps["normed"])
    if layer.config.pre_norm:
        last = encoder.norm if index + 1 == len(encoder.layers) else None
        steps["output"] = _norm(encoder, added + steps["feed_forward"], last)
    else:
        out = steps["normed"] + steps["feed_forward"]
        steps["output"] = _norm(encoder, out, layer.feed_forward_norm)
    return steps


def weights(encoder: Encoder, index: int) -> dict[str, Tensor]:
    """What makes the steps of attention from those before them, named by what they make.

    Args:
        index: of the layer, counted from 0.

    Returns:
        float32, so that, in numpy's words,

            q[i] = x @ q.weight[i] + q.bias[i]            (heads, width, head_dim),
                                                          (heads, head_dim); k and v alike;
                                                          before any rotation
            projected = concat @ projected.weight + projected.bias
                                                          (width, width) and (width,)
            normed, output, entered                       each norm's weight and bias, (width,)

        without what the family has not. The feed-forward block's are left out: they are twice as
        large as all others together.
    """
    layer = encoder.layers[index]
    pre_norm, last = layer.config.pre_norm, index + 1 == len(encoder.layers)
    inner, outer = layer.attention_norm, layer.feed_forward_norm
    norms: dict[str, Affine | None] = {"normed": inner, "output": outer}
    if pre_norm:
        norms = {"entered": inner, "normed": outer, "output": encoder.norm if last else None}
    named = _projections(layer.attention)
    for name, norm in norms.items():
        if norm is not None:
            named |= _named(name, norm[0], norm[1])
    return {name: tensor.float() for name, tensor in named.items()}


def _projections(attention: MultiHeadAttention) -> dict[str, Tensor]:
    """The weights of the four linears, those of q, k and v by head."""
    heads, project, output = attention.heads, attention.project, attention.output
    rows = torch.unflatten(project.weight(), 0, (3, heads, -1))  # (3, heads, head_dim, width)
    biases = (None,) * 3 if project.bias is None else project.bias.view(3, heads, -1)
    named: dict[str, Tensor] = {}
    for name, weight, bias in zip("qkv", rows.transpose(2, 3), biases, strict=True):
        named |= _named(name, weight, bias)
    return named | _named("projected", output.weight().T, output.bias)


def _named(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    named = {f"{name}.weight": weight}
    return named if bias is None else named | {f"{name}.bias": bias}


def _attend(encoder: Encoder, attention: MultiHeadAttention, x: Tensor) -> dict[str, Tensor]:
    """From queries, keys and values to what W^O makes of their mix."""
    rows = _linear(attention.project, x).view(len(x), 3, attention.heads, attention.head_dim)
    q, k, v = rows.unbind(1)  # (tokens, heads, head_dim)
    if attention.rotation is not None:
        positions = torch.arange(len(x), device=x.device)
        q, k = attention.rotation(q, positions), attention.rotation(k, positions)
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))  # (heads, tokens, head_dim)
    scores = score(q, k)  # (heads, query, key)
    if encoder.distances is not None:
        table = encoder.distances.float()  # (buckets, heads)
        scores = scores + table[buckets(len(x), len(table), x.device)].permute(2, 0, 1)
    if attention.window is not None:
        every = slice(0, len(x))
        scores = scores + hidden(every, every, attention.window, scores)
    probabilities = weigh(scores)
    z = mix(probabilities, v)
    concat = z.transpose(0, 1).flatten(1)  # (tokens, width)
    return {
        "q": q,
        "k": k,
        "v": v,
        "scores": scores,
        "probabilities": probabilities,
        "z": z,
        "concat": concat,
        "projected": _linear(attention.output, concat),
    }


def _feed_forward(layer: Layer, x: Tensor) -> Tensor:
    activation, up = ACTIVATIONS[layer.config.activation], _linear(layer.up, x)
    if not layer.config.gated:
        return _linear(layer.down, activation(up))
    gate, up = up.chunk(2, dim=-1)
    return _linear(layer.down, activation(gate) * up)


def _linear(linear: Linear, x: Tensor) -> Tensor:
    """x W^T + b, of the weights as plain rows."""
    bias = None if linear.bias is None else linear.bias.float()
    return F.linear(x, linear.weight().float(), bias)


def _norm(encoder: Encoder, x: Tensor, norm: Affine | None) -> Tensor:
    """LayerNorm over the last axis, or nothing where the family has none."""
    if norm is None:
        return x
    weight, bias = (None if part is None else part.float() for part in norm)
    return F.layer_norm(x, x.shape[-1:], weight, bias, encoder.config.norm_eps)
