"""Holds the CUDA path against the CPU's plain float32 answer, and says how fast it is.

    python benchmarks/cuda_parity.py

Needs a CUDA device; `--device cpu --most-tokens 1024` rehearses it without. The models are the
bundled one and random ones with heads of 5 to 96 channels, each in float32, bfloat16 and float16.
A row of the table holds the kernels that were chosen and, at worst over all texts:

    vectors   how far a token's vector is from plain float32 on the CPU, of its length
    maps      the largest difference of an attention probability from the same
    company   how far the canary moves in batches of up to --most-tokens, of its length
    moved     in how many of these batches its bits differ from those alone
    tokens/s  of a batch of 64 x 128 tokens, at most --most-tokens

It ends with status 1 where one is over its limit, or a sound batch is called not finite.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model import kernels
from model.config import EncoderConfig
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.packing import Sequence
from service.engine import numerics
from service.engine.lanes import is_finite, to_array
from service.engine.proof import CANARY_TEXT
from service.engine.weights import BUNDLED_MODEL, locate_model

CPU = torch.device("cpu")
TEXTS = Path(__file__).parent.parent / "tests" / "model" / "texts.txt"
HEADS = (5, 24, 40, 64, 96)  # channels; flash attention takes multiples of 8 alone
MAPS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}  # the largest difference
ROUNDS = 20


@dataclass
class Row:
    """What was measured of one model in one number format."""

    vectors: float
    maps: float
    company: float
    moved: str
    finite: bool
    speed: float

    def breaches(self, dtype: torch.dtype) -> list[str]:
        """Return what is over its limit."""
        close = numerics.ROUNDING_BOUNDS[dtype]
        held = {
            "vectors": self.vectors <= close,
            "maps": self.maps <= MAPS[dtype],
            "company": self.company <= close,
            "finite": self.finite,
        }
        return [name for name, holds in held.items() if not holds]


def models_by_name() -> dict[str, EncoderConfig | None]:
    """Return the models by name; None is the bundled one."""
    bundled = checkpoint.read_sizes(locate_model(BUNDLED_MODEL).folder)
    random = {
        f"random, heads of {head}": replace(
            bundled, layers=3, heads=7, width=7 * head, embedding_width=7 * head, feed_forward=211
        )
        for head in HEADS
    }
    return {"all-MiniLM-L6-v2": None, **random}


def load_model(
    config: EncoderConfig | None, device: torch.device, dtype: torch.dtype, way: kernels.Kernels
) -> Model:
    """Return the bundled model, or one of these sizes with random weights."""
    folder = locate_model(BUNDLED_MODEL).folder
    if config is None:
        return checkpoint.load_checkpoint(folder, device, dtype, way)
    return checkpoint.make_untrained(config, folder, device, dtype, way)


def differences(exact: Model, fast: Model, sequences: list[Sequence]) -> tuple[float, float]:
    """Return how far token vectors are apart, of their length; the largest difference of maps."""
    layers, heads = range(exact.config.layers), range(exact.config.heads)
    whole = [m.encoder(m.encoder.pack(sequences), traces=set(layers)) for m in (exact, fast)]
    vectors = shown = 0.0
    for index in range(len(sequences)):
        rows = [encoded.packed.rows(index) for encoded in whole]
        a, b = (to_array(encoded.last[r]) for encoded, r in zip(whole, rows, strict=True))
        vectors = max(vectors, numerics.largest_difference(b, a))
        for layer in layers:
            a, b = (
                to_array(maps.full_maps(MapReader(encoded.traces[layer], r, heads)))
                for encoded, r in zip(whole, rows, strict=True)
            )
            shown = max(shown, float(abs(a - b).max()))
    return vectors, shown


def canary_batches(canary: Sequence, most: int) -> Iterator[list[Sequence]]:
    """Yield batches that begin with the canary: a few texts, then twice the tokens each time.

    Sizes are odd too: a matrix kernel may be picked by what divides the number of rows.
    """
    yield [canary, *(Sequence([1] * length) for length in (1, 3, 40))]
    tokens = 64
    while tokens <= most:
        for size in {tokens, tokens - 1}:
            spare = size - len(canary)
            yield [canary, *[Sequence([1] * 32)] * (spare // 32), Sequence([1] * (spare % 32 + 1))]
        tokens *= 2


def measure_company(model: Model, canary: Sequence, most: int) -> tuple[float, str, bool]:
    """Return how far the canary moves, in how many batches any bit does, whether all are finite."""
    encoder = model.encoder
    alone = to_array(encoder(encoder.pack([canary])).last[: len(canary)])
    canaries, fine = [], True
    for batch in canary_batches(canary, most):
        encoded = encoder(encoder.pack(batch))
        canaries.append(to_array(encoded.last[encoded.packed.rows(0)]))
        fine = fine and is_finite(encoded.last)
    moved = sum(tokens.tobytes() != alone.tobytes() for tokens in canaries)
    return (
        max(numerics.largest_difference(one, alone) for one in canaries),
        f"{moved}/{len(canaries)}",
        fine,
    )


def checks_finiteness(device: torch.device) -> bool:
    """Return whether large finite numbers count as finite, and others not, in every format."""
    for dtype in numerics.ROUNDING_BOUNDS:
        rows = torch.full((16_384, 384), torch.finfo(dtype).max, dtype=dtype, device=device)
        if not is_finite(rows):
            return False
        for wrong in (torch.nan, torch.inf, -torch.inf):
            rows[-1, -1] = wrong
            if is_finite(rows):
                return False
    return True


def measure_speed(model: Model, most: int) -> float:
    """Return tokens per second of 64 sequences of 128 tokens, or fewer."""
    count = max(1, min(64, most // 128))
    packed, encoder = model.encoder.pack([Sequence([7] * 128)] * count), model.encoder
    for _ in range(3):
        is_finite(encoder(packed).last)  # waits for the device
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        last = encoder(packed).last
    is_finite(last)
    return ROUNDS * count * 128 / (time.perf_counter() - begun)


def measure_model(exact: Model, fast: Model, most: int) -> Row:
    """Return one row of the table."""
    lines = [line for line in TEXTS.read_text("utf-8").splitlines() if line]
    ids = [one.token_ids for one in exact.tokenizer([(line,) for line in lines], 512)]
    canary = Sequence(exact.tokenizer([(CANARY_TEXT,)], 512)[0].token_ids)
    vectors, shown = differences(exact, fast, [Sequence(one) for one in ids])
    moves, moved, finite = measure_company(fast, canary, most)
    return Row(vectors, shown, moves, moved, finite, measure_speed(fast, most))


@torch.inference_mode()
def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--most-tokens", type=int, default=16_384, help="of the largest batch")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here")
    device = torch.device(chosen.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "a processor"
    print(f"{where}, torch {torch.__version__}, batches of up to {chosen.most_tokens} tokens")
    print("| model | numerics | vectors | maps | company | moved | tokens/s | over the limit |")
    print("|---|---|---|---|---|---|---|---|")
    failed = not checks_finiteness(device)
    for name, config in models_by_name().items():
        exact = load_model(config, CPU, torch.float32, kernels.PLAIN)
        for dtype in numerics.ROUNDING_BOUNDS:
            way = kernels.choose_kernels(device, dtype, exact.config.head_dim)
            fast = load_model(config, device, dtype, way)
            row = measure_model(exact, fast, chosen.most_tokens)
            over = row.breaches(dtype)
            failed = failed or bool(over)
            print(
                f"| {name} | {numerics.PRECISION_NAMES[dtype]}-{way.name} | {row.vectors:.1e} "
                f"| {row.maps:.1e} | {row.company:.1e} | {row.moved} | {row.speed:,.0f} "
                f"| {', '.join(over) or '-'} |"
            )
    if failed:
        raise SystemExit("a limit was passed, or finite numbers were told wrong")


if __name__ == "__main__":
    main()
