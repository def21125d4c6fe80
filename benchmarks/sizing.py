"""What a replica needs: memory and tokens per second, for models of three sizes.

    python benchmarks/sizing.py

Each model is loaded in a process of its own, as a replica loads it: the bundled MiniLM, and BERT's
base and large sizes with random weights. Token ids are random and no batch is repeated. Memory is
the resident set after loading and proving nothing, and the peak while batches of 512 and of 4,096
tokens run. The service around it (Ray, HAProxy) is what benchmarks/idle.py measures.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from model.packing import Sequence
from service.engine.lanes import Lanes
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import BUNDLED_MODEL, locate_model
from service.shapes.work import Outputs, Work

CORES = len(os.sched_getaffinity(0))
ROUNDS, SECONDS = 5, 1.5
MIB = 1024**2
LENGTHS = {"16 x 32 tokens": (32, 16), "2 x 256 tokens": (256, 2), "8 x 512 tokens": (512, 8)}
SIZES = {  # layers, heads, width, inner width
    "MiniLM, 22 M": None,
    "BERT base, 110 M": (12, 12, 768, 3072),
    "BERT large, 335 M": (24, 16, 1024, 4096),
}


def save_checkpoint(sizes: tuple[int, int, int, int], folder: Path) -> None:
    """Save a BERT with random weights, and the bundled model's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    layers, heads, width, inner = sizes
    config = BertConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=width,
        intermediate_size=inner,
    )
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder).save_pretrained(folder)


def read_memory(field: str) -> float:
    """Return a field of this process's status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def time_batch(lanes: Lanes, length: int, count: int, threads: int, chance: random.Random) -> float:
    """Run one batch; return its seconds."""
    wanted = Outputs(pooling=lanes.model.pooling)
    works = [
        Work(Sequence([chance.randrange(1000, 30000) for _ in range(length)]), wanted)
        for _ in range(count)
    ]
    start = time.perf_counter()
    lanes.run_batch(works, threads)
    return time.perf_counter() - start


def median_rate(lanes: Lanes, length: int, count: int, threads: int) -> float:
    """Return tokens per second, the median of some rounds."""
    chance, rates = random.Random(length), []
    for _ in range(ROUNDS):
        spent = tokens = 0.0
        while spent < SECONDS:
            spent += time_batch(lanes, length, count, threads, chance)
            tokens += length * count
        rates.append(tokens / spent)
    return statistics.median(rates)


def peak_memory(lanes: Lanes, length: int, count: int) -> float:
    """Return MiB that the process came to hold at most while a batch ran."""
    before = read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    time_batch(lanes, length, count, CORES, random.Random(0))
    return read_memory("VmHWM") - before


def measure_model(model: str) -> dict[str, float]:
    """Return every figure of one model, in this process."""
    source, device = locate_model(model), torch.device("cpu")
    bare = read_memory("VmRSS")
    lanes = Lanes(use_compiled_pass(load_model(source, device, torch.float32)), 1)
    figures = {"loaded MiB": read_memory("VmRSS") - bare}
    longest = lanes.model.config.max_positions
    figures["8 x 512 tokens MiB"] = peak_memory(
        lanes, min(512, longest), 8 if longest >= 512 else 16
    )
    for name, (length, count) in LENGTHS.items():
        if length <= longest:
            for threads in {1, CORES}:
                figures[f"{name}, {threads} threads"] = median_rate(lanes, length, count, threads)
    return figures


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="measure this one alone, as JSON")
    if model := parser.parse_args().model:
        return print(json.dumps(measure_model(model)))
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            if sizes:
                save_checkpoint(sizes, Path(folder))
            command = [sys.executable, __file__, "--model", folder if sizes else BUNDLED_MODEL]
            figures = json.loads(subprocess.check_output(command).splitlines()[-1])
        print(name, *(f"{key}: {value:,.0f}" for key, value in figures.items()), sep="; ")


if __name__ == "__main__":
    main()
