"""What attention costs: the same sequences encoded alone, with statistics, with maps.

    python benchmarks/attention.py

One process per length, in which every kind takes its turn, round after round. Ours go through the
Runner that serves and are laid out as safetensors, without HTTP. transformers runs eager with
output_attentions, which is how its users get maps, and makes the same statistics with torch.
Memory is the most that a process of its own came to hold while it worked, beyond what it held
with the model loaded and warm for sequences of one token.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

CORES = len(os.sched_getaffinity(0))
BATCHES = {128: 8, 512: 8, 2048: 2}  # sequences of so many tokens
SECONDS, ROUNDS = 1.0, 7
MIB = 1 << 20

Ids = list[list[int]]
Request = Callable[[Ids], object]


def ours(folder: Path, tokens: int) -> dict[str, Request]:
    """Requests to a Runner."""
    import torch

    from model.forms import Asked
    from model.units import divide
    from service import answer, forms
    from service.runner import Runner, Wanted, Work
    from service.weights import Found

    loop = asyncio.new_event_loop()
    found, cpu = Found(folder, folder.name), torch.device("cpu")
    runner = loop.run_until_complete(Runner.start(found, cpu, torch.float32, CORES))
    config = runner.model.config
    every = {layer: tuple(range(config.heads)) for layer in range(config.layers)}

    def request(batch: Ids, form: str | None, heads: dict[int, tuple[int, ...]]) -> object:
        units, last = divide(len(batch[0])), len(batch[0]) - 1
        asked: Any = None
        if form:
            asked = Asked(heads, units, form=form, cls=0, separators=(last,))  # type: ignore[arg-type]
        wanted = Wanted(pooling=runner.model.pooling, attention=asked)
        works = [Work(ids, None, None, wanted) for ids in batch]
        done: Any = loop.run_until_complete(runner.launch(0, works, CORES))
        items = [
            answer.Item(
                {},
                one.pooled,
                named=dict(forms.named(asked, one.attention)) if asked else {},
            )
            for one in done
        ]
        return answer.as_safetensors({}, items, {})

    return {
        "plain": lambda batch: request(batch, None, {}),
        "stats of all heads": lambda batch: request(batch, "stats", every),
        "one full head": lambda batch: request(batch, "full", {5: (11,)}),
        "all 72 full heads": lambda batch: request(batch, "full", every),
        "dominance of all heads": lambda batch: request(batch, "dominance", every),
        "rollout": lambda batch: request(batch, "rollout", every),
    }


def theirs(folder: Path, tokens: int) -> dict[str, Request]:
    """The same from transformers' eager maps; nothing here is padded, which is to its advantage."""
    import torch
    from transformers import BertModel

    torch.set_num_threads(CORES)
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    far = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs().float()

    @torch.inference_mode()
    def request(batch: Ids, statistics: bool) -> object:
        out = model(torch.tensor(batch), output_attentions=True)
        pooled = out.last_hidden_state.mean(1)
        return pooled, [describe(maps) for maps in out.attentions] if statistics else ()

    def describe(maps: torch.Tensor) -> torch.Tensor:
        received = maps.mean(2)
        return torch.stack(
            [
                *(maps.diagonal(offset, 2, 3).mean(2) for offset in (0, -1, 1)),
                received[:, :, 0],
                received[:, :, -1],
                torch.special.entr(maps).sum(3).mean(2),
                maps[:, :, :, :-1].amax(3).mean(2),
                (maps * far).sum(3).mean(2),
                received.amax(2),
            ]
        )

    return {
        "transformers eager, maps": lambda batch: request(batch, False),
        "transformers eager, maps + statistics": lambda batch: request(batch, True),
    }


def sequences(count: int, tokens: int) -> Ids:
    """A batch of token ids."""
    return [
        [101, *((1000 + 7 * i + 13 * j) % 28000 for j in range(tokens - 2)), 102]
        for i in range(count)
    ]


def timed(folder: Path, tokens: int) -> dict[str, float]:
    """Seconds of every kind of request, each as a ratio of plain, in each round's own terms."""
    kinds = {**ours(folder, tokens), **theirs(folder, tokens)}
    batch = sequences(BATCHES[tokens], tokens)
    seen: dict[str, list[float]] = {kind: [] for kind in kinds}
    for request in kinds.values():
        request(batch)
    for _ in range(ROUNDS):
        for kind, request in kinds.items():
            calls, start = 0, time.perf_counter()
            while calls < 2 or time.perf_counter() - start < SECONDS:
                request(batch)
                calls += 1
            seen[kind].append((time.perf_counter() - start) / calls)
    return {kind: statistics.median(times) for kind, times in seen.items()}


def peak(folder: Path, tokens: int, kind: str) -> int:
    """Bytes that one kind of request adds to the process at most."""
    make = theirs if kind.startswith("transformers") else ours
    request = make(folder, tokens)[kind]
    request(sequences(1, tokens if make is theirs else 2))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    request(sequences(BATCHES[tokens], tokens))
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """One of this process's figures in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def long_model(folder: Path, bundled: Path) -> Path:
    """A random model of the bundled one's sizes with positions enough."""
    code = (
        "import sys; from transformers import BertConfig, BertModel\n"
        f"config = BertConfig.from_pretrained({str(bundled)!r})\n"
        f"config.max_position_embeddings = {max(BATCHES)}\n"
        "BertModel(config).save_pretrained(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    shutil.copy(bundled / "tokenizer.json", folder)
    return folder


def report(folder: Path, tokens: int) -> None:
    """Print the rows of one length."""

    def ask(*more: str) -> Any:
        command = [sys.executable, __file__, "--folder", str(folder), "--tokens", str(tokens)]
        done = subprocess.run([*command, *more], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    seconds = ask()
    for kind, each in seconds.items():
        ratio, held = each / seconds["plain"], ask("--kind", kind) / MIB
        print(
            f"| {BATCHES[tokens]} x {tokens} | {kind} | {each * 1000:.1f} | {ratio:.2f} "
            f"| {held:.0f} |",
            flush=True,
        )


def main() -> None:
    """Measure and print, or be the measured process."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--kind", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.kind:
        print(json.dumps(peak(asked.folder, asked.tokens, asked.kind)))
    elif asked.folder:
        print(json.dumps(timed(asked.folder, asked.tokens)))
    else:
        every()


def every() -> None:
    """The whole table."""
    from service.weights import BUNDLED, locate

    bundled = locate(BUNDLED).folder
    print("| sequences | request | ms | of plain | peak, MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="headlight-") as folder:
        for tokens in BATCHES:
            fits = tokens <= 512
            report(bundled if fits else long_model(Path(folder), bundled), tokens)


if __name__ == "__main__":
    main()
