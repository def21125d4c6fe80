"""Tokens per second on a GPU: Headlight next to transformers, and next to the products alone.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --quick      a rehearsal: its figures mean nothing

Encoders of three sizes with random weights, the same in both. A row is one size and one draw of
lengths; all take the same texts, in turns, round after round:

    Headlight     the lane that serves: packed, longest first, token ids in and vectors out
    padded        transformers with torch's sdpa, the texts as they come, --texts-a-batch at once
    sorted        the same, by length
    ceiling       the linear layers' matrix products alone, of as many rows as there are tokens

Tokens are the texts' own, padding is none of them. Vectors are compared: the row holds the smallest
cosine. Tokenizing is no part of it. Rates are medians, a ratio is the median of the rounds' own.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from model.packing import Sequence
from model.pooling import Pooling
from service.engine.lanes import Lanes
from service.engine.loading import load_model, use_compiled_pass
from service.engine.weights import BUNDLED_MODEL, ModelSource, locate_model
from service.engine.work import Outputs, Work

VOCABULARY, SEED, WARM_UPS = 30522, 7, 2
MEAN = Pooling(("mean",), normalize=True)

Ids = list[list[int]]
Encode = Callable[[Ids], np.ndarray]  # texts' token ids -> their vectors, (texts, width)


class Size(NamedTuple):
    """Of an encoder like BERT."""

    layers: int
    heads: int
    width: int


class Plan(NamedTuple):
    """What is measured, and how often."""

    sizes: dict[str, Size]
    texts: int
    budget: int  # tokens of one of our batches
    rounds: int


BERTS = {
    "MiniLM": Size(6, 12, 384),
    "BERT-base": Size(12, 12, 768),
    "BERT-large": Size(24, 16, 1024),
}
FULL = Plan(BERTS, texts=1024, budget=16_384, rounds=7)
QUICK = Plan({"tiny": Size(2, 2, 32)}, texts=11, budget=256, rounds=1)


def draw_length(chance: random.Random) -> int:
    """Return a text: mostly a sentence, now and then a page."""
    return min(256, max(4, round(chance.lognormvariate(3.0, 0.8))))


LENGTHS = {
    "4 to 256, median 20": draw_length,
    "16 to 512, even": lambda chance: chance.randint(16, 512),
}


def draw_texts(length: Callable[[random.Random], int], count: int) -> Ids:
    """Return texts of random tokens."""
    chance = random.Random(SEED)
    return [chance.choices(range(1000, VOCABULARY), k=length(chance)) for _ in range(count)]


def save_untrained(size: Size, folder: Path) -> None:
    """Write a checkpoint of this size."""
    torch.manual_seed(SEED)
    config = transformers.BertConfig(
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        initializer_range=0.05,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(locate_model(BUNDLED_MODEL).folder / name, folder)


def make_our_encoder(folder: Path, device: torch.device, dtype: torch.dtype, budget: int) -> Encode:
    """Return the lane that serves, in batches of at most so many tokens."""
    model = load_model(ModelSource(folder, "untrained"), device, dtype)
    use_compiled_pass(model)
    lanes, wanted, cores = Lanes(model, []), Outputs(pooling=MEAN), torch.get_num_threads()

    def run(ids: Ids, places: list[int]) -> list[Any]:
        done: Any = lanes.run_batch([Work(Sequence(ids[place]), wanted) for place in places], cores)
        return [one.pooled for one in done]

    def encode(ids: Ids) -> np.ndarray:
        return gather_vectors(fill_batches(ids, budget), partial(run, ids))

    return encode


def sort_longest_first(ids: Ids) -> list[int]:
    """Return the texts' places by length."""
    return sorted(range(len(ids)), key=lambda place: -len(ids[place]))


def fill_batches(ids: Ids, budget: int) -> Iterable[list[int]]:
    """Return places in batches of at most so many tokens, or of one text."""
    batches: list[list[int]] = [[]]
    for place in sort_longest_first(ids):
        if sum(len(ids[each]) for each in [*batches[-1], place]) > budget and batches[-1]:
            batches.append([])
        batches[-1].append(place)
    return batches


