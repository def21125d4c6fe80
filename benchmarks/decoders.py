"""Decoders' layers in the Python loop next to transformers with torch's sdpa, in one process.

    python benchmarks/decoders.py

Random weights in the sizes of published models, fewer layers, float32, one core. The figure of
each shape is the fastest of the calls of some seconds: the machine should have nothing else to do.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from model import kernels
from model.encoder import Encoder
from model.loading.assembly import build, expected
from model.loading.families import read_config
from model.loading.files import WEIGHTS
from model.loading.tensors import open_tensors, translate
from model.packing import Sequence

CPU = torch.device("cpu")
SHAPES = ((1, 16), (1, 128), (8, 64), (1, 1024))  # texts, and tokens of each
SHARED: dict[str, Any] = {"vocab_size": 200, "max_position_embeddings": 1024}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-0.6B, 4 of 28 layers": (
        "Qwen3",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
        },
    ),
    "EmbeddingGemma-300M, 6 of 24 layers": (
        "Gemma3Text",
        {
            "hidden_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 1152,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
        },
    ),
}


def drawn(name: str, sizes: dict[str, Any]) -> tuple[PreTrainedModel, Encoder]:
    """Return a model of random weights, as transformers runs it and as we do."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHARED | sizes, attn_implementation="sdpa")
    model: PreTrainedModel = getattr(transformers, f"{name}Model")(config).eval()
    read, family = read_config(config.to_dict())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open_tensors({WEIGHTS: Path(folder) / WEIGHTS}) as tensors:
            weights = translate(tensors, expected(read), family)
            way = kernels.choose(CPU, torch.float32, read.head_dim)
            encoder = build(read, weights, CPU, torch.float32, way)
    return model, encoder


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Return the seconds of the fastest of at least three calls."""
    call()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each engine and shape")
    seconds: float = parser.parse_args().seconds
    torch.set_num_threads(1)
    print("| model | texts x tokens | ours, ms | transformers, ms | ours / transformers |")
    print("|---|---|---|---|---|")
    for title, (name, sizes) in MODELS.items():
        model, encoder = drawn(name, sizes)
        for texts, tokens in SHAPES:
            ids = torch.randint(0, SHARED["vocab_size"], (texts, tokens))
            packed = encoder.pack([Sequence(row.tolist()) for row in ids])
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
            with torch.inference_mode():
                ours = fastest(partial(encoder, packed), seconds)
                peer = fastest(partial(model, **given), seconds)
            row = f"{1e3 * ours:.1f} | {1e3 * peer:.1f} | {ours / peer:.2f}"
            print(f"| {title} | {texts} x {tokens} | {row} |", flush=True)


if __name__ == "__main__":
    main()
