"""What to run first on a GPU: whether it agrees with the processor, then how fast it is.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --rehearse     tiny, on the processor: its figures mean nothing

It prints two tables for benchmarks/results.md, in some ten minutes, an estimate: no GPU has run it.

**Agreement** with the plain kernels in float32 on the processor, of the bundled model and of random
ones: heads of 5 to 96 channels, a window, shared keys; at worst over all texts:

    vectors   how far a token's vector is off, of its length
    answers   the same of vectors and logits that a lane makes of all texts in one batch
    maps      the largest difference of an attention probability
    company   how far the canary moves in batches of up to 16,384 tokens, of its length
    moved     in how many of these batches its bits differ from those alone

**Speed** in tokens per second: encoders of three sizes with random weights, two draws of lengths.
All take the same texts, in turns, round after round:

    Headlight   the lane that serves: packed, longest first, token ids in and vectors out
    classes     the same lane with a classifier's logits out, as of a reranker
    theirs      transformers with torch's sdpa: padded, sorted by length, 64 at once

Tokens are the texts' own, padding is none of them. Rates are medians, a ratio is the median of the
rounds' own; the cosine is the smallest of a vector with transformers'. Tokenizing is no part of it.

It ends with status 1 where a limit is passed, or infinity is not told from large finite numbers.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from served.machine import current_commit

from model import kernels
from model.attention.positions import Rope
from model.config import EncoderConfig
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.packing import Sequence
from model.pooling import Dense, Pooling, identity
from model.projection import Projection
from model.task_heads import Classifier
from service.engine.arrays import is_finite, to_array
from service.engine.lanes import Lanes
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import BUNDLED_MODEL, ModelSource, locate_model
from service.proof import numerics
from service.proof.comparison import CANARY_TEXT
from service.shapes.work import Outputs, Result, Work

CPU, FOLDER = torch.device("cpu"), locate_model(BUNDLED_MODEL).folder
TEXTS = Path(__file__).parent.parent / "tests" / "model" / "texts.txt"
HEADS = (5, 24, 40, 64, 96)  # channels; flash attention takes multiples of 8 alone
MAPS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}  # the largest difference
VOCABULARY, SEED, WARM_UPS, PADDED_AT_ONCE = 30522, 7, 2, 64
MEAN, FIRST = Pooling(("mean",), normalize=True), Pooling(("cls",), normalize=False)

Ids = list[list[int]]
Encode = Callable[[Ids], np.ndarray]  # texts' token ids -> a row for each
Configs = dict[str, EncoderConfig | None]  # by name; None: the bundled model


class Size(NamedTuple):
    """Of an encoder like BERT."""

    layers: int
    heads: int
    width: int


class Plan(NamedTuple):
    """What is compared and measured, and how often."""

    models: Configs
    compared: int  # texts
    sizes: dict[str, Size]
    texts: int  # whose speed is measured
    budget: int  # most tokens of a batch
    rounds: int


def random_model(head: int, **choices: Any) -> EncoderConfig:
    """Return the sizes of a small model with heads of so many channels."""
    sizes: dict[str, Any] = {"layers": 3, "heads": 6, "width": 6 * head, "feed_forward": 211}
    return replace(checkpoint.read_sizes(FOLDER), **sizes, embedding_width=6 * head, **choices)


ROTARY: dict[str, Any] = {"positions": "rotary", "ropes": (Rope(theta=1e4),) * 3}
SHARED: dict[str, Any] = {**ROTARY, "key_heads": 2, "causal": True}
FULL = Plan(
    {"all-MiniLM-L6-v2": None, "shared keys, causal": random_model(64, **SHARED)}
    | {"a window of 15": random_model(64, **ROTARY, windows=(None, 15, None))}
    | {f"heads of {head}": random_model(head) for head in HEADS},
    compared=79,
    sizes={
        "MiniLM": Size(6, 12, 384),
        "BERT-base": Size(12, 12, 768),
        "BERT-large": Size(24, 16, 1024),
    },
    texts=1024,
    budget=16_384,
    rounds=7,
)
TINY = Plan({"tiny": random_model(8, **SHARED)}, 3, {"tiny": Size(2, 2, 32)}, 11, 256, rounds=1)


def make_model(
    config: EncoderConfig | None, device: torch.device, dtype: torch.dtype, way: kernels.Kernels
) -> Model:
    """Return the bundled model, or one of these sizes with random weights."""
    if config is None:
        return checkpoint.load_checkpoint(FOLDER, device, dtype, way)
    return checkpoint.make_untrained(config, FOLDER, device, dtype, way)


def make_classifier(width: int, device: torch.device) -> Classifier:
    """Return a classifier of five classes, with random weights."""
    weight = torch.randn(5, width, generator=torch.Generator().manual_seed(SEED)).to(device)
    project = Projection((Dense(kernels.PLAIN.linear(weight, None), identity, 5, 5 * width),))
    return Classifier(tuple("abcde"), FIRST, project, "none", "none")


def largest_differences(exact: Model, fast: Model, texts: list[Sequence]) -> tuple[float, float]:
    """Return how far token vectors are apart, of their length; the largest difference of maps."""
    layers, heads = range(exact.config.layers), range(exact.config.heads)
    both = [one.encoder(one.encoder.pack(texts), traces=set(layers)) for one in (exact, fast)]
    vectors = shown = 0.0
    for index in range(len(texts)):
        rows = [encoded.packed.rows(index) for encoded in both]
        a, b = (to_array(each.last[own]) for each, own in zip(both, rows, strict=True))
        vectors = max(vectors, numerics.largest_difference([b], [a]))
        for layer in layers:
            a, b = (
                to_array(maps.full_maps(MapReader(each.traces[layer], own, heads)))
                for each, own in zip(both, rows, strict=True)
            )
            shown = max(shown, float(abs(a - b).max()))
    return vectors, shown


def compare_answers(exact: Model, fast: Model, texts: list[Sequence]) -> float:
    """Return how far vectors and logits of a lane are apart, all texts in one batch."""
    answers = []
    for model in (exact, fast):
        head = make_classifier(model.config.width, model.encoder.device)
        works = [Work(text, Outputs(MEAN, task_heads=(head,))) for text in texts]
        results = Lanes(model, []).run_batch(works, torch.get_num_threads())
        if not all(isinstance(one, Result) for one in results):
            return np.inf
        done = [one for one in results if isinstance(one, Result)]
        answers.append([[one.pooled for one in done], [one.task["logits"] for one in done]])
    exact_rows, fast_rows = ([np.stack(each) for each in one] for one in answers)
    return numerics.largest_difference(fast_rows, exact_rows)


def batches_with_canary(canary: Sequence, most: int) -> Iterator[list[Sequence]]:
    """Yield batches that begin with the canary: a few texts, then twice the tokens each time.

    Sizes are odd too: a matrix kernel may be picked by what divides the number of rows.
    """
    yield [canary, *(Sequence([1] * length) for length in (1, 3, 40))]
    tokens = 64
    while tokens <= most:
        for size in (tokens, tokens - 1):
            spare = size - len(canary)
            yield [canary, *[Sequence([1] * 32)] * (spare // 32), Sequence([1] * (spare % 32 + 1))]
        tokens *= 2


def compare_company(model: Model, most: int) -> tuple[float, str]:
    """Return how far the canary moves in company, and in how many batches any bit of it does."""
    canary, encoder = read_texts(model, [CANARY_TEXT])[0], model.encoder
    alone = to_array(encoder(encoder.pack([canary])).last[: len(canary)])
    packs = (encoder.pack(batch) for batch in batches_with_canary(canary, most))
    together = [to_array(encoder(packed).last[packed.rows(0)]) for packed in packs]
    moved = sum(tokens.tobytes() != alone.tobytes() for tokens in together)
    furthest = numerics.largest_difference(together, [alone] * len(together))
    return furthest, f"{moved}/{len(together)}"


def read_texts(model: Model, texts: list[str]) -> list[Sequence]:
    """Return texts as a model reads them."""
    return [Sequence(one.token_ids) for one in model.tokenizer([(text,) for text in texts], 512)]


def tells_finite(device: torch.device) -> bool:
    """Tell whether large finite numbers count as finite, and others not, in every format."""
    for dtype in numerics.ROUNDING_BOUNDS:
        rows = torch.full((16_384, 384), torch.finfo(dtype).max, dtype=dtype, device=device)
        if not is_finite(rows):
            return False
        for wrong in (torch.nan, torch.inf, -torch.inf):
            rows[-1, -1] = wrong
            if is_finite(rows):
                return False
    return True


@torch.inference_mode()
def print_agreement(plan: Plan, device: torch.device) -> bool:
    """Print a row for each model and number format; return whether all keep their limits."""
    lines = [line for line in TEXTS.read_text("utf-8").splitlines() if line][: plan.compared]
    print("| model | numerics | vectors | answers | maps | company | moved | over the limit |")
    print("|---|---|---|---|---|---|---|---|")
    holds = tells_finite(device)
    for name, config in plan.models.items():
        exact = make_model(config, CPU, torch.float32, kernels.PLAIN)
        texts = read_texts(exact, lines)
        for dtype, close in numerics.ROUNDING_BOUNDS.items():
            way = kernels.choose_kernels(device, dtype, exact.config.head_dim)
            fast = make_model(config, device, dtype, way)
            vectors, shown = largest_differences(exact, fast, texts)
            company, moved = compare_company(fast, plan.budget)
            off = {"vectors": vectors, "answers": compare_answers(exact, fast, texts)}
            off |= {"maps": shown, "company": company}
            over = [
                kind
                for kind, far in off.items()
                if far > (MAPS[dtype] if kind == "maps" else close)
            ]
            cells = [name, f"{numerics.PRECISION_NAMES[dtype]}-{way.name}"]
            cells += [*(f"{far:.1e}" for far in off.values()), moved, ", ".join(over) or "-"]
            print(f"| {' | '.join(cells)} |", flush=True)
            holds = holds and not over
    return holds


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


def make_our_encoder(model: Model, wanted: Outputs, budget: int) -> Encode:
    """Return the lane that serves, in batches of at most so many tokens."""
    lanes, cores = Lanes(model, []), torch.get_num_threads()

    def run(ids: Ids, places: list[int]) -> list[Any]:
        done: Any = lanes.run_batch([Work(Sequence(ids[place]), wanted) for place in places], cores)
        return [one.task["logits"] if wanted.task_heads else one.pooled for one in done]

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


def make_their_encoder(folder: Path, device: torch.device, dtype: torch.dtype) -> Encode:
    """Return transformers with sdpa, mean over the tokens, texts of one length together."""
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
        order, size = sort_longest_first(ids), PADDED_AT_ONCE
        batches = (order[start : start + size] for start in range(0, len(ids), size))
        return gather_vectors(batches, partial(run, ids))

    return encode


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


def print_size(size: Size, name: str, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
    """Print all rows of one size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_untrained(size, folder)
        model = load_model(ModelSource(folder, "untrained"), device, dtype)
        use_compiled_pass(model)
        head = make_classifier(size.width, device)
        ways = {
            "Headlight": make_our_encoder(model, Outputs(MEAN), plan.budget),
            "classes": make_our_encoder(model, Outputs(task_heads=(head,)), plan.budget),
            "theirs": make_their_encoder(folder, device, dtype),
        }
    for lengths, length in LENGTHS.items():
        ids = draw_texts(length, plan.texts)
        cosine = float((ways["Headlight"](ids) * ways["theirs"](ids)).sum(1).min())
        figures = median_figures(measure_rates(ways, ids, plan.rounds))
        print(f"| {' | '.join([name, lengths, *figures, f'{cosine:.5f}'])} |", flush=True)


def main() -> None:
    """Compare, then measure; print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rehearse", action="store_true", help="tiny, on the processor, once")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; --rehearse needs none")
    device, plan = (CPU, TINY) if options.rehearse else (torch.device("cuda"), FULL)
    where = "a processor" if options.rehearse else torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, commit {current_commit()}: {where}, {versions}.\n")
    holds = print_agreement(plan, device)
    print(f"\nSpeed in {options.dtype}, {plan.texts} texts, {plan.rounds} rounds:\n")
    print("| size | lengths, tokens | Headlight, tokens/s | classes | theirs ", end="")
    print("| to classes | to theirs | cosine |\n|---|---|---|---|---|---|---|---|")
    for name, size in plan.sizes.items():
        print_size(size, name, plan, device, getattr(torch, options.dtype))
    if not holds:
        raise SystemExit("a limit was passed, or finite numbers were told wrong")


if __name__ == "__main__":
    main()
