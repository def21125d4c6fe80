"""Time and memory of loading: the bundled model, and a random one of BERT-large's sizes.

    python benchmarks/loading.py [--check]

Each load is a process of its own. Memory is counted beyond a process that imported the same
libraries and loaded nothing: resident after the load, and the most at any time, both with the
pages of the mapped file while it is mapped. --check adds the start-up checks.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
STEPS = ("nothing", "load", "check")
MIB = 1 << 20
MOST = 1.3  # resident after the load, of the file


def memory() -> dict[str, int]:
    """Return this process's memory in bytes, from /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(fields[key].split()[0]) * 1024 for name, key in names.items()}


def work(step: str, folder: Path) -> None:
    """Be the process that is measured; prints its numbers as one line of JSON."""
    import torch

    from model import kernels
    from model.loading import checkpoint
    from service.engine.proof import check_exact
    from service.engine.weights import Source

    cpu = torch.device("cpu")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    chosen = kernels.choose(cpu, torch.float32)
    start = time.perf_counter()
    kept = checkpoint.load(folder, cpu, torch.float32, chosen) if step != "nothing" else None
    if step == "check" and kept is not None:
        check_exact(kept, Source(folder, "large"), torch.float32)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, **memory()}))


def measure(step: str, folder: Path) -> dict[str, float]:
    """Run one step in a fresh process."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def write_large(folder: Path, tokenizer: Path) -> None:
    """Save a checkpoint with random weights, by transformers; in a process of its own."""
    code = (
        "import sys, torch; from transformers import BertConfig, BertModel\n"
        f"BertModel(BertConfig(**{LARGE})).save_pretrained(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    shutil.copy(tokenizer, folder)


def report(name: str, folder: Path, steps: tuple[str, ...]) -> bool:
    """Print a model's rows; says whether it stays within MOST."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    empty, fits = measure("nothing", folder), True
    for step in steps:
        numbers = measure(step, folder)
        resident, peak = (numbers[key] - empty[key] for key in ("resident", "peak"))
        fits &= step != "load" or resident <= MOST * size
        print(
            f"| {name}, {step} | {size / MIB:,.0f} | {numbers['seconds']:.2f} "
            f"| {resident / MIB:,.0f} ({resident / size:.2f}x) | {peak / MIB:,.0f} "
            f"({peak / size:.2f}x) |",
            flush=True,
        )
    return fits


def main() -> None:
    """Measure and print, or be the measured process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="also with the start-up checks")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        work(arguments.step, arguments.folder)
        return
    from service.engine.weights import BUNDLED, locate

    bundled = locate(BUNDLED).folder
    steps = STEPS[1:] if arguments.check else STEPS[1:2]
    print("| | file, MiB | seconds | resident, MiB | peak, MiB |\n|---|---|---|---|---|")
    fits = report(BUNDLED, bundled, steps)
    with tempfile.TemporaryDirectory(prefix="headlight-") as large:
        write_large(Path(large), bundled / "tokenizer.json")
        fits &= report("BERT-large, random", Path(large), steps)
    if not fits:
        raise SystemExit(f"resident after the load exceeds {MOST} times the file")


if __name__ == "__main__":
    main()
