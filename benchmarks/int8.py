"""Would int8 weights with per-token activation scales pay? All linears of one MiniLM pass.

    python benchmarks/int8.py

For each number of rows: milliseconds of the 24 linears in float32 (oneDNN-packed, what serves) and
in int8 (activations quantised per token, weights per output, products by torch._int_mm), in turn,
the best of several rounds. Then the smallest cosine of a sentence's vector, int8 against float32,
over texts of tests/model/texts.txt. docs/decisions says what follows.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from model import kernels
from model.config import Activation
from model.kernels import ACTIVATIONS, PackedLinear
from model.loading import checkpoint
from model.packing import Sequence
from model.pooling import pool
from service.engine.weights import BUNDLED, locate

CPU = torch.device("cpu")
SHAPES = ((1152, 384), (384, 384), (1536, 384), (384, 1536))  # of one layer; there are six
ROUNDS = 12
TEXTS = Path(__file__).parent.parent / "tests" / "model" / "texts.txt"


class Int8Linear:
    """x W^T + b with int8 operands: one scale per row of x, one per output."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.packed = (weight / self.scale).round().to(torch.int8).t().contiguous()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        rows = (x / scale).round().to(torch.int8)
        done = torch._int_mm(rows, self.packed).float().mul_(scale).mul_(self.scale.t())
        return done if self.bias is None else done.add_(self.bias)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        return ACTIVATIONS[activation](self(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x).add_(residual)

    def weight(self) -> Tensor:
        return self.packed.t() * self.scale


def milliseconds(call: Callable[[], object]) -> float:
    """Return one call's time."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def speeds() -> None:
    """Milliseconds of all linears of a pass, side by side."""
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=random) for _ in range(6) for shape in SHAPES]
    biases = [torch.randn(len(weight), generator=random) for weight in weights]
    sides = {
        kind.__name__: [kind(w, b) for w, b in zip(weights, biases, strict=True)]
        for kind in (PackedLinear, Int8Linear)
    }
    for rows in (32, 64, 256, 1024):
        inputs = {size: torch.randn(rows, size, generator=random) for size in (384, 1536)}

        def run(linears: list[kernels.Linear]) -> None:
            for linear, weight in zip(linears, weights, strict=True):
                linear(inputs[weight.shape[1]])  # noqa: B023 - called within the round

        best = dict.fromkeys(sides, float("inf"))
        for _ in range(ROUNDS):
            for name, linears in sides.items():
                best[name] = min(best[name], milliseconds(lambda: run(linears)))  # noqa: B023
        ratio = best["PackedLinear"] / best["Int8Linear"]
        print(
            f"{rows:5d} rows  " + "  ".join(f"{n} {t:7.2f} ms" for n, t in best.items()),
            f"{ratio:.2f}x",
        )


def agreement() -> None:
    """The smallest cosine of any text's vector between the two."""
    folder = locate(BUNDLED).folder
    fast = kernels.choose(CPU, torch.float32)
    int8 = kernels.Kernels("int8", Int8Linear, fast.attend)
    models = [checkpoint.load(folder, CPU, torch.float32, way) for way in (fast, int8)]
    cosines = []
    sentences = [line for line in TEXTS.read_text("utf-8").splitlines() if line]
    for line in sentences:
        ids = models[0].tokenizer([(line,)], 256, "right")[0].token_ids
        vectors = []
        for model in models:
            encoded = model.encoder(model.encoder.pack([Sequence(ids)]))
            vectors.append(pool(encoded.last[encoded.packed.rows(0)], model.pooling))
        cosines.append(float(vectors[0] @ vectors[1]))
    mean = sum(cosines) / len(cosines)
    print(f"cosine: smallest {min(cosines):.4f}, mean {mean:.4f}, n {len(cosines)}")


if __name__ == "__main__":
    with torch.inference_mode():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            print(f"{threads} thread(s), {torch.backends.cpu.get_cpu_capability()}")
            speeds()
        agreement()
