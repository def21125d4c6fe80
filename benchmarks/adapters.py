"""LoRA adapters next to the model without them, and next to PEFT, in one run.

    pip install --no-deps --target build/peft peft==0.21.2 accelerate
    PYTHONPATH=build/peft python benchmarks/adapters.py [--families bert qwen3] [--sizes small base]

Random weights, float32, one core, token ids in and the last layer's vectors out, as in families.py.
Each adapter changes every linear of the layers. "One" runs all texts with one adapter, "mixed"
each with the next of eight, unmerged in both engines (PEFT's `adapter_names`, on torch's sdpa). Of
each engine and shape counts the call of the least processor time, in turns, which a busy machine
disturbs less than a clock's. Vectors must agree to 1e-3 of the largest.
"""

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from families import AGREEMENT, CPU, FAMILIES, SHAPES, SIZES, Batch, drawn, ours
from peft import LoraConfig, PeftModel  # type: ignore[import-not-found]
from torch import Tensor, nn
from transformers import PreTrainedModel

from model.adapters import Adapter, mix
from model.encoder import Encoder
from model.loading.adapters import read_adapter
from model.loading.families import read_config
from model.packing import pack

NAMES = [f"adapter{number}" for number in range(8)]  # digits alone PEFT takes for layers
RANKS = (8, 16)
LOADS = SHAPES | {"32 x 64": [64] * 32}

Engine = Callable[[], Tensor]  # encodes a batch: the vectors of its texts' first tokens


def adapted(model: PreTrainedModel, rank: int) -> PeftModel:
    """Return PEFT's model with adapters of random weights."""
    changed = copy.deepcopy(model)
    targets = [
        name
        for name, module in changed.named_modules()
        if isinstance(module, nn.Linear) and "layer" in name
    ]
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, init_lora_weights=False
    )
    wrapped = PeftModel(changed, config, adapter_name=NAMES[0])
    for name in NAMES[1:]:
        wrapped.add_adapter(name, config)
    return wrapped.eval()


def read(wrapped: PeftModel, model: PreTrainedModel, encoder: Encoder) -> list[Adapter]:
    """Return the same adapters as we read them."""
    with tempfile.TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        _, family = read_config(model.config.to_dict())
        return [
            read_adapter(Path(folder) / name, encoder, family, "", torch.float32, False)
            for name in NAMES
        ]


def engines(
    model: PreTrainedModel,
    wrapped: PeftModel,
    encoder: Encoder,
    adapters: list[Adapter],
    batch: Batch,
) -> dict[str, dict[str, Engine]]:
    """Return ours and PEFT's of each way, by the way's name."""
    sequences = batch.sequences()
    places = [place % len(NAMES) for place in range(len(sequences))]

    def run(encoder: Encoder) -> Tensor:
        packed = encoder.pack(sequences)
        return encoder(packed).last[list(packed.starts)]

    def together() -> Tensor:
        packed = pack(sequences, CPU, encoder.config.pad)
        run = mix(encoder, packed, [adapters[place] for place in places])
        return run(packed).last[list(packed.starts)]

    def peft(model: nn.Module, **more: list[str]) -> Tensor:
        found = model(input_ids=batch.ids, attention_mask=batch.mask, **more)
        vectors: Tensor = found.last_hidden_state[:, 0]
        return vectors

    names = [NAMES[place] for place in places]
    ways: dict[str, dict[str, Engine]] = {
        "plain": {"ours": partial(run, encoder), "PEFT": partial(peft, model)},
        "one": {"ours": partial(run, adapters[0].encoder), "PEFT": partial(peft, wrapped)},
        "mixed": {"ours": together, "PEFT": partial(peft, wrapped, adapter_names=names)},
    }
    if len(sequences) == 1:
        del ways["mixed"]
    return ways


def fastest(engine: Engine, seconds: float) -> float:
    """Return the processor time of the fastest call of those of some seconds."""
    times: list[float] = []
    while sum(times) < seconds:
        start = time.process_time()
        engine()
        times.append(time.process_time() - start)
    return min(times)


def compare(
    ways: dict[str, dict[str, Engine]], seconds: float, rounds: int
) -> dict[tuple[str, str], float]:
    """Return the seconds of each way and engine; they take turns, and give the same vectors."""
    for way, pair in ways.items():
        mine, its = (engine() for engine in pair.values())
        off = float((mine - its).abs().max() / its.abs().max())
        if off > AGREEMENT:
            raise SystemExit(f"the vectors of {way} differ by {off}")
    best = {(way, name): float("inf") for way, pair in ways.items() for name in pair}
    for _ in range(rounds):
        for way, name in best:
            best[way, name] = min(best[way, name], fastest(ways[way][name], seconds))
    return best


def rows(family: str, size: str, seconds: float, rounds: int) -> None:
    """Print the family's rows of the table."""
    model = drawn(family, size)
    with tempfile.TemporaryDirectory() as folder:
        encoder = ours(model, Path(folder))
    for rank in RANKS:
        wrapped = adapted(model, rank)
        adapters = read(wrapped, model, encoder)
        for shape, lengths in LOADS.items():
            ways = engines(model, wrapped, encoder, adapters, Batch.of(lengths))
            best = compare(ways, seconds, rounds)
            cells = []
            for way in ("plain", "one", "mixed"):
                if way not in ways:
                    cells += ["-"] * 3
                    continue
                mine, its = best[way, "ours"], best[way, "PEFT"]
                cells += [f"{1e3 * mine:.1f}", f"{its / mine:.2f}"]
                if way != "plain":
                    over = [best[way, name] / best["plain", name] for name in ("ours", "PEFT")]
                    cells += ["{:.2f}, {:.2f}".format(*over)]
            print(f"| {family} | {size} | {rank} | {shape} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=["bert", "qwen3"])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each engine and shape")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    columns = ["family", "size", "rank", "texts x tokens", "plain, ms", "to transformers"]
    for way in ("one", "mixed"):
        columns += [f"{way}, ms", "to PEFT", "of plain, ours and PEFT's"]
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|")
    for family in options.families:
        for size in options.sizes:
            rows(family, size, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
