"""Attention for learners: the mechanism alone, and one layer step by step, from the plain weights.

    S_i = scale Q_i K_i^T                        how well each key fits each query: score
    P_i = softmax(S_i + bias), 0 where hidden    the attention map of head i: weigh
    Z_i = P_i V_i                                the values, mixed: mix
    MultiHead(Q, K, V) = Concat(Z_0, .., Z_(h-1)) W^O = sum_i Z_i W_i^O

What the encoder runs is attention.py; no fast kernel is used here except those that made
x. Scores, softmax and mixing are float32, or float64 where the input is.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.

Axes, beyond those of attention.py: `...` are any leading axes, usually the batch; d_k and d_v
are the channels of one head in keys and in values, and may differ.

The steps of a layer, by name:

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

What some families do differently:

    pre-norm         `entered` = LayerNorm(x), in layer 0 x itself, is what the projections read;
                     output = x + projected + feed_forward, of the last layer LayerNorm of that
    rotary           q and k are shown turned by their position, as they are multiplied
    biased           to the scores the bias of each distance is added
    sloped           from the scores each head's slope times the distance is taken
    disentangled     and so are products of content and distance; then sqrt(terms head_dim) divides
    windowed         scores beyond the window are -inf; a decoder's, of all keys after the query
    normalised       each head's q and k are shown by their RMSNorm, before any rotation
    normed blocks    projected and feed_forward are what is added, after a norm of their own
    shared keys      k and v are shown once for each head that reads them
    gated            feed_forward = (activation(normed W_g + b_g) * (normed W_1 + b_1)) W_2 + b_2
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from model import kernels
from model.attention.attention import MultiHeadAttention
from model.attention.positions import hiding_bias
from model.config import NormKind
from model.encoder import Encoder, Layer, distance_bias
from model.kernels import Affine, Linear, NormedLinear
from model.steady import ACTIVATIONS


def score_keys(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Score every query, (..., query, d_k), against every key, (..., key, d_k).

    Args:
        scale: what the products are multiplied by; None is 1 / sqrt(d_k).

    Returns:
        The scores, (..., query, key), at least float32.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    return query.to(wide) @ key.to(wide).transpose(-2, -1) * scale  # (..., query, key)


def attention_probabilities(
    scores: Tensor, *, keep: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Turn scores, (..., heads, query, key), into probabilities of the same shape.

    Args:
        keep: True where a query may attend to a key, bool, broadcast to the scores: the real
            tokens of padded keys, (batch, key), are given as keep[:, None, None, :].
        bias: added to the scores, float, broadcast to them; -inf hides a key.

    Returns:
        Rows that sum to 1 over key, or are 0 throughout where every key is hidden.

    Raises:
        ValueError: `keep` is not bool: a mask of numbers does not say which of them hides.
    """
    visible = torch.ones((), dtype=torch.bool, device=scores.device)
    if keep is not None:
        if keep.dtype != torch.bool:
            raise ValueError(f"keep is {keep.dtype}, it must be {torch.bool}")
        visible = visible & keep
    if bias is not None:
        bias = bias.to(scores.dtype)
        scores, visible = scores + bias, visible & (bias != -math.inf)
    # chosen, not multiplied: NaN times 0 is NaN; and a softmax over nothing is NaN too
    probabilities = torch.where(visible, scores, -math.inf).softmax(dim=-1)
    return torch.where(visible, probabilities, 0.0)


def mix_values(probabilities: Tensor, value: Tensor) -> Tensor:
    """Add up values, (..., key, d_v), in the shares of probabilities, (..., query, key).

    A share of 0.6 takes 60% of a value, a share of exactly 0 takes nothing, even of
    NaN. A channel that does take from NaN or infinity is NaN.

    Returns:
        (..., query, d_v), in the dtype of the values.
    """
    sound = value.isfinite()
    if sound.all():
        return (probabilities @ value.to(probabilities.dtype)).to(value.dtype)
    mixed = mix_values(probabilities, torch.where(sound, value, 0.0))
    share = (probabilities != 0).to(probabilities.dtype) @ (~sound).to(probabilities.dtype)
    return torch.where(share > 0, math.nan, mixed)


