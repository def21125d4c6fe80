"""Lays the model out for the peers: its own files, and onnx/model.onnx made of them.

    python benchmarks/peers/export.py FOLDER TARGET

The graph gives the last layer's vectors and, of the same run, the mean over each text's tokens,
normalised; batch and length are free. Its sums are transformers' eager ones, which ONNX Runtime's
optimizer knows best.
"""

import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "sentence_embedding")


class Embedder(nn.Module):
    """The encoder with its pooling."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: Tensor, mask: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors of (batch, tokens, width), and (batch, width) of unit length."""
        hidden = self.encoder(input_ids, mask, types).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return hidden, nn.functional.normalize(mean, dim=1)


def main() -> None:
    """Copy, then export; the graph's name comes last, since who finds it relies on the rest."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    graph = target / "onnx" / "model.onnx"
    shutil.copytree(folder, target, dirs_exist_ok=True)
    graph.parent.mkdir(exist_ok=True)
    model = Embedder(folder).eval()  # without it the graph keeps its dropout
    example = torch.ones(2, 7, dtype=torch.int64)
    free = {0: "batch", 1: "tokens"}
    axes = {**dict.fromkeys((*INPUTS, OUTPUTS[0]), free), OUTPUTS[1]: {0: "batch"}}
    with torch.inference_mode():
        torch.onnx.export(
            model,
            (example, example, torch.zeros_like(example)),
            str(graph.with_suffix(".part")),
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            dynamo=False,
        )
    graph.with_suffix(".part").rename(graph)


if __name__ == "__main__":
    main()
