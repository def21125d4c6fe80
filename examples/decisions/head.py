"""The head of a Laya checkpoint, with each large matrix as a product of two thin ones.

Its small file, head.safetensors, has the thin ones; `expand` multiplies them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).with_name("head.safetensors")
WIDTH, HEADS, KINDS = 384, 6, 3
ACT_INPUTS, ACT_WIDTH, ACTS = WIDTH + 4, 256, 2  # laya's second head, of which nothing is asked


class Product(nn.Module):
    """A linear map whose matrix is left @ right, (outputs, rank) @ (rank, inputs)."""

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(outputs, rank) * (rank * inputs) ** -0.25)
        self.right = nn.Parameter(torch.randn(rank, inputs) * (rank * inputs) ** -0.25)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (.., inputs) -> (.., outputs)."""
        return F.linear(F.linear(inputs, self.right), self.left, self.bias)


class Layer(nn.Module):
    """A pre-norm layer, as torch's TransformerEncoderLayer with norm_first.

    Args:
        wide: whether its feed-forward network takes part; else that is zero.
    """

    def __init__(self, rank: int, dropout: float, wide: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (Product(WIDTH, WIDTH, rank) for _ in range(4))
        self.wide = wide
        if wide:
            self.norm2 = nn.LayerNorm(WIDTH)
            self.up, self.down = Product(4 * WIDTH, WIDTH, rank), Product(WIDTH, 4 * WIDTH, rank)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, states: Tensor, keep: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the rows asked for, (batch, rows, width), which look at (batch, tokens, width).

        Args:
            keep: which tokens are no padding, (batch, tokens).
            rows: None: every token's.

        Returns:
            The rows, and their attention, (batch, heads, rows, tokens).
        """
        rows, normed = states if rows is None else rows, self.norm1(states)
        weights, looked = self.attend(normed, keep, self.norm1(rows))
        rows = rows + self.dropout(self.out(looked))
        if not self.wide:
            return rows, weights
        return rows + self.dropout(self.down(self.up(self.norm2(rows)).relu())), weights

    def attend(self, states: Tensor, keep: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention, (batch, heads, rows, tokens), and what it brings, as the rows."""
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query(rows), self.key(states), self.value(states))
        )
        scores = query @ key.mT * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~keep[:, None, None], -torch.inf).softmax(-1)
        return weights, (weights @ value).transpose(1, 2).flatten(2)


class Head(nn.Module):
    """Scores options at their mask tokens, from the encoder's last states."""

    def __init__(self, rank: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.types = nn.Parameter(torch.randn(KINDS, WIDTH) * 0.02)
        # without a feed-forward network in the first layer, training takes half as long
        self.layers = nn.ModuleList(Layer(rank, dropout, wide) for wide in (False, True))
        self.norm = nn.LayerNorm(WIDTH)
        self.dense = Product(WIDTH, WIDTH, rank)
        self.logit = nn.Linear(WIDTH, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, states: Tensor, keep: Tensor, kinds: Tensor, markers: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Score (batch, tokens, width).

        Args:
            keep: which tokens are no padding, (batch, tokens).
            kinds: of each question, (batch,).
            markers: places of the mask tokens, -1 for padding, (batch, options).

        Returns:
            Logits, (batch, options), of padding -1e4, and the mask tokens' attention in each
            layer, (batch, heads, options, tokens).
        """
        states = self.dropout(states + self.types[kinds][:, None])
        places = markers.clamp(min=0)[..., None]
        looks = []
        for layer in self.layers[:-1]:
            states, weights = layer(states, keep)
            chosen = places[:, None].expand(-1, HEADS, -1, weights.shape[-1])
            looks.append(weights.gather(2, chosen))
        rows = states.gather(1, places.expand(-1, -1, WIDTH))
        rows, weights = self.layers[-1](states, keep, rows)  # no other row is read
        logits = self.logit(self.dropout(F.gelu(self.dense(self.norm(rows)))))[..., 0]
        return logits.masked_fill(markers < 0, -1e4), [*looks, weights]


def expand(thin: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a head's tensors by laya's names, in float32, from those of `Head`."""
    head = Head(rank=len(thin["dense.right"]))
    head.load_state_dict({name: tensor.float() for name, tensor in thin.items()})
    full = {"type_emb.weight": head.types, "temperature": torch.ones(KINDS)}
    for number, layer in enumerate(head.layers):
        full |= {f"head.layers.{number}.{name}": one for name, one in expand_layer(layer).items()}
    full |= {"scorer.0.weight": head.norm.weight, "scorer.0.bias": head.norm.bias}
    full |= {"scorer.1.weight": matrix(head.dense), "scorer.1.bias": head.dense.bias}
    full |= {"scorer.3.weight": head.logit.weight, "scorer.3.bias": head.logit.bias}
    full |= {"act_head.0.weight": torch.zeros(ACT_WIDTH, ACT_INPUTS)}
    full |= {"act_head.0.bias": torch.zeros(ACT_WIDTH)}
    full |= {
        "act_head.2.weight": torch.zeros(ACTS, ACT_WIDTH),
        "act_head.2.bias": torch.zeros(ACTS),
    }
    return {name: tensor.detach().contiguous() for name, tensor in full.items()}


def expand_layer(layer: Layer) -> dict[str, Tensor]:
    """Return a layer's tensors by torch's names."""
    parts = [layer.query, layer.key, layer.value]
    full = {
        "self_attn.in_proj_weight": torch.cat([matrix(part) for part in parts]),
        "self_attn.in_proj_bias": torch.cat([part.bias for part in parts]),
        "self_attn.out_proj.weight": matrix(layer.out),
        "self_attn.out_proj.bias": layer.out.bias,
        "norm1.weight": layer.norm1.weight,
        "norm1.bias": layer.norm1.bias,
        "norm2.weight": torch.ones(WIDTH),
        "norm2.bias": torch.zeros(WIDTH),
        "linear1.weight": torch.zeros(4 * WIDTH, WIDTH),
        "linear1.bias": torch.zeros(4 * WIDTH),
        "linear2.weight": torch.zeros(WIDTH, 4 * WIDTH),
        "linear2.bias": torch.zeros(WIDTH),
    }
    if layer.wide:
        full |= {"norm2.weight": layer.norm2.weight, "norm2.bias": layer.norm2.bias}
        full |= {"linear1.weight": matrix(layer.up), "linear1.bias": layer.up.bias}
        full |= {"linear2.weight": matrix(layer.down), "linear2.bias": layer.down.bias}
    return full


def matrix(product: Product) -> Tensor:
    """Return the matrix of a product, (outputs, inputs)."""
    return product.left @ product.right


def read_head() -> dict[str, Tensor]:
    """Read the committed head, thin."""
    return load_file(WEIGHTS)