def gather_vectors(batches: Iterable[list[int]], run: Callable[[list[int]], Any]) -> np.ndarray:
    """Return the vectors of all batches, in the texts' own order."""
    vectors: dict[int, Any] = {}
    for places in batches:
        vectors |= zip(places, run(places), strict=True)
    return np.stack([vectors[place] for place in sorted(vectors)])


def make_their_encoder(
    folder: Path, device: torch.device, dtype: torch.dtype, size: int, by: bool
) -> Encode:
    """Return transformers with sdpa, mean over the tokens, so many texts at once.

    Args:
        by: whether the texts are sorted by length first.
    """
    model = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="sdpa", dtype=dtype
    )
    model = model.to(device).eval()

    @torch.inference_mode()
    def run(ids: Ids, places: list[int]) -> np.ndarray:
        rows = [torch.tensor(ids[place]) for place in places]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        keep = (padded != 0).long()
        last = model(input_ids=padded, attention_mask=keep).last_hidden_state.float()
        mean = (last * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean).cpu().numpy()

    def encode(ids: Ids) -> np.ndarray:
        order = sort_longest_first(ids) if by else list(range(len(ids)))
        batches = (order[start : start + size] for start in range(0, len(ids), size))
        return gather_vectors(batches, partial(run, ids))

    return encode


def make_product_ceiling(
    size: Size, device: torch.device, dtype: torch.dtype, budget: int
) -> Encode:
    """Return the linear layers' products of as many rows; it returns nothing of use."""
    width, wide = size.width, 4 * size.width
    shapes = [(width, 3 * width), (width, width), (width, wide), (wide, width)]  # of one layer
    made = partial(torch.randn, device=device, dtype=dtype)
    pairs = [(made(budget, shape[0]), made(*shape)) for shape in shapes]

    def multiply(ids: Ids) -> np.ndarray:
        tokens = sum(map(len, ids))
        for rows in [budget] * (tokens // budget) + [tokens % budget]:
            for _ in range(size.layers):
                products = [x[:rows] @ weight for x, weight in pairs]
        return products[-1][-1:].float().cpu().numpy()  # waits for the device

    return multiply


def measure_rates(ways: dict[str, Encode], ids: Ids, rounds: int) -> dict[str, list[float]]:
    """Return tokens per second of each way, one a round."""
    tokens = sum(map(len, ids))
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UPS + rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            begun = time.perf_counter()
            ways[name](ids)
            if number >= WARM_UPS:
                rates[name].append(tokens / (time.perf_counter() - begun))
    return rates


def median_figures(rates: dict[str, list[float]]) -> list[str]:
    """Return the median rate of each way, then ours to each other's."""
    mine, *others = map(np.array, rates.values())
    cells = [f"{statistics.median(rate):,.0f}" for rate in rates.values()]
    return cells + [f"{np.median(mine / other):.2f}" for other in others]


def print_size(
    size: Size, name: str, plan: Plan, device: torch.device, options: argparse.Namespace
) -> None:
    """Print all rows of one size."""
    dtype = getattr(torch, options.dtype)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_untrained(size, folder)
        peer = partial(make_their_encoder, folder, device, dtype, options.texts_a_batch)
        ways = {"Headlight": make_our_encoder(folder, device, dtype, plan.budget)}
        ways |= {"padded": peer(False), "sorted": peer(True)}
        ways["ceiling"] = make_product_ceiling(size, device, dtype, plan.budget)
    for lengths, length in LENGTHS.items():
        ids = draw_texts(length, plan.texts)
        cosine = float((ways["Headlight"](ids) * ways["sorted"](ids)).sum(1).min())
        cells = [
            name,
            lengths,
            *median_figures(measure_rates(ways, ids, plan.rounds)),
            f"{cosine:.5f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--texts-a-batch", type=int, default=64, help="of transformers' batches")
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, once")
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; --device cpu --quick rehearses without")
    device, plan = torch.device(options.device), QUICK if options.quick else FULL
    where = torch.cuda.get_device_name() if options.device == "cuda" else "a processor"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{where}, {options.dtype}, {versions}, {plan.texts} texts, {plan.rounds} rounds\n")
    print("| size | lengths, tokens | Headlight, tokens/s | padded | sorted | ceiling ", end="")
    print(
        "| to padded | to sorted | to ceiling | cosine |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for name, size in plan.sizes.items():
        print_size(size, name, plan, device, options)


if __name__ == "__main__":
    main()