def explain_layer(encoder: Encoder, index: int, x: Tensor) -> dict[str, Tensor]:
    """Compute every step of one sequence through one layer, in order.

    Args:
        index: of the layer, counted from 0.
        x: the hidden state that enters it, (tokens, width).

    Returns:
        The steps by name, each as the table above says, float32.
    """
    layer, x = encoder.layers[index], x.float()
    config, steps = layer.config, {"x": x}

    def normalise(x: Tensor, norm: Affine | None) -> Tensor:
        """Apply the family's kind of norm; return x as it is without a norm."""
        return x if norm is None else _normalise(x, norm, config.norm_eps, config.norm)

    if config.pre_norm:
        steps["entered"] = normalise(x, layer.norms.before)
    steps |= _attention_steps(encoder, layer.attention, steps.get("entered", x))
    added = x + steps["projected"]
    steps["normed"] = normalise(added, layer.norms.between)
    steps["feed_forward"] = _feed_forward(layer, steps["normed"])
    passed = added if config.pre_norm else steps["normed"]
    steps["output"] = normalise(passed + steps["feed_forward"], layer.norms.after)
    return steps


def step_weights(encoder: Encoder, index: int) -> dict[str, Tensor]:
    """Return the weights of the attention of a layer, named by the step that they compute.

    Args:
        index: of the layer, counted from 0.

    Returns:
        float32, so that, in numpy's words,

            q[i] = x @ q.weight[i] + q.bias[i]            (heads, width, head_dim),
                                                          (heads, head_dim); k and v alike;
                                                          before any rotation
            q_norm, k_norm                                the weights of their norms, (head_dim,)
            projected = concat @ projected.weight + projected.bias
                                                          (heads * head_dim, width) and (width,);
                                                          projected_norm: of what is added
            normed, output, entered                       each norm's weight and bias, (width,)

        without what the family lacks. The feed-forward block's are left out: they are twice as
        large as all others together.
    """
    layer = encoder.layers[index]
    named = _projection_weights(layer.attention)
    for name, norm in zip(("entered", "normed", "output"), layer.norms, strict=True):
        if norm is not None:
            named |= _name_weights(name, norm[0], norm[1])
    return {name: tensor.float() for name, tensor in named.items()}


def _projection_weights(attention: MultiHeadAttention) -> dict[str, Tensor]:
    """Return the weights of the four linears by name, those of q, k and v by head."""
    project, output = attention.project, attention.output
    weights = attention.split_projections(project.weight())  # (heads, head_dim, width) each
    biases = (None,) * 3 if project.bias is None else attention.split_projections(project.bias)
    entries: dict[str, Tensor] = {}
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        entries |= _name_weights(name, weight.transpose(1, 2), bias)
    if attention.norms is not None:
        for name, norm in (("q_norm", attention.norms.query), ("k_norm", attention.norms.key)):
            entries |= _name_weights(name, *norm)
    if isinstance(output, NormedLinear):
        entries |= _name_weights("projected_norm", *output.norm)
    return entries | _name_weights("projected", output.weight().T, output.bias)


def _name_weights(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """Return a weight and its bias, if any, as entries `name`.weight and `name`.bias."""
    entries = {f"{name}.weight": weight}
    return entries if bias is None else entries | {f"{name}.bias": bias}


def _attention_steps(
    encoder: Encoder, attention: MultiHeadAttention, x: Tensor
) -> dict[str, Tensor]:
    """Compute the steps from x, (tokens, width), to the output of W^O, by name."""
    positions = torch.arange(len(x), device=x.device)
    q, k, v = attention.split_and_rotate(_linear(attention.project, x), positions)
    k, v = attention.repeat_shared(k), attention.repeat_shared(v)
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))  # (heads, tokens, head_dim)
    scores, every = score_keys(q, k, scale=attention.scale), slice(0, len(x))  # (heads, query, key)
    table = encoder.distances
    bias = None if table is None else distance_bias(table.float(), len(x))
    added = attention.added_scores(q, k, bias, every, every)
    if added is not None:
        scores = scores + added
    if not attention.reach.covers(len(x)):
        scores = scores + hiding_bias(every, every, attention.reach, scores)
    probabilities = attention_probabilities(scores)
    z = mix_values(probabilities, v)
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
    """Compute the feed-forward block of x, (tokens, width), from the plain weights."""
    activation, up = ACTIVATIONS[layer.config.activation], _linear(layer.up, x)
    if not layer.config.gated:
        return _linear(layer.down, activation(up))
    gate, up = up.chunk(2, dim=-1)
    return _linear(layer.down, activation(gate) * up)


def _linear(linear: Linear, x: Tensor) -> Tensor:
    """Compute x W^T + b from the plain weights, normalised where the linear has a norm."""
    if isinstance(linear, NormedLinear):
        return _normalise(_linear(linear.linear, x), linear.norm, linear.eps, linear.kind)
    bias = None if linear.bias is None else linear.bias.float()
    return F.linear(x, linear.weight().float(), bias)


def _normalise(x: Tensor, norm: Affine, eps: float, kind: NormKind) -> Tensor:
    """Apply a norm over the last axis in float32."""
    weight, bias = norm
    return kernels.normalise(x, (weight.float(), None if bias is None else bias.float()), eps, kind)
