"""Do more heads see more? The bundled model with some of its heads kept; and heads one by one.

    python benchmarks/heads.py        some minutes

First table: how alike a text's vector is to the full one when only some heads are kept, cosine,
over the texts of the bundled corpus. Which heads are kept is drawn anew for every text, draw and
layer, from a fixed seed. The others' mixed values are multiplied by 0 before W^O, as `gates` of
/v1/encode does; "rescaled" also multiplies the kept ones by 12 / kept, so that what is
missing is what the others saw, not the size of their sum.

Second table: the heads of one layer in a loop, each through its own W_i^Q, W_i^K, W_i^V and W_i^O,
next to the layer as it serves, one projection for all of them: largest difference, time of each.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from model import kernels
from model.attention import HeadWeights, MultiHeadAttention
from model.lessons import mix, score, weigh
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.pooling import pool
from service.engine.weights import BUNDLED, locate

CPU = torch.device("cpu")
CORPUS = Path(__file__).parent.parent / "service" / "corpus" / "relations.jsonl"
KEPT = (1, 2, 4, 8, 12)
DRAWS = 4  # of heads, for every text
SEED = 0
BATCH = 16  # sequences in a pass
TOKENS = (16, 128)  # of the sequence that the loop and the layer are timed on
ROUNDS = 200

Gates = Mapping[int, Mapping[int, float]]


def texts() -> list[str]:
    """Return every text of the corpus once, in its order."""
    lines = CORPUS.read_text("utf-8").splitlines()
    return list(dict.fromkeys(json.loads(line)["text"] for line in lines))


def drawn(chance: random.Random, heads: int, kept: int, scale: float) -> dict[int, float]:
    """Return gates of one layer that keep some heads, picked by chance."""
    chosen = set(chance.sample(range(heads), kept))
    return {head: scale if head in chosen else 0.0 for head in range(heads)}


def ways(model: Model) -> dict[str, Callable[[random.Random, int], Gates]]:
    """Return which layers keep only some heads: all, all with the kept ones rescaled, or one."""
    layers, heads = range(model.config.layers), model.config.heads

    def every(chance: random.Random, kept: int, scale: float) -> Gates:
        return {layer: drawn(chance, heads, kept, scale) for layer in layers}

    def one(layer: int) -> Callable[[random.Random, int], Gates]:
        return lambda chance, kept: {layer: drawn(chance, heads, kept, 1.0)}

    return {
        "all layers": lambda chance, kept: every(chance, kept, 1.0),
        "rescaled": lambda chance, kept: every(chance, kept, heads / kept),
        **{f"layer {layer}": one(layer) for layer in layers},
    }


def encode(model: Model, sequences: list[Sequence]) -> Tensor:
    """Return the pooled vectors, (sequences, width)."""
    vectors = []
    for first in range(0, len(sequences), BATCH):
        encoded = model.encoder(model.encoder.pack(sequences[first : first + BATCH]))
        rows = map(encoded.packed.rows, range(len(encoded.packed.lengths)))
        vectors += [pool(encoded.last[part], model.pooling) for part in rows]
    return torch.stack(vectors)


def likeness(model: Model) -> None:
    """Print how alike vectors are to the full ones, by heads kept."""
    read = model.tokenizer([(text,) for text in texts()], model.max_tokens, "right")
    ids = [one.token_ids for one in read]
    full, named = encode(model, [Sequence(one) for one in ids]), ways(model)
    print(f"| heads kept | {' | '.join(named)} |\n|{'---|' * (len(named) + 1)}")
    for kept in KEPT:
        cells = []
        for way, gates in named.items():
            chance = random.Random(f"{SEED} {way} {kept}")
            alike = [
                torch.cosine_similarity(
                    encode(model, [Sequence(one, gates=gates(chance, kept)) for one in ids]), full
                )
                for _ in range(DRAWS if kept < model.config.heads else 1)
            ]
            spread = torch.cat(alike)
            low = f" ({spread.quantile(0.05):.2f})" if way in ("all layers", "rescaled") else ""
            cells.append(f"{spread.mean():.3f}{low}")
        print(f"| {kept} | {' | '.join(cells)} |", flush=True)
    print(f"\nmean over {len(ids)} texts x {DRAWS} draws, in brackets what 5 % fall below\n")


class OneByOne:
    """The heads of a layer in a loop; their matrices are cut out beforehand."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self.weights = [
            HeadWeights(*(part.contiguous() for part in attention.weights(i)))
            for i in range(attention.heads)
        ]
        inputs, self.bias = attention.project.bias, attention.output.bias
        self.biases = inputs.view(3, attention.heads, attention.head_dim).unbind(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x + sum_i Z_i W_i^O + b, (tokens, width)."""
        total = x + self.bias
        for head, (q, k, v) in zip(self.weights, self.biases, strict=True):
            probabilities = weigh(score(x @ head.query + q, x @ head.key + k))
            z = mix(probabilities, x @ head.value + v)
            total = total + z @ head.output
        return total


def microseconds(call: Callable[[], Tensor]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def loop(model: Model) -> None:
    """Print what a loop over the heads of layer 0 takes next to the layer that serves."""
    print("| tokens | heads one by one | all at once | ratio | furthest apart |")
    print("|---|---|---|---|---|")
    for tokens in TOKENS:
        slow, fast, apart = beside(model, tokens)
        print(f"| {tokens} | {slow:.0f} us | {fast:.0f} us | {slow / fast:.1f} | {apart:.0e} |")


def beside(model: Model, tokens: int) -> tuple[float, float, float]:
    """Return microseconds of the loop and of the layer, and how far their results are apart."""
    attention = model.encoder.layers[0].attention
    each = OneByOne(attention)
    packed = model.encoder.pack([Sequence([1000 + i for i in range(tokens)])])
    x = model.encoder(packed, hidden=frozenset({0})).hidden[0]

    def at_once() -> Tensor:
        return attention(x, x, packed, {})[0]

    apart = (each(x) - at_once()).abs().max().item()
    return microseconds(lambda: each(x)), microseconds(at_once), apart


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(arguments.parse_args().threads)
    model = checkpoint.load(
        locate(BUNDLED).folder, CPU, torch.float32, kernels.choose(CPU, torch.float32)
    )
    print(machine(), end="\n\n")
    likeness(model)
    loop(model)


def machine() -> str:
    """Return the conditions of a run in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if "model name" in line), "")
    parts = [name or platform.machine(), torch.backends.cpu.get_cpu_capability()]
    parts += [f"{torch.get_num_threads()} thread(s) of {len(os.sched_getaffinity(0))} cores"]
    return ", ".join([*parts, f"torch {torch.__version__}", f"load {os.getloadavg()[0]:.2f}"])


if __name__ == "__main__":
    with torch.inference_mode():
        main()
